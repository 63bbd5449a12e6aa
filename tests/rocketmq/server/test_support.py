"""Every refused feature of the support table is refused with its text and code."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mqbridge.config.options.listener import ListenerConfig
from mqbridge.gateway.listener_settings import settings_of
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener
from mqbridge.listener.server import load_servers
from mqbridge.listener.support import Support, SupportRow
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.rocketmq.server.support import BACKINGS, TABLE
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from mqbridge.rocketmq.wire.bodies.groups import CheckClient, SubscriptionData
from mqbridge.rocketmq.wire.bodies.pop import POP, MessageRequestMode
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command, decode, encode
from mqbridge.rocketmq.wire.headers.admin import CreateTopicHeader, RouteHeader, TopicHeader
from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.tags import SQL92
from tests.patience import PATIENCE_S

CONTROLLER_REQUEST = 1001
"""Code of a request that only tools and controllers have."""


class Asking:
    """A client's connection to a listener: one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._opaque = itertools.count(1)

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """Send a request, and return the answer."""
        request = Command(code, {} if header is None else header.encode(), body, opaque=next(self._opaque))
        self._writer.write(encode(request))
        async with asyncio.timeout(PATIENCE_S):
            prefix = await self._reader.readexactly(4)
            answer = decode(prefix + await self._reader.readexactly(int.from_bytes(prefix, "big")))
        assert answer.opaque == request.opaque
        return answer

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


@asynccontextmanager
async def asking(folder: Path, **options: Any) -> AsyncIterator[Asking]:
    """Serve an embedded log, and connect to it."""
    cluster = LogCluster("store", LogSettings(path=str(folder / "log.db")))
    await cluster.connect()
    store, system = GroupStore(folder / "groups.db"), load_servers()["rocketmq"]
    values = {"name": "app", "system": "rocketmq", "cluster": "store", "listen": "127.0.0.1:0"} | options
    config = ListenerConfig.model_validate(values)
    settings = settings_of(config, system, uniform_groups=False, dead_letter_names=cluster.capabilities.topic_name)
    listener = Listener(settings, system, cluster, cluster, store, "me")
    try:
        listener.bind()
        await listener.start()
        client = Asking(*await asyncio.open_connection("127.0.0.1", listener.port.port))
        try:
            yield client
        finally:
            await client.close()
    finally:
        await listener.close(asyncio.get_running_loop().time() + 5)
        await store.close()
        await cluster.close()


async def recall(client: Asking) -> Command:
    return await client.ask(Code.RECALL_MESSAGE)


async def filter_by_sql(client: Asking) -> Command:
    subscription = SubscriptionData("t", "a > 1", expression_type=SQL92)
    return await client.ask(Code.CHECK_CLIENT_CONFIG, body=CheckClient("c", "g", subscription).encode())


async def limit_a_topic(client: Asking) -> Command:
    return await client.ask(Code.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader("t", 1, 1, perm=4))


async def configure_a_group(client: Asking) -> Command:
    config = GroupConfig("g", retry_max_times=3)
    return await client.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=config.encode())


async def pop(client: Asking) -> Command:
    return await client.ask(Code.SET_MESSAGE_REQUEST_MODE, body=MessageRequestMode("t", "g", POP).encode())


async def use_a_missing_topic(client: Asking) -> Command:
    return await client.ask(Code.GET_ROUTEINFO_BY_TOPIC, RouteHeader("t"))


async def delete(client: Asking) -> Command:
    return await client.ask(Code.DELETE_TOPIC_IN_BROKER, TopicHeader("t"))


async def change_settings(client: Asking) -> Command:
    return await client.ask(Code.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1")


async def ask_a_controller(client: Asking) -> Command:
    return await client.ask(CONTROLLER_REQUEST)


PROVOKED: dict[str, tuple[Callable[[Asking], Awaitable[Command]], dict[str, Any]]] = {
    "Recalling a timer": (recall, {}),
    "Filters by SQL92": (filter_by_sql, {}),
    "Topics: permissions, fixed order": (limit_a_topic, {}),
    "Groups: settings of their own": (configure_a_group, {}),
    "POP consumers": (pop, {}),
    "Missing topics with `create: false`": (use_a_missing_topic, {"create": False}),
    "Deleting, resetting and changing without `manage: true`": (delete, {}),
    "Changing settings of brokers and name servers": (change_settings, {}),
    "Other requests: of controllers, users and their rights, cold data": (ask_a_controller, {}),
}
"""How each refused feature is asked for, and the options with which it is refused, by its row in the table."""
REFUSED = [row for row in TABLE if any(row.cell(backing).support is Support.REFUSED for backing in BACKINGS)]


def test_every_refused_feature_is_asked_for() -> None:
    assert {row.feature for row in REFUSED} == PROVOKED.keys()


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.feature)
@pytest.mark.parametrize("groups", ["own", "backing"])
async def test_a_refused_feature_has_its_text_and_its_code(row: SupportRow, groups: str, tmp_path: Path) -> None:
    provoke, options = PROVOKED[row.feature]
    cell = row.cell(BACKINGS[0])
    async with asking(tmp_path, groups=groups, **options) as client:
        answer = await provoke(client)
    assert cell.text in (answer.remark or "")
    assert answer.code == getattr(Status, cell.code)


async def test_tools_delete_the_settings_of_a_topic_that_has_none(tmp_path: Path) -> None:
    async with asking(tmp_path) as client:
        answer = await client.ask(Code.DELETE_KV_CONFIG)
    assert answer.code == Status.SUCCESS
