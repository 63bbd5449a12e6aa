"""Readers of a partition over an in-memory Broker: cancelled, moved, cut off and closed at any time."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.reader import PartitionReader
from mqbridge.errors import ClusterError, ConnectionLost, Failure
from mqbridge.message import Position
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import STEP, Model

COUNT = 13
"""More than two packs of the model."""
NAME = "1:0"


def send(model: Model, begin: int, end: int) -> None:
    for number in range(begin, end):
        model.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=0, data=b"%d" % number, flag=0))


@pytest.fixture
def model() -> Model:
    made = Model({"demo": 2})
    send(made, 0, COUNT)
    return made


async def open_reader(cluster: TubeMQ, begin: Position = (0, 0), end: Position | None = None) -> PartitionReader:
    return await cluster.reader("demo", NAME, begin, end)


async def numbers(reader: PartitionReader) -> list[int]:
    """Receive the next batch; return its numbers, an empty list at the end."""
    async with asyncio.timeout(PATIENCE_S):
        batch = await reader.receive()
    return [] if batch is None else [int(message.payload or b"") for message in batch.messages]


async def take(reader: PartitionReader, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += await numbers(reader)
    return found


@pytest.mark.parametrize("end", [None, (COUNT * STEP, 0)], ids=["tail", "range"])
@pytest.mark.parametrize("turns", range(12))
async def test_a_receive_that_is_cancelled_at_any_step_loses_nothing(
    cluster: TubeMQ, model: Model, turns: int, end: Position | None
) -> None:
    reader = await open_reader(cluster, end=end)
    found: list[int] = []
    while len(found) < COUNT:
        receiving = spawn(reader.receive(), "test receive", log_errors=False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await cancel(receiving)
        if receiving.cancelled():
            found += await numbers(reader)
        elif (batch := receiving.result()) is not None:
            found += [int(message.payload or b"") for message in batch.messages]
    assert found == list(range(COUNT))
    await reader.close()
    assert not model.broker.owners


@pytest.mark.parametrize("turns", range(0, 40, 3))
async def test_a_seek_at_any_step_of_a_read_moves_it(cluster: TubeMQ, model: Model, turns: int) -> None:
    """A get in flight is abandoned: if it arrives later, it must not move the reader."""
    reader = await open_reader(cluster)
    receiving = spawn(reader.receive(), "test receive", log_errors=False)
    for _ in range(turns):
        await asyncio.sleep(0)
    await reader.seek((5 * STEP, 2))
    assert reader.position == (5 * STEP, 2)
    async with asyncio.timeout(PATIENCE_S):
        batch = await receiving
    assert batch is not None
    rest = [int(message.payload or b"") for message in batch.messages]
    if rest[0] == 0:  # it was received before the seek
        assert reader.position == (5 * STEP, 2)
        rest = []
    rest += await take(reader, COUNT - 7 - len(rest))
    assert rest == list(range(7, COUNT))
    await reader.close()
    assert not model.broker.owners


async def test_a_batch_that_was_read_and_not_received_is_dropped_by_a_seek(cluster: TubeMQ, model: Model) -> None:
    reader = await open_reader(cluster)
    receiving = spawn(reader.receive(), "test receive", log_errors=False)
    await asyncio.sleep(0)
    await cancel(receiving)
    await until(lambda: model.faults.counts[rpc.COMMIT] > 0)
    await asyncio.sleep(0.01)
    await reader.seek((10 * STEP, 0))
    assert await take(reader, 3) == [10, 11, 12]
    await reader.close()


async def test_a_reader_is_caught_up_while_the_broker_has_no_more(cluster: TubeMQ, model: Model) -> None:
    reader = await open_reader(cluster)
    assert not reader.caught_up
    await take(reader, COUNT)
    assert not reader.caught_up, "nobody has asked for more"
    receiving = spawn(reader.receive(), "test receive", log_errors=False)
    await until(lambda: reader.caught_up)
    model.unreachable.add(("10.0.0.5", 8123))
    for connection in model.connections.values():
        connection.cut(ConnectionLost("cut"))
    await until(lambda: not reader.caught_up)
    model.unreachable.clear()
    await until(lambda: reader.caught_up)
    send(model, COUNT, COUNT + 1)
    async with asyncio.timeout(PATIENCE_S):
        batch = await receiving
    assert batch is not None
    assert (batch.count, reader.caught_up) == (1, False)
    await reader.close()


async def test_a_failed_registration_is_an_error_and_the_next_receive_tries_again(cluster: TubeMQ, model: Model) -> None:
    reader = await open_reader(cluster, (5 * STEP, 0), (8 * STEP, 0))
    model.handlers[rpc.PARTITION_REGISTER], well = (
        (b.RegisterRequestC2B, lambda _: b.RegisterResponseB2C(success=False, errCode=500, errMsg="no")),
        model.handlers[rpc.PARTITION_REGISTER],
    )
    for _ in range(2):
        with pytest.raises(ClusterError, match="no"):
            await numbers(reader)
    model.handlers[rpc.PARTITION_REGISTER] = well
    assert await take(reader, 3) == [5, 6, 7]
    assert await numbers(reader) == []
    await reader.close()


async def test_a_reader_whose_partition_is_taken_away_registers_again(cluster: TubeMQ, model: Model) -> None:
    reader = await open_reader(cluster)
    found = await numbers(reader)
    for key in list(model.broker.owners):
        model.broker.owners[key] = "somebody"
    with pytest.raises(ClusterError, match="cannot be read now"):
        await numbers(reader)
    assert found + await take(reader, COUNT - len(found)) == list(range(COUNT))
    await reader.close()


def tasks_since(before: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Return the tasks that were not there before, without those of the cluster, which asks for routes now and then."""
    return [task for task in asyncio.all_tasks() - before if "routes of" not in task.get_name()]


@pytest.mark.parametrize("turns", [*range(12), 100])
async def test_closing_at_any_step_releases_the_partition(cluster: TubeMQ, model: Model, turns: int) -> None:
    before = asyncio.all_tasks()
    reader = await open_reader(cluster)
    receiving = spawn(reader.receive(), "test receive", log_errors=False)
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await reader.close()
        await reader.close()
    with suppress(ClusterError):
        await receiving
    assert not model.broker.owners
    assert not tasks_since(before)
    with pytest.raises(ClusterError) as raised:
        await reader.receive()
    assert raised.value.failure is Failure.FATAL


async def test_closing_ends_at_its_deadline_if_the_broker_is_silent(cluster: TubeMQ, model: Model) -> None:
    before = asyncio.all_tasks()
    reader = await open_reader(cluster)
    await numbers(reader)
    for number in range(1, 10):
        model.faults.plan[rpc.PARTITION_REGISTER, model.faults.counts[rpc.PARTITION_REGISTER] + number] = "silent"
    begun = asyncio.get_running_loop().time()
    async with asyncio.timeout(PATIENCE_S):
        await reader.close(begun + 0.05)
    assert not tasks_since(before), "the request to unregister is given up"


async def test_a_position_of_another_system_is_refused(cluster: TubeMQ) -> None:
    for begin in ((7,), (1, 2, 3)):
        with pytest.raises(ClusterError, match="not a position of TubeMQ"):
            await open_reader(cluster, begin)
    reader = await open_reader(cluster)
    with pytest.raises(ClusterError, match="not a position of TubeMQ"):
        await reader.seek((7,))
    assert await numbers(reader) == [0, 1, 2, 3, 4]
    await reader.close()


async def test_a_reader_has_one_group(cluster: TubeMQ, model: Model) -> None:
    """Brokers keep every group until it is removed."""
    reader = await open_reader(cluster, end=(COUNT * STEP, 0))
    for begin in (0, 7, 3):
        await reader.seek((begin * STEP, 0))
        assert await take(reader, COUNT - begin) == list(range(begin, COUNT))
    await reader.close()
    assert len({group for group, _, _ in model.broker.confirmed}) == 1


async def test_the_bounds_of_one_partition_cost_no_request_for_another(cluster: TubeMQ, model: Model) -> None:
    every = await cluster.bounds("demo")
    model.handlers[rpc.PARTITION_REGISTER] = (
        b.RegisterRequestC2B,
        lambda request: (
            model.broker.register(request) if request.partitionId == 1 else b.RegisterResponseB2C(success=False, errCode=500)
        ),
    )
    assert await cluster.bounds("demo", "1:1") == {"1:1": every["1:1"]}
    with pytest.raises(ClusterError) as raised:
        await cluster.bounds("demo", "1:2")
    assert raised.value.failure is Failure.FATAL


async def test_positions_that_a_lane_sees_again_may_differ(cluster: TubeMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack that is not confirmed is cut anew."""
    inbound = await cluster.inbound(InboundSpec(("demo",), "g"))
    async for lane in inbound.lanes():
        if lane.partition.name == NAME:
            break
    seen: list[list[Position]] = []
    for most in (5, 3):
        monkeypatch.setattr("tests.tubemq.client.model.MAX_PER_GET", most)
        positions: list[Position] = []
        while len(positions) < 5:
            batch = await lane.receive()
            positions += [message.position for message in batch.messages]
            lane.acknowledge(batch) if most == 3 else lane.reject(batch)
        seen.append(positions[:5])
    assert seen == [[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)], [(0, 0), (0, 1), (0, 2), (3 * STEP, 0), (3 * STEP, 1)]]
    assert not cluster.capabilities.stable_positions
    await inbound.close()
