"""A gap is reported when a Broker has deleted messages that the group had not read, and only then.

All partitions of a store share one index, so the messages of a partition are not next to each other. A get that finds no message
moves the group's position past the messages of other partitions, and its response does not say so.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqbridge import TubeMQClient
from tests.kit.gateway import GatewayProcess
from tests.kit.tcp_proxy import Network
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_admin import STORE_SETTINGS
from tests.kit.tubemq_settings import SHORT_SEGMENTS
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.mirror import (
    Mirror,
    assert_runs,
    numbered,
    round_robin,
    send,
    wait_assigned,
    wait_for,
    wait_pack_out,
    wait_route,
)
from tests.tubemq.real import fresh_group, until

pytestmark = pytest.mark.cluster

ADMIN = pytest.mark.parametrize(
    "admin", [pytest.param(True, id="admin_url"), pytest.param(False, id="no admin_url", marks=pytest.mark.thorough)]
)
TARGET_PAUSE_S = 8.0
"""Longer than SLOW_READER_S: after it, the gateway asks the Broker for the end of each pack."""
SILENCE_S = 45.0
"""Longer than the Broker's lease (20 s) and the Master's (15 s)."""


# --- what no partition may stop at --------------------------------------------------------------------------------------------


@ADMIN
async def test_slow_round_robin_traffic_and_a_restart_stop_no_partition(tubemq: TubeMQ, tmp_path: Path, admin: bool) -> None:
    topic = tubemq.take_topic(4)
    mirror = Mirror(tubemq, topic, tmp_path, admin=admin)
    for _ in range(2):
        with mirror.gateway() as gateway:
            await wait_assigned(gateway, 4)
            async with round_robin(tubemq, topic) as sent:
                await until(lambda: len(sent) >= 16)
            await mirror.finish(gateway)
            assert set(sent) <= set(await mirror.stored())
            await mirror.wait_caught_up()
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


@pytest.mark.thorough
@pytest.mark.parametrize("first", [0, 5], ids=["empty", "caught up"])
async def test_a_sibling_partition_gets_messages_first(tubemq: TubeMQ, tmp_path: Path, first: int) -> None:
    """A group is registered at a partition without unread messages; another partition of its store gets the next ones."""
    topic = tubemq.take_topic(2)
    mirror = Mirror(tubemq, topic, tmp_path)
    if first:
        await send(tubemq, topic, {0: numbered("a", first), 1: numbered("b", first)})
        with mirror.gateway() as gateway:
            await mirror.wait_stored([*numbered("a", first), *numbered("b", first)], gateway)
            await mirror.wait_caught_up()
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    with mirror.gateway() as gateway:
        await wait_assigned(gateway, 2)
        for partition in (0, 1, 0, 1):
            payloads = numbered(f"then {partition}", 5)
            await send(tubemq, topic, {partition: payloads})
            await mirror.wait_stored(payloads, gateway)
            await mirror.wait_caught_up()
        await mirror.finish(gateway)


@pytest.mark.thorough
async def test_a_target_that_pauses_stops_no_partition(tubemq: TubeMQ, tmp_path: Path) -> None:
    topic = tubemq.take_topic(2)
    mirror = Mirror(tubemq, topic, tmp_path)
    await send(tubemq, topic, {0: numbered("a", 5), 1: numbered("b", 5)})
    with mirror.gateway() as gateway:
        await mirror.wait_stored(numbered("a", 5) + numbered("b", 5), gateway)
        await mirror.wait_caught_up()
        with mirror.target_away():
            await send(tubemq, topic, {0: [b"late"]})
            await wait_pack_out(gateway, 1)
            await asyncio.sleep(TARGET_PAUSE_S)
        await mirror.wait_stored([b"late"], gateway)
        for number, partition in enumerate((1, 0, 1, 0)):
            payload = b"then %d" % number
            await send(tubemq, topic, {partition: [payload]})
            await mirror.wait_stored([payload], gateway)
            await mirror.wait_caught_up()


async def test_a_public_consumer_meets_no_gap_in_slow_traffic(tubemq: TubeMQ) -> None:
    topic, group = tubemq.take_topic(4), fresh_group()
    found: set[bytes | None] = set()
    for _ in range(2):
        async with TubeMQClient(f"tubemq://{tubemq.masters}") as client, client.consumer(topic, group=group) as consumer:
            await until(lambda: len(consumer.partitions) == 4)
            async with round_robin(tubemq, topic) as sent, asyncio.timeout(SERVER_PATIENCE_S):
                while len(sent) < 16 or not found.issuperset(sent):
                    message = await consumer.receive()  # raises GapError
                    consumer.acknowledge(message)
                    found.add(message.payload)
            await consumer.flush()


# --- retention ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forgetful() -> Iterator[TubeMQ]:
    """A cluster that deletes messages 10 s after they were sent, at its next check: at most a minute later."""
    settings = {**STORE_SETTINGS, "deletePolicy": "delete,10s"}
    with TubeMQ(pool={1: 4, 2: 2, 4: 1}, store_settings=settings, segments=SHORT_SEGMENTS) as cluster:
        yield cluster


async def wait_deleted(mirror: Mirror) -> None:
    """Wait until the Broker has deleted all messages sent so far."""
    end = {name: bounds.next for name, bounds in (await mirror.bounds()).items()}

    async def deleted() -> bool:
        return all(bounds.first >= end[name] for name, bounds in (await mirror.bounds()).items())

    await wait_for(deleted)


async def wait_stopped(gateway: GatewayProcess, *partitions: int) -> None:
    """Wait until the gateway has stopped these partitions because of a gap."""

    def stopped(route: dict[str, object]) -> bool:
        names = str(route.get("stopped", {}))
        return all(f"/1:{partition}" in names for partition in partitions)

    await wait_route(gateway, stopped)
    assert "lost" in str((await asyncio.to_thread(gateway.route))["stopped"])


@pytest.mark.thorough
@ADMIN
async def test_a_restart_after_retention_deleted_delivered_messages(forgetful: TubeMQ, tmp_path: Path, admin: bool) -> None:
    topic = forgetful.take_topic(1)
    mirror = Mirror(forgetful, topic, tmp_path, admin=admin)
    with mirror.gateway() as gateway:
        for name in "ab":
            await send(forgetful, topic, {0: numbered(name, 200, 100)})
            await mirror.wait_stored(numbered(name, 200, 100), gateway)
        await mirror.wait_caught_up()
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    await wait_deleted(mirror)
    with mirror.gateway() as gateway:
        await wait_assigned(gateway, 1)
        await mirror.finish(gateway)


@pytest.mark.thorough
async def test_a_silent_network_after_retention_deleted_delivered_messages(forgetful: TubeMQ, tmp_path: Path) -> None:
    topic = forgetful.take_topic(1)
    mirror = Mirror(forgetful, topic, tmp_path)
    async with Network([("127.0.0.1", forgetful.broker_port)]) as network:
        with mirror.gateway(network=network) as gateway:
            for name in "ab":
                await send(forgetful, topic, {0: numbered(name, 200, 100)})
                await mirror.wait_stored(numbered(name, 200, 100), gateway)
            await wait_deleted(mirror)
            (link,) = network.links.values()
            link.passes.clear()
            await asyncio.sleep(SILENCE_S)
            network.heal()
            await mirror.finish(gateway)


@pytest.mark.thorough
@pytest.mark.parametrize("unread", [False, True], ids=["read", "unread"])
async def test_an_idle_partition_whose_siblings_messages_were_deleted(forgetful: TubeMQ, tmp_path: Path, unread: bool) -> None:
    """Whether the messages of the sibling were read or not, the idle partition has lost nothing."""
    topic = forgetful.take_topic(2)
    mirror = Mirror(forgetful, topic, tmp_path)
    await send(forgetful, topic, {1: numbered("idle", 5, 100)})
    with mirror.gateway() as gateway:
        await mirror.wait_stored(numbered("idle", 5, 100), gateway)
        busy = numbered("busy", 300, 100)
        if not unread:
            await send(forgetful, topic, {0: busy})
            await mirror.wait_stored(busy, gateway)
            await mirror.wait_caught_up()
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    if unread:
        await send(forgetful, topic, {0: busy})
    await wait_deleted(mirror)
    with mirror.gateway() as gateway:
        await wait_assigned(gateway, 2)
        await send(forgetful, topic, {1: [b"then"]})

        async def read_on() -> bool:
            stopped = (await asyncio.to_thread(gateway.route)).get("stopped", {})
            assert not any("/1:1" in name for name in stopped), stopped
            return b"then" in await mirror.stored()

        await wait_for(read_on)
        if not unread:
            await mirror.finish(gateway)


@pytest.mark.thorough
@ADMIN
async def test_unread_messages_deleted_while_the_gateway_is_away_are_a_gap(
    forgetful: TubeMQ, tmp_path: Path, admin: bool
) -> None:
    topic = forgetful.take_topic(1)
    mirror = Mirror(forgetful, topic, tmp_path, admin=admin)
    await send(forgetful, topic, {0: numbered("a", 200, 100)})
    with mirror.gateway() as gateway:
        await mirror.wait_stored(numbered("a", 200, 100), gateway)
        await mirror.wait_caught_up()
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    await send(forgetful, topic, {0: numbered("unread", 300, 100)})
    await wait_deleted(mirror)
    with mirror.gateway() as gateway:
        await send(forgetful, topic, {0: [b"then"]})
        await wait_stopped(gateway, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("partitions", [1, 4])
async def test_unread_messages_deleted_under_a_slow_reader_are_a_gap(forgetful: TubeMQ, tmp_path: Path, partitions: int) -> None:
    """All partitions are filled evenly, and the target is away until retention has deleted the messages after the first packs."""
    topic = forgetful.take_topic(partitions)
    mirror = Mirror(forgetful, topic, tmp_path)
    first = {partition: numbered(f"first {partition}", 5) for partition in range(partitions)}
    await send(forgetful, topic, first)
    with mirror.gateway() as gateway:
        await mirror.wait_stored([payload for each in first.values() for payload in each], gateway)
        await mirror.wait_caught_up()
        with mirror.target_away():
            for _ in range(3):
                backlog = {partition: numbered(f"unread {partition}", 150, 1000) for partition in range(partitions)}
                await send(forgetful, topic, backlog)
            await wait_pack_out(gateway, partitions)
            end = {name: bounds.next for name, bounds in (await mirror.bounds()).items()}
            async with round_robin(forgetful, topic):  # so that the Broker holds messages after those that it deletes

                async def deleted() -> bool:
                    await assert_runs(gateway, "nothing is deleted yet")
                    return all(bounds.first >= end[name] for name, bounds in (await mirror.bounds()).items())

                await wait_for(deleted)
        await wait_stopped(gateway, *range(partitions))
