"""Moving groups while consumers get, register and lose their partitions."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, LaneRevoked
from mqbridge.listener.topics import ListenedTopic
from mqbridge.tubemq.server.lanes import PartitionId
from mqbridge.tubemq.server.partition import PartitionOwnership, ServedPartition
from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.server.web.positions import GroupPosition, GroupPositions
from tests.patience import PATIENCE_S
from tests.tubemq.server.serving import GROUP, TOPIC, bodies_of, until
from tests.tubemq.server.web.web_bench import TubeMQWeb, web_bench

BODIES = [b"a", b"b", b"c", b"d"]


class Bench:
    """A consumer with one partition, and the positions of its group."""

    def __init__(self, web: TubeMQWeb, topic: ListenedTopic) -> None:
        self.web, self.topic = web, topic
        self.positions = GroupPositions(web.served.broker, web.served.server.consumers)

    @property
    def partition(self) -> ServedPartition:
        """The partition of the group."""
        return self.web.served.server.consumers.groups[GROUP].partitions[PartitionId(TOPIC, 0)]

    async def move(self, number: int) -> None:
        """Move the group."""
        await self.positions.move(self.topic, GROUP, {0: number})


@pytest_asyncio.fixture(params=[True, False], ids=["own", "backing"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    async with web_bench(owns_groups=request.param) as web:
        topic = await web.served.create()
        producer = await web.served.connect("p")
        await producer.store(*BODIES)
        yield Bench(web, topic)


def slowed(ask: Callable[..., Awaitable[Any]], begun: asyncio.Event, go_on: asyncio.Event) -> Callable[..., Awaitable[Any]]:
    """Return a function that waits before it asks."""

    async def wait(*values: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await ask(*values)

    return wait


async def test_a_confirmation_during_a_move_has_no_effect(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = await bench.web.consume()
    assert bodies_of(await consumer.pack()) == BODIES
    begun, go_on = asyncio.Event(), asyncio.Event()
    lanes = bench.web.served.server.consumers.groups[GROUP].lanes
    monkeypatch.setattr(lanes, "move", slowed(lanes.move, begun, go_on))
    moving = asyncio.ensure_future(bench.move(2))
    await begun.wait()
    assert (await consumer.confirm()).currOffset == 0
    go_on.set()
    await moving
    assert await bench.positions.of(bench.topic, GROUP) == {0: GroupPosition(2, 2)}
    assert bodies_of(await consumer.pack(consumed=True)) == BODIES[2:]


async def test_a_consumer_that_commits_by_itself_reads_on_from_the_new_position(bench: Bench) -> None:
    consumer = await bench.web.consume()
    assert bodies_of(await consumer.pack(manualCommitOffset=True)) == BODIES
    await bench.move(1)
    assert bodies_of(await consumer.pack(manualCommitOffset=True)) == BODIES[1:]


async def test_a_move_while_a_partition_is_registered_holds(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = await bench.web.served.connect("c")
    await consumer.join()
    await consumer.assigned()
    begun, go_on = asyncio.Event(), asyncio.Event()
    lanes = bench.web.served.server.consumers.groups[GROUP].lanes
    monkeypatch.setattr(lanes, "open", slowed(lanes.open, begun, go_on))
    owning = asyncio.ensure_future(consumer.own())
    await begun.wait()
    assert bench.partition.state is PartitionOwnership.OPENING
    moving = asyncio.ensure_future(bench.move(3))
    await asyncio.sleep(0)
    go_on.set()
    assert (await owning).errCode == 200
    await moving
    assert bodies_of(await consumer.pack()) == BODIES[3:]


async def test_a_move_goes_on_if_its_client_is_gone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = await bench.web.consume()
    begun, go_on = asyncio.Event(), asyncio.Event()
    lanes = bench.web.served.server.consumers.groups[GROUP].lanes
    monkeypatch.setattr(lanes, "move", slowed(lanes.move, begun, go_on))
    moving = asyncio.ensure_future(bench.move(2))
    await begun.wait()
    moving.cancel()
    go_on.set()
    await until(lambda: bench.partition.confirmed == 2)
    assert bodies_of(await consumer.pack()) == BODIES[2:]


async def test_a_partition_that_nobody_owns_is_not_moved_by_itself(bench: Bench) -> None:
    consumer = await bench.web.consume()
    partition = bench.partition
    await consumer.leave()
    await until(lambda: partition.feed is None)
    assert not await partition.move(1)
    await bench.move(1)
    async with asyncio.timeout(PATIENCE_S):  # the cluster knows it after a short delay
        while (await bench.positions.of(bench.topic, GROUP))[0].confirmed != 1:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [LaneRevoked("gone"), ClusterError("no answer", Failure.RETRY)])
async def test_a_move_that_fails_changes_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    consumer = await bench.web.consume()
    await consumer.get()

    async def fail(*_: object) -> None:
        raise error

    lanes = bench.web.served.server.consumers.groups[GROUP].lanes
    monkeypatch.setattr(lanes, "move", fail)
    with pytest.raises((CodedRefusal, ClusterError)):
        await bench.move(2)
    assert bench.partition.confirmed == 0
    assert bodies_of(await consumer.pack()) == BODIES
