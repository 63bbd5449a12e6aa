"""Packs that were out when a Broker shut down in order: the group goes back to them, whoever gave them up, and when."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mqbridge.errors import ConnectionLost
from mqbridge.tubemq.client import held_partitions
from mqbridge.tubemq.client.group_member import MemberIdentity
from mqbridge.tubemq.client.held_partitions import HeldPartitions, MemoryPositions, PositionStore, StartOffset
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from mqbridge.tubemq.wire.string_formats import PartitionRef
from tests.kit.conversation import until
from tests.tubemq.client.model import BROKER, STEP, Model
from tests.tubemq.client.quick import shorten_pauses

REF = PartitionRef(BROKER, "demo", 0)
KEY = ("g", "demo", 0)
ADDRESS = (BROKER.host, BROKER.port)
MESSAGES = 8
"""More than a pack of the model has."""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(held_partitions, "RESTORE_PAUSE_S", 0.001)


@pytest.fixture
def model() -> Model:
    model = Model({"demo": 1})
    send(model, MESSAGES)
    return model


def send(model: Model, count: int) -> None:
    for _ in range(count):
        model.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=b"x", flag=0))


class Member:
    """A member without a Master; its Broker heartbeats come every 3 ms."""

    def __init__(self, model: Model, positions: PositionStore | None = None) -> None:
        identity = MemberIdentity(model.masters(), "g", ["demo"], {})
        identity.client_id = f"c{id(self)}"
        self.held = HeldPartitions(
            identity,
            start=StartOffset.EARLIEST,
            heartbeat_s=0.003,
            budget=ReadBudget(GET_BYTES),
            offsets=None,
            positions=positions,
        )
        self.held.master_seen_at = asyncio.get_running_loop().time() + 1e6
        self.held.start_tasks()

    async def take(self) -> HeldPartition:
        return await self.held.acquire(REF)

    async def take_pack(self) -> HeldPartition:
        """Acquire the partition, and fetch a pack that is not confirmed."""
        partition = await self.take()
        await partition.fetch()
        return partition

    async def close(self, timeout: float = 5.0) -> None:
        self.held.close_deadline = asyncio.get_running_loop().time() + timeout
        await self.held.close()

    async def kill(self) -> None:
        """End without another request."""
        await held_partitions.cancel(*self.held._tasks, *self.held._restorations.values())


def shut_down(model: Model) -> None:
    """The Broker shuts down in order: it counts packs that are out as consumed, and cannot be reached."""
    model.broker.restart_cleanly()
    model.unreachable.add(ADDRESS)
    for connection in model.connections.values():
        connection.cut(ConnectionLost("the Broker is down"))


def come_back(model: Model) -> None:
    model.unreachable.discard(ADDRESS)


@asynccontextmanager
async def member(model: Model, positions: PositionStore | None = None) -> AsyncIterator[Member]:
    one = Member(model, positions)
    try:
        yield one
    finally:
        await one.kill()


async def first_offset(model: Model, positions: PositionStore | None = None) -> int:
    """Return the offset of the first pack that the next member gets."""
    model.broker.forget()  # the lease of a killed member has expired
    async with member(model, positions) as next_member:
        return (await (await next_member.take()).fetch()).offset


async def test_a_release_after_a_restart_sets_the_group_back(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await partition.release()
        await until(lambda: not one.held._restorations)
    assert await first_offset(model) == 0


async def test_a_restart_is_noticed_while_the_pack_is_out(model: Model) -> None:
    """A heartbeat tells it. The pack is then registered again, so whatever ends the member later, the pack is not lost."""
    async with member(model) as one:
        partition = await one.take_pack()
        shut_down(model)
        come_back(model)
        await until(lambda: model.broker.confirmed[KEY] == 0 and partition.state.is_detached)
        assert partition.pack is not None, "the reader keeps the pack"
    assert await first_offset(model) == 0


@pytest.mark.parametrize("settle", ["confirm", "reject"])
async def test_a_pack_that_is_settled_after_a_restart_comes_again_only_if_it_was_rejected(model: Model, settle: str) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)
        getattr(partition, settle)()
        assert (await partition.fetch()).offset == (5 * STEP if settle == "confirm" else 0)


async def test_a_confirmed_pack_is_not_given_to_the_next_member(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take_pack()
        model.broker.restart_cleanly()
        await until(lambda: partition.state.is_detached)
        partition.confirm()
        await one.close()
    assert await first_offset(model) == 5 * STEP


async def test_closing_waits_for_a_broker_that_is_down(model: Model) -> None:
    async with member(model) as one:
        await one.take_pack()
        shut_down(model)
        closing = asyncio.ensure_future(one.close())
        await until(lambda: bool(one.held._restorations))
        come_back(model)
        await closing
    assert await first_offset(model) == 0


async def test_a_broker_that_stays_down_is_remembered(model: Model) -> None:
    positions = MemoryPositions()
    async with member(model, positions) as one:
        await one.take_pack()
        shut_down(model)
        await one.close(timeout=held_partitions.LEAVE_S)
        come_back(model)
    assert model.broker.confirmed[KEY] == 5 * STEP
    assert await first_offset(model, positions) == 0


async def test_a_partition_that_is_acquired_again_goes_back(model: Model) -> None:
    """The Master takes the partition away while its Broker is down, and gives it back when it runs again."""
    async with member(model) as one:
        partition = await one.take_pack()
        shut_down(model)
        await partition.release()
        come_back(model)
        assert (await (await one.take()).fetch()).offset == 0


@pytest.mark.parametrize(("others_read", "expected"), [(0, 0), (5, 10)], ids=["nobody read on", "another member read on"])
async def test_a_killed_member_goes_back_unless_others_read_on(model: Model, others_read: int, expected: int) -> None:
    """A position that one pack cannot explain is that of another member: it was given the pack when the lease expired."""
    positions = MemoryPositions()
    async with member(model, positions) as one:
        await one.take_pack()
    model.broker.restart_cleanly()
    send(model, 10)
    model.broker.confirmed[KEY] += others_read * STEP
    assert await first_offset(model, positions) == expected * STEP


async def test_an_orderly_release_leaves_nothing_to_set_back(model: Model) -> None:
    positions = MemoryPositions()
    async with member(model, positions) as one:
        partition = await one.take_pack()
        partition.confirm()
        await one.close()
    assert positions.unsettled(REF) is None
    assert await first_offset(model, positions) == 5 * STEP


async def test_an_idle_partition_queries_its_position(model: Model) -> None:
    """The Broker moves it past the entries of other partitions; the position is where a gap would begin."""
    positions = MemoryPositions()
    async with member(model, positions) as one:
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        model.broker.store_foreign("demo", 0, 20)

        def position() -> int:
            unsettled = positions.unsettled(REF)
            return 0 if unsettled is None else unsettled.offset

        await until(lambda: position() == (MESSAGES + 20) * STEP)
        assert partition.caught_up
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def read_on(partition: HeldPartition) -> None:
    while True:
        await partition.fetch()
        partition.confirm()


async def test_a_reader_is_not_caught_up_while_its_broker_is_away(model: Model) -> None:
    async with member(model) as one:
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        await until(lambda: partition.caught_up)
        shut_down(model)
        await until(lambda: not partition.caught_up)
        come_back(model)
        await until(lambda: partition.caught_up)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_filtered_get_without_data_is_not_the_end(model: Model) -> None:
    """Brokers give filtered readers only what is on disk: until then, the position stays before the end of the store."""
    end: Callable[[str, int], int] = model.broker.end
    model.broker.end = lambda topic, partition: end(topic, partition) + STEP  # type: ignore[method-assign]
    async with member(model) as one:
        partition = await one.take()
        reading = asyncio.ensure_future(read_on(partition))
        await until(lambda: partition.found_no_data and model.faults.counts[rpc.COMMIT] > 2)
        assert not partition.caught_up
        model.broker.end = end  # type: ignore[method-assign]
        send(model, 1)
        await until(lambda: partition.caught_up)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
