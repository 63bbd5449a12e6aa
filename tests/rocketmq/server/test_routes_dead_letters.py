"""Routes of the topics that the listener makes for groups, before these topics exist."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener, ListenerSettings
from mqbridge.listener.server import load_servers
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from tests.kit import rocketmq_remoting as remoting


@asynccontextmanager
async def serving_log(folder: Path) -> AsyncIterator[tuple[LogCluster, str]]:
    """Serve a log to RocketMQ clients; yield it, and the address for clients."""
    cluster = LogCluster("store", LogSettings(path=str(folder / "log.db")))
    await cluster.connect()
    store = GroupStore(folder / "groups.db")
    settings = ListenerSettings(
        name="app", system="rocketmq", host="127.0.0.1", port=0, web=None, advertise=None, cluster="store", topics="{topic}",
        owns_groups=True, group="{group}", parking="mqbridge-app", create_partitions=1, manage=True, deduplicate=False,
        dead_letter_cluster="store", dead_letter_topic="mqbridge-dead-app", connections=1000, in_flight_bytes=64 << 20,
        unacknowledged_bytes=64 << 20, unacknowledged_span=10_000,
    )  # fmt: skip
    listener = Listener(settings, load_servers()["rocketmq"], cluster, cluster, store, "me")
    listener.bind()
    await listener.start()
    yield cluster, f"127.0.0.1:{listener.port.port}"
    await listener.close(asyncio.get_running_loop().time() + 5)
    await store.close()
    await cluster.close()


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[str]:
    async with serving_log(tmp_path) as (_, at):
        yield at


async def route_status(address: str, topic: str) -> int:
    fields = {"topic": topic, "acceptStandardJsonOnly": True}
    return (await asyncio.to_thread(remoting.request, address, remoting.GET_ROUTEINFO_BY_TOPIC, fields)).status


@pytest.mark.parametrize("topic", ["%RETRY%g", "RMQ_SYS_TRACE_TOPIC"])
async def test_topics_that_clients_use_by_themselves_have_a_route_at_once(address: str, topic: str) -> None:
    assert await route_status(address, topic) == remoting.SUCCESS


async def test_a_dead_letter_topic_has_a_route_when_it_exists(address: str) -> None:
    """Who reads dead letters waits for the route: with one, it would pull, and fail."""
    assert await route_status(address, "%DLQ%g") == remoting.TOPIC_NOT_EXIST
    fields = {
        "a": "p", "b": "%DLQ%g", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": "", "j": 0,
        "k": False, "m": False,
    }  # fmt: skip
    await asyncio.to_thread(remoting.call, address, remoting.SEND_MESSAGE_V2, fields, b"dead")
    assert await route_status(address, "%DLQ%g") == remoting.SUCCESS
