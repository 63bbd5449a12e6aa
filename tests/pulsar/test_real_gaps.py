"""Deleted ledgers of a real topic: a gap is reported for unacknowledged messages, and only if they certainly existed.

The end of a ledger is the beginning of the next one, and the broker cannot tell how many entries a deleted ledger held.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter import reading
from mqbridge.errors import GapError, ServerRefused
from mqbridge.message import Position
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.admin.admin_http import HTTP_CONFLICT
from mqbridge.pulsar.wire.names import parse_topic
from tests.kit.pulsar import Pulsar as Server
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.gap_environment import IDLE_S, Environment, warnings

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def environment(pulsar: Server, tmp_path: Path) -> AsyncIterator[Environment]:
    admin = Admin(pulsar.admin_url, 20.0)
    environment = Environment(pulsar, admin, tmp_path)
    yield environment
    environment.delete_target()
    await admin.close()


# --- a route ----------------------------------------------------------------------------------------------------------


thorough = pytest.mark.thorough


@pytest.mark.parametrize(
    ("partitions", "admin"),
    [(3, True), (0, False), pytest.param(0, True, marks=thorough), pytest.param(3, False, marks=thorough)],
)
async def test_a_deleted_ledger_that_was_delivered_is_no_gap(environment, caplog, partitions, admin):
    await environment.create(partitions)
    await environment.run(admin=admin)
    await environment.send(30)
    assert (await environment.run(admin=admin)).clean
    await environment.delete_ledgers()
    await environment.send(9)
    result = await environment.run(admin=admin)
    assert (result.clean, environment.copied) == (True, list(range(39)))
    assert warnings(caplog) == []


@pytest.mark.parametrize("admin", [True, pytest.param(False, marks=thorough)])
async def test_several_ledgers_deleted_during_maintenance_are_no_gap(environment, caplog, admin):
    """The gateway is also started while the partitions hold no message at all."""
    await environment.create(2)
    await environment.run(admin=admin)
    for expected in (10, 20):
        await environment.send(10)
        assert (await environment.run(admin=admin)).clean
        for _ in range(3):
            await environment.delete_ledgers()
        assert (await environment.run(admin=admin)).clean
        assert environment.copied == list(range(expected))
    await environment.send(10)
    assert (await environment.run(admin=admin)).clean
    assert environment.copied == list(range(30))
    assert warnings(caplog) == []


async def test_deleted_ledgers_are_no_gap_when_a_route_opens_again(environment, caplog):
    """A new topic that matches makes a running route assign all partitions again."""
    await environment.create(2)
    gateway = environment.gateway(topic="~orders.*", refresh="1s")
    running = asyncio.ensure_future(gateway.run())
    try:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while not gateway.ready:
                await asyncio.sleep(0.05)
            for expected in (10, 20):
                await environment.send(10)
                while environment.copied != list(range(expected)):
                    await asyncio.sleep(0.05)
                await environment.acknowledged()
                await environment.delete_ledgers()
            (route,) = gateway.routes
            await environment.admin.create(parse_topic(f"{environment.topic}-new"), 0)
            while len(route.state.deliveries) + len(route.state.stopped) < 3:
                await asyncio.sleep(0.05)
            await environment.send(10)
            while environment.copied != list(range(30)):
                assert route.state.stopped == {}
                await asyncio.sleep(0.05)
            assert route.state.memberships == 2
    finally:
        gateway.stop()
        await running
    assert [text for text in warnings(caplog) if "lost" in text or "unread" in text or "ends at" in text] == []
    assert route.state.counters.possible_gaps == 0


async def test_messages_skipped_by_an_operator_are_no_gap(environment, caplog):
    await environment.create(0)
    await environment.run()
    await environment.send(10)
    await environment.run()
    await environment.send(5)
    await environment.admin.skip_all(parse_topic(environment.topic), "g")
    await environment.delete_ledgers()
    await environment.send(5)
    assert (await environment.run()).clean
    assert environment.copied == [*range(10), *range(15, 20)]
    assert warnings(caplog) == []


async def expire(environment: Environment) -> None:
    """Let a time to live take the unread messages, as the broker itself does every five minutes.

    The policy has a longer time, so that the broker takes no messages that are sent later. It refuses to expire (409) while it
    does so already, and if nothing is unread any more.
    """
    await environment.admin.set_policy(environment.namespace, "messageTTL", 3600)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while (await environment.admin.stats(environment.partitions[0])).backlog["g"]:
            await asyncio.sleep(0.5)
            try:
                await environment.admin.expire(parse_topic(environment.topic), "g", 1)
            except ServerRefused as error:
                if error.code != HTTP_CONFLICT:
                    raise


async def skip_with_quota(environment: Environment) -> None:
    """Move the subscription as an evicting backlog quota does, where such a quota is set."""
    quota = {"limitSize": 1 << 30, "limitTime": -1, "policy": "consumer_backlog_eviction"}
    await environment.admin.set_policy(environment.namespace, "backlogQuota", quota)
    await environment.admin.skip_all(parse_topic(environment.topic), "g")


async def skip_unseen(environment: Environment) -> None:
    await environment.admin.skip_all(parse_topic(environment.topic), "g")


async def delete_subscription(environment: Environment) -> None:
    await environment.admin.delete_subscription(parse_topic(environment.topic), "g")


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
async def test_messages_that_may_have_been_deleted_unread_are_a_warning(environment, caplog, take, admin):
    """The broker cannot tell whether another consumer had read them."""
    await environment.create(0)
    await environment.run(admin=admin)
    await environment.send(10)
    await environment.run(admin=admin)
    await environment.send(5)
    await take(environment)
    await environment.delete_ledgers()
    await environment.send(5)
    gateway = environment.gateway(admin=admin)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert (await gateway.run(IDLE_S)).clean
    assert environment.copied == [*range(10), *range(15, 20)]
    (warning,) = warnings(caplog)
    assert "cannot tell whether unread messages were in it" in warning
    assert gateway.routes[0].state.counters.possible_gaps == 1
    caplog.clear()
    await environment.send(5)
    assert (await environment.run(admin=admin)).clean
    assert warnings(caplog) == [], "the position of the warning is passed"


async def test_messages_known_to_be_deleted_unread_stop_the_partition(environment, caplog):
    """The same gateway has seen that there were messages after its position, and the subscription is new."""
    await environment.create(0)
    await environment.run()
    await environment.send(10)
    await environment.run()
    cluster = environment.cluster()
    await environment.send(5)
    bounds = (await cluster.bounds(environment.topic))["-1"]
    delivered = (bounds.next[0], bounds.next[1] - 5, 0)
    await delete_subscription(environment)
    await environment.delete_ledgers()
    await environment.send(5)
    first = (await cluster.bounds(environment.topic))["-1"].first
    assert await cluster.deleted_unread(environment.topic, "-1", "g", delivered, first) is True
    assert await cluster.deleted_unread(environment.topic, "-1", "g", bounds.next, first) is None
    await cluster.close()


# --- a range ----------------------------------------------------------------------------------------------------------


async def read(cluster: Pulsar, topic: str, begin: Position, end: Position | None) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(SERVER_PATIENCE_S), aclosing(reading.read(cluster, topic, "-1", begin, end)) as batches:
        async for batch in batches:
            found += [int(message.payload or b"") for message in batch.messages]
    return found


async def deleted_then_sent(environment: Environment, cluster: Pulsar) -> tuple[Position, Position, Position]:
    """Store 10 messages, delete them, and store 5 others; return where the first, the deleted and all of them end."""
    await environment.create(0)
    await environment.send(10)
    old = (await cluster.bounds(environment.topic))["-1"]
    await environment.delete_ledgers()
    await environment.send(5)
    return old.first, old.next, (await cluster.bounds(environment.topic))["-1"].next


@pytest.mark.parametrize("admin", [True, False], ids=["with admin_url", "without admin_url"])
async def test_a_range_from_the_end_of_a_deleted_ledger_is_read(environment, caplog, admin):
    cluster = environment.cluster(admin=admin)
    _, border, end = await deleted_then_sent(environment, cluster)
    other = environment.cluster(admin=admin)
    assert await read(cluster, environment.topic, border, end) == list(range(10, 15))
    for _ in range(2):
        assert await read(other, environment.topic, border, end) == list(range(10, 15))
    assert len(warnings(caplog)) == 2, "one per cluster, although this position was read three times"
    await cluster.close()
    await other.close()


@pytest.mark.parametrize("is_emptied", [False, True])
async def test_deleted_messages_of_a_range_are_a_gap(environment, is_emptied):
    """The range itself tells that they existed: it begins at a ledger's first message, or ends after an entry of the ledger."""
    cluster = environment.cluster()
    first, border, end = await deleted_then_sent(environment, cluster)
    await cluster.close()
    if is_emptied:
        await environment.delete_ledgers()
    ledger, entry, _ = border
    for begin, until in ((first, end), ((ledger, entry - 5, 0), border), ((ledger, entry - 1, 0), border)):
        fresh = environment.cluster()
        with pytest.raises(GapError, match="were deleted before they were read"):
            await read(fresh, environment.topic, begin, until)
        await fresh.close()


async def test_messages_within_known_bounds_are_a_gap_once_they_are_deleted(environment):
    cluster = environment.cluster()
    _, border, end = await deleted_then_sent(environment, cluster)
    with pytest.raises(GapError):
        await read(cluster, environment.topic, (border[0], border[1] - 5, 0), end)
    await cluster.close()
