"""Deleted ledgers of a real topic: a gap is reported for unacknowledged messages, and only if they certainly existed.

The end of a ledger is the beginning of the next one, and the broker cannot tell how many entries a deleted ledger held.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.errors import GapError
from mqbridge.message import Position
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.wire.names import parse_topic
from tests.kit.pulsar import Pulsar as Server
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.gap_scene import IDLE_S, Scene, warnings

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def scene(pulsar: Server, tmp_path: Path) -> AsyncIterator[Scene]:
    admin = Admin(pulsar.admin_url, 20.0)
    scene = Scene(pulsar, admin, tmp_path)
    yield scene
    scene.delete_target()
    await admin.close()


# --- a route ----------------------------------------------------------------------------------------------------------


thorough = pytest.mark.thorough


@pytest.mark.parametrize(
    ("partitions", "admin"),
    [(3, True), (0, False), pytest.param(0, True, marks=thorough), pytest.param(3, False, marks=thorough)],
)
async def test_a_deleted_ledger_that_was_delivered_is_no_gap(scene, caplog, partitions, admin):
    await scene.create(partitions)
    await scene.run(admin=admin)
    await scene.send(30)
    assert (await scene.run(admin=admin)).clean
    await scene.delete_ledgers()
    await scene.send(9)
    result = await scene.run(admin=admin)
    assert (result.clean, scene.copied) == (True, list(range(39)))
    assert warnings(caplog) == []


@pytest.mark.parametrize("admin", [True, pytest.param(False, marks=thorough)])
async def test_several_ledgers_deleted_during_maintenance_are_no_gap(scene, caplog, admin):
    """The gateway is also started while the partitions hold no message at all."""
    await scene.create(2)
    await scene.run(admin=admin)
    for expected in (10, 20):
        await scene.send(10)
        assert (await scene.run(admin=admin)).clean
        for _ in range(3):
            await scene.delete_ledgers()
        assert (await scene.run(admin=admin)).clean
        assert scene.copied == list(range(expected))
    await scene.send(10)
    assert (await scene.run(admin=admin)).clean
    assert scene.copied == list(range(30))
    assert warnings(caplog) == []


async def test_deleted_ledgers_are_no_gap_when_a_route_opens_again(scene, caplog):
    """A new topic that matches makes a running route assign all partitions again."""
    await scene.create(2)
    gateway = scene.gateway(topic="~orders.*", refresh="1s")
    running = asyncio.ensure_future(gateway.run())
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while not gateway.ready:
                await asyncio.sleep(0.05)
            for expected in (10, 20):
                await scene.send(10)
                while scene.copied != list(range(expected)):
                    await asyncio.sleep(0.05)
                await scene.acknowledged()
                await scene.delete_ledgers()
            (route,) = gateway.routes
            await scene.admin.create(parse_topic(f"{scene.topic}-new"), 0)
            while len(route.state.deliveries) + len(route.state.stopped) < 3:
                await asyncio.sleep(0.05)
            await scene.send(10)
            while scene.copied != list(range(30)):
                assert route.state.stopped == {}
                await asyncio.sleep(0.05)
            assert route.state.memberships == 2
    finally:
        gateway.stop()
        await running
    assert [text for text in warnings(caplog) if "lost" in text or "unread" in text or "ends at" in text] == []
    assert route.state.counters.possible_gaps == 0


async def test_messages_skipped_by_an_operator_are_no_gap(scene, caplog):
    await scene.create(0)
    await scene.run()
    await scene.send(10)
    await scene.run()
    await scene.send(5)
    await scene.admin.skip_all(parse_topic(scene.topic), "g")
    await scene.delete_ledgers()
    await scene.send(5)
    assert (await scene.run()).clean
    assert scene.copied == [*range(10), *range(15, 20)]
    assert warnings(caplog) == []


async def expire(scene: Scene) -> None:
    """Let a time to live take the unread messages; the broker itself checks for them every five minutes."""
    await scene.admin.set_policy(scene.namespace, "messageTTL", 1)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while (await scene.admin.stats(scene.partitions[0])).backlog["g"]:
            await asyncio.sleep(0.5)
            await scene.admin.expire(parse_topic(scene.topic), "g", 1)


async def skip_with_quota(scene: Scene) -> None:
    """Move the subscription as an evicting backlog quota does, where such a quota is set."""
    quota = {"limitSize": 1 << 30, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    await scene.admin.set_policy(scene.namespace, "backlogQuota", quota)
    await scene.admin.skip_all(parse_topic(scene.topic), "g")


async def skip_unseen(scene: Scene) -> None:
    await scene.admin.skip_all(parse_topic(scene.topic), "g")


async def delete_subscription(scene: Scene) -> None:
    await scene.admin.delete_subscription(parse_topic(scene.topic), "g")


@pytest.mark.parametrize(
    ("take", "admin"),
    [
        (expire, True),
        (skip_unseen, False),
        (delete_subscription, True),
        pytest.param(expire, False, marks=thorough),
        pytest.param(skip_with_quota, True, marks=thorough),
        pytest.param(delete_subscription, False, marks=thorough),
    ],
)
async def test_messages_that_may_have_been_deleted_unread_are_a_warning(scene, caplog, take, admin):
    """The broker cannot tell whether another consumer had read them."""
    await scene.create(0)
    await scene.run(admin=admin)
    await scene.send(10)
    await scene.run(admin=admin)
    await scene.send(5)
    await take(scene)
    await scene.delete_ledgers()
    await scene.send(5)
    gateway = scene.gateway(admin=admin)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert (await gateway.run(IDLE_S)).clean
    assert scene.copied == [*range(10), *range(15, 20)]
    (warning,) = warnings(caplog)
    assert "cannot tell whether unread messages were in it" in warning
    assert gateway.routes[0].state.counters.possible_gaps == 1
    caplog.clear()
    await scene.send(5)
    assert (await scene.run(admin=admin)).clean
    assert warnings(caplog) == [], "the position of the warning is passed"


async def test_messages_known_to_be_deleted_unread_stop_the_partition(scene, caplog):
    """The same gateway has seen that there were messages after its position, and the subscription is new."""
    await scene.create(0)
    await scene.run()
    await scene.send(10)
    await scene.run()
    cluster = scene.cluster()
    await scene.send(5)
    bounds = (await cluster.bounds(scene.topic))["-1"]
    delivered = (bounds.next[0], bounds.next[1] - 5, 0)
    await delete_subscription(scene)
    await scene.delete_ledgers()
    await scene.send(5)
    first = (await cluster.bounds(scene.topic))["-1"].first
    assert await cluster.deleted_unread(scene.topic, "-1", "g", delivered, first) is True
    assert await cluster.deleted_unread(scene.topic, "-1", "g", bounds.next, first) is None
    await cluster.close()


# --- a range ----------------------------------------------------------------------------------------------------------


async def read(cluster: Pulsar, topic: str, begin: Position, end: Position | None) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(SERVER_PATIENCE_S), aclosing(cluster.read(topic, "-1", begin, end)) as batches:
        async for batch in batches:
            found += [int(message.payload or b"") for message in batch.messages]
    return found


async def deleted_then_sent(scene: Scene, cluster: Pulsar) -> tuple[Position, Position, Position]:
    """Store 10 messages, delete them, and store 5 others; return where the first, the deleted and all of them end."""
    await scene.create(0)
    await scene.send(10)
    old = (await cluster.bounds(scene.topic))["-1"]
    await scene.delete_ledgers()
    await scene.send(5)
    return old.first, old.next, (await cluster.bounds(scene.topic))["-1"].next


@pytest.mark.parametrize("admin", [True, False], ids=["with admin_url", "without admin_url"])
async def test_a_range_from_the_end_of_a_deleted_ledger_is_read(scene, caplog, admin):
    cluster = scene.cluster(admin=admin)
    _, border, end = await deleted_then_sent(scene, cluster)
    other = scene.cluster(admin=admin)
    assert await read(cluster, scene.topic, border, end) == list(range(10, 15))
    for _ in range(2):
        assert await read(other, scene.topic, border, end) == list(range(10, 15))
    assert len(warnings(caplog)) == 2, "one per cluster, although this position was read three times"
    await cluster.close()
    await other.close()


@pytest.mark.parametrize("is_emptied", [False, True])
async def test_deleted_messages_of_a_range_are_a_gap(scene, is_emptied):
    """The range itself tells that they existed: it begins at a ledger's first message, or ends after an entry of the ledger."""
    cluster = scene.cluster()
    first, border, end = await deleted_then_sent(scene, cluster)
    await cluster.close()
    if is_emptied:
        await scene.delete_ledgers()
    ledger, entry, _ = border
    for begin, until in ((first, end), ((ledger, entry - 5, 0), border), ((ledger, entry - 1, 0), border)):
        fresh = scene.cluster()
        with pytest.raises(GapError, match="were deleted before they were read"):
            await read(fresh, scene.topic, begin, until)
        await fresh.close()


async def test_messages_within_known_bounds_are_a_gap_once_they_are_deleted(scene):
    cluster = scene.cluster()
    _, border, end = await deleted_then_sent(scene, cluster)
    with pytest.raises(GapError):
        await read(cluster, scene.topic, (border[0], border[1] - 5, 0), end)
    await cluster.close()
