"""Acknowledged messages are not delivered again, others are, whichever member of the group reads."""

import asyncio

import pytest

from mqbridge.adapter.cluster import Capabilities, Cluster
from mqbridge.adapter.inbound import Inbound, InboundLane, Start, ask_caught_up
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Share
from mqbridge.net.tasks import cancel, spawn
from tests.conformance.arena import Arena, fresh_group, numbered, numbers
from tests.patience import PATIENCE_S


async def test_the_next_member_resumes_after_acknowledged_messages(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    inbound = await arena.inbound(cluster, topic, group)
    lane = await arena.lane(inbound)
    await arena.send(outbound, 0, numbered(0, 30))
    await arena.take(lane, 30)
    await arena.send(outbound, 0, numbered(30, 50))
    await arena.receive(lane)
    await arena.within(inbound.close())
    lane = await arena.lane(await arena.inbound(cluster, topic, group))
    received, _ = await arena.take(lane, 20)
    assert numbers(received) == list(range(30, 50))


async def test_rejected_batches_are_redelivered(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    inbound = await arena.inbound(cluster, topic, fresh_group())
    lane = await arena.lane(inbound)
    await arena.send(outbound, 0, numbered(0, 10))
    await arena.take(lane, 10)
    await arena.send(outbound, 0, numbered(10, 20))
    for _ in range(2):
        lane.reject(await arena.receive(lane))
    received, _ = await arena.take(lane, 10)
    assert sorted(numbers(received)) == list(range(10, 20))
    assert inbound.individual_ack or numbers(received) == list(range(10, 20))
    await arena.send(outbound, 0, numbered(20, 25))
    received, _ = await arena.take(lane, 5)
    assert numbers(received) == list(range(20, 25))


async def test_unacknowledged_messages_of_a_released_lane_are_redelivered(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    inbound = await arena.inbound(cluster, topic, group)
    lane = await arena.lane(inbound)
    await arena.send(outbound, 0, numbered(0, 10))
    await arena.take(lane, 10)
    await arena.send(outbound, 0, numbered(10, 20))
    await arena.receive(lane)
    await arena.within(lane.release())
    with pytest.raises(LaneRevoked):
        await arena.within(lane.receive())
    await arena.within(inbound.close())
    lane = await arena.lane(await arena.inbound(cluster, topic, group))
    received, _ = await arena.take(lane, 10)
    assert numbers(received) == list(range(10, 20))


async def test_a_batch_whose_contents_were_dropped_is_acknowledged(arena: Arena, cluster: Cluster) -> None:
    if not cluster.capabilities.acknowledges_dropped:
        pytest.skip("finds in the contents what it acknowledges")
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    inbound = await arena.inbound(cluster, topic, group)
    lane = await arena.lane(inbound)
    await arena.send(outbound, 0, numbered(0, 10))
    _, batches = await arena.take(lane, 10, acknowledge=False)
    for batch in batches:
        batch.drop_contents()
        lane.acknowledge(batch)
    await arena.send(outbound, 0, numbered(10, 20))
    await arena.within(lane.receive())
    await arena.within(inbound.close())
    lane = await arena.lane(await arena.inbound(cluster, topic, group))
    received, _ = await arena.take(lane, 10)
    assert numbers(received) == list(range(10, 20))


async def test_an_acknowledgement_to_a_revoked_lane_is_ignored(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    inbound = await arena.inbound(cluster, topic, group)
    lane = await arena.lane(inbound)
    await arena.send(outbound, 0, numbered(0, 10))
    batch = await arena.receive(lane)
    await arena.within(lane.release())
    lane.acknowledge(batch)
    lane.reject(batch)
    await arena.within(inbound.close())
    lane.acknowledge(batch)
    lane = await arena.lane(await arena.inbound(cluster, topic, group))
    received, _ = await arena.take(lane, 10)
    assert numbers(received) == list(range(10))


@pytest.mark.parametrize("at_once", [True, False], ids=["gap-closed", "gap-open"])
async def test_batches_can_be_acknowledged_out_of_order(arena: Arena, cluster: Cluster, at_once: bool) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    inbound = await arena.inbound(cluster, topic, group)
    if not inbound.individual_ack:
        pytest.skip("acknowledges in order only")
    lane = await arena.lane(inbound)
    for index in range(3):
        await arena.send(outbound, 0, numbered(index * 10, index * 10 + 10))
        _, batches = await arena.take(lane, 10, acknowledge=False)
        if index != 1:
            for batch in batches:
                lane.acknowledge(batch)
    await arena.within(inbound.close())
    lane = await arena.lane(await arena.inbound(cluster, topic, group))
    received, _ = await arena.take(lane, 10, acknowledge=at_once)
    assert sorted(numbers(received)) == list(range(10, 20))
    await arena.send(outbound, 0, numbered(30, 35))
    received, _ = await arena.take(lane, 5)
    assert numbers(received) == list(range(30, 35)), "what was acknowledged out of order came again"


class Reader:
    """Reads every lane of an inbound, records the messages, then acknowledges them."""

    def __init__(self, inbound: Inbound, seen: dict[int, set[int]]) -> None:
        self.lanes = 0
        self._inbound, self._seen = inbound, seen
        self._tasks = [spawn(self._run(), "test reader")]

    async def _run(self) -> None:
        async for lane in self._inbound.lanes():
            self.lanes += 1
            self._tasks.append(spawn(self._read(lane), "test lane"))

    async def _read(self, lane: InboundLane) -> None:
        try:
            while True:
                batch = await lane.receive()
                self._seen.setdefault(lane.partition.index, set()).update(numbers(batch.messages))
                lane.acknowledge(batch)
        except LaneRevoked:
            self.lanes -= 1

    async def close(self) -> None:
        await self._inbound.close()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*self._tasks)


async def test_members_share_and_hand_over_without_loss(arena: Arena, cluster: Cluster) -> None:
    partitions, group = 3, fresh_group()
    topic = await arena.topic(cluster, partitions)
    outbound = await arena.outbound(cluster, topic)
    other = await arena.cluster()
    seen: dict[int, set[int]] = {}
    sent = 0

    async def send(count: int) -> None:
        nonlocal sent
        for partition in range(partitions):
            await arena.send(outbound, partition, numbered(sent, sent + count))
        sent += count

    async def all_seen() -> bool:
        return seen == {partition: set(range(sent)) for partition in range(partitions)}

    first = Reader(await arena.inbound(cluster, topic, group), seen)
    await send(100)
    await arena.until(all_seen)
    second = Reader(await arena.inbound(other, topic, group), seen)
    await send(100)

    async def both_read() -> bool:
        await send(5)
        if not arena.harness.one_reader:
            return first.lanes == second.lanes == partitions
        return first.lanes >= 1 and second.lanes >= 1 and first.lanes + second.lanes == partitions

    await arena.until(both_read)
    await arena.until(all_seen)
    await arena.within(first.close())
    await send(100)
    await arena.until(all_seen)
    assert second.lanes == partitions
    await arena.within(second.close())
    third = await arena.inbound(cluster, topic, group)
    await send(1)
    left = [number for _ in range(partitions) for number in numbers((await arena.take(await arena.lane(third), 1))[0])]
    assert left == [sent - 1] * partitions, "what was acknowledged came again"


async def test_an_empty_topic_waits(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    waiting = spawn(lane.receive(), "test receive")

    async def caught_up() -> bool:
        return lane.caught_up

    await arena.until(lambda: ask_caught_up(lane))
    await arena.until(caught_up)
    assert not waiting.done()
    outbound = await arena.outbound(await arena.cluster(), topic)
    await arena.send(outbound, 0, numbered(0, 1))
    batch = await arena.within(waiting)
    assert numbers(batch.messages) == [0]


async def test_a_cancelled_receive_loses_nothing(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    for index in range(20):
        waiting = spawn(lane.receive(), "test receive")
        for _ in range(index % 4):
            await asyncio.sleep(0)
        await cancel(waiting)
    sending = outbound.send(0, Share(Batch.of(numbered(0, 20))))
    waiting = spawn(lane.receive(), "test receive")
    await asyncio.sleep(0.001)
    took = 0
    if waiting.done():
        took = waiting.result().count
        lane.acknowledge(waiting.result())
    else:
        await cancel(waiting)
    await arena.within(sending)
    received, _ = await arena.take(lane, 20 - took)
    assert numbers(received) == list(range(took, 20))


async def test_a_new_group_starts_at_the_earliest_or_latest_message(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(0, 10))
    earliest = await arena.lane(await arena.inbound(cluster, topic, fresh_group(), Start.EARLIEST))
    latest = await arena.lane(await arena.inbound(cluster, topic, fresh_group(), Start.LATEST))
    waiting = spawn(latest.receive(), "test receive")
    received, _ = await arena.take(earliest, 10)
    assert numbers(received) == list(range(10))

    await arena.until(lambda: ask_caught_up(latest))
    await arena.send(outbound, 0, numbered(10, 11))
    assert numbers((await arena.within(waiting)).messages) == [10]


async def test_a_committed_position_takes_precedence_over_the_start(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    outbound = await arena.outbound(cluster, topic)
    inbound = await arena.inbound(cluster, topic, group)
    lane = await arena.lane(inbound)
    await arena.send(outbound, 0, numbered(0, 5))
    await arena.take(lane, 5)
    await arena.within(inbound.close())
    await arena.send(outbound, 0, numbered(5, 10))
    lane = await arena.lane(await arena.inbound(cluster, topic, group, Start.LATEST))
    received, _ = await arena.take(lane, 5)
    assert numbers(received) == list(range(5, 10))


async def test_a_seek_continues_at_the_given_position(arena: Arena, cluster: Cluster, capabilities: Capabilities) -> None:
    if not capabilities.seek:
        pytest.skip("cannot seek")
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    await arena.send(outbound, 0, numbered(0, 10))
    _, first = await arena.take(lane, 10)
    await arena.send(outbound, 0, numbered(10, 20))
    await arena.receive(lane)
    await arena.within(lane.seek(first[-1].next))
    received, _ = await arena.take(lane, 10)
    assert numbers(received) == list(range(10, 20))
    await arena.within(lane.seek(first[0].first))
    received, _ = await arena.take(lane, 20)
    assert numbers(received) == list(range(20))
    await arena.within(lane.seek(received[4].position))
    received, _ = await arena.take(lane, 16)
    assert numbers(received) == list(range(4, 20))
