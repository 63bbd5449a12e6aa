"""Every refused feature of the support table is refused with its text and code; one that differs does what the table says."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from mqbridge.listener.support import Backing, Support
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.pulsar.server.support import BACKINGS, TABLE
from mqbridge.pulsar.wire import client_commands, codes
from mqbridge.pulsar.wire.frame import encode_command
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.pulsar.wire.topic_lists import watch_topic_list
from tests.pulsar.server.differences import SHOWN, differing, show
from tests.pulsar.server.serving import Serving, entry_frame, serving

Refused = tuple[str, str]
"""The text and the code of an error."""


def name_of(code: int) -> str:
    return codes.of(code).name


async def watch_topics(served: Serving) -> Refused:
    client = await served.connect()
    client.send(watch_topic_list(7, 1, "public/default", ".*", None))
    error = await client.answer(7)
    return error.message, name_of(error.error)


async def use_a_non_persistent_topic(served: Serving) -> Refused:
    client = await served.connect()
    client.send(client_commands.partition_metadata(7, "non-persistent://public/default/t", create=True))
    error = await client.answer(7)
    return error.message, name_of(error.error)


async def begin_a_transaction(served: Serving) -> Refused:
    client = await served.connect()
    client.send(encode_command(BaseCommand(type=BaseCommand.NEW_TXN, newTxn=pb.CommandNewTxn(request_id=7))))
    error = await client.answer(7)
    return error.message, name_of(error.error)


async def terminate(served: Serving) -> Refused:
    return await web(served, "POST", "/admin/v2/persistent/public/default/t/terminate")


async def send_a_marker(served: Serving) -> Refused:
    client = await served.connect()
    await client.produce()
    client.send(entry_frame(b"x", marker_type=10))
    error = await client.of(BaseCommand.SEND_ERROR)
    return error.message, name_of(error.error)


async def use_a_missing_topic(served: Serving) -> Refused:
    client = await served.connect()
    error = await client.produce()
    return error.message, name_of(error.error)


async def delete(served: Serving) -> Refused:
    client = await served.connect()
    await client.produce()
    return await web(served, "DELETE", "/admin/v2/persistent/public/default/t")


async def web(served: Serving, method: str, path: str) -> Refused:
    transport = httpx.ASGITransport(app=served.listener.server.web)
    async with httpx.AsyncClient(transport=transport, base_url="http://listener") as client:
        response = await client.request(method, path)
    return response.text, str(response.status_code)


PROVOKED: dict[str, tuple[Callable[[Serving], Awaitable[Refused]], dict[str, object]]] = {
    "Topic list watchers": (watch_topics, {}),
    "Non-persistent topics": (use_a_non_persistent_topic, {}),
    "Transactions": (begin_a_transaction, {}),
    "Terminated topics": (terminate, {}),
    "Markers of replication": (send_a_marker, {}),
    "Missing topics with `create: false`": (use_a_missing_topic, {"create_partitions": None}),
    "Deleting, resetting and skipping without `manage: true`": (delete, {"manage": False}),
}
"""How each refused feature is asked for, and the settings with which it is refused, by its row in the table."""
REFUSED = [row for row in TABLE if any(row.cell(backing).support is Support.REFUSED for backing in BACKINGS)]


def test_every_refused_feature_is_asked_for() -> None:
    assert {row.feature for row in REFUSED} == PROVOKED.keys()


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.feature)
@pytest.mark.parametrize("owns_groups", [True, False])
async def test_a_refused_feature_has_its_text_and_its_code(row, owns_groups: bool) -> None:
    provoke, settings = PROVOKED[row.feature]
    cell = row.cell(BACKINGS[0])
    async with serving(owns_groups=owns_groups, **settings) as served:
        text, code = await provoke(served)
    assert cell.text in text
    assert code == cell.code


def test_every_feature_that_differs_is_shown() -> None:
    """Over the log here, and over RocketMQ in `test_real_support`."""
    systems = {backing.system for backing in BACKINGS}
    assert systems == {"log", "rocketmq"}, "each has a test that shows its rows"
    assert {feature for system in systems for feature, _ in differing(system)} == SHOWN.keys()


@pytest.mark.parametrize(("feature", "backing"), differing("log"), ids=str)
async def test_a_difference_over_the_log_is_as_the_table_says(feature: str, backing: Backing, tmp_path: Path) -> None:
    cluster = LogCluster("store", LogSettings(path=str(tmp_path / "log.db"), max_message_bytes="8MiB"))
    await cluster.connect()
    try:
        await show(feature, cluster, backing, tmp_path)
    finally:
        await cluster.close()
