"""A reader of a queue holds no more than its budget, and nothing is left of it at the brokers or in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.message import Batch, Partition
from mqbridge.rocketmq.adapter import range_reader
from mqbridge.rocketmq.adapter.range_reader import RangeReader
from mqbridge.rocketmq.client.consumer.budget import PullBudget
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.consumer.queue_transitions import Event
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import scripted_client, until
from tests.rocketmq.client.conftest import cluster
from tests.rocketmq.client.groups import ScriptedEnvironment, environment

__all__ = ["cluster", "environment"]

QUEUE = Queue("T", "broker-a", 0)
PARTITION = Partition("c", "T", "broker-a:0", 0)
Open = Callable[..., "asyncio.Future[RangeReader]"]


@pytest_asyncio.fixture
async def open_reader(environment: ScriptedEnvironment) -> AsyncIterator[Open]:
    client = scripted_client()
    environment.clients.append(client)
    await client.connect()
    readers: list[RangeReader] = []

    async def opened(begin: int = 0, end: int | None = None, max_bytes: int = 1 << 20) -> RangeReader:
        reader = RangeReader(client, PARTITION, QUEUE, (begin,), None if end is None else (end,), max_bytes)
        readers.append(reader)
        await reader.open()
        return reader

    yield lambda *arguments, **settings: asyncio.ensure_future(opened(*arguments, **settings))
    for reader in readers:
        await reader.close()


async def receive(reader: RangeReader) -> Batch | None:
    return await asyncio.wait_for(reader.receive(), PATIENCE_S)


def budget_of(reader: RangeReader) -> PullBudget:
    assert reader._consumer is not None
    return reader._consumer.budget


@pytest.mark.parametrize("max_bytes", [32 << 10, 256 << 10])
@pytest.mark.parametrize("size", [100, 4000])
async def test_a_reader_holds_no_more_than_its_budget(
    environment: ScriptedEnvironment, open_reader: Open, max_bytes: int, size: int
) -> None:
    """Counted while nobody takes, while batches are taken, and at the end of the queue."""
    environment.groups.log().limit = 1024
    environment.groups.append(*[bytes(size)] * (4 * max_bytes // size))
    reader = await open_reader(max_bytes=max_bytes)
    held: list[int] = []
    received = 0
    while received < environment.groups.log().end:
        await asyncio.sleep(0.01)
        budget, assigned = budget_of(reader), reader._assigned
        assert assigned is not None
        held += [budget.held + budget.requested, assigned.state.buffered_bytes]
        batch = await receive(reader)
        assert batch is not None
        assert batch.size <= max_bytes, "a batch is made of what was read ahead"
        received += batch.count
    assert max_bytes // 2 < max(held) <= max_bytes
    await until(lambda: environment.groups.held)
    assert budget_of(reader).held == 0
    assert budget_of(reader).requested <= max_bytes // 4, "the pull that waits for a message"
    assert reader.caught_up


async def test_a_message_larger_than_the_budget_is_read_alone(environment: ScriptedEnvironment, open_reader: Open) -> None:
    environment.groups.append(*[bytes(100_000)] * 4)
    reader = await open_reader(max_bytes=50_000)
    for offset in range(4):
        await asyncio.sleep(0.01)
        batch = await receive(reader)
        assert batch is not None
        assert (batch.first, batch.count) == ((offset,), 1)


async def test_a_seek_keeps_the_queue_and_asks_for_nothing_but_messages(
    environment: ScriptedEnvironment, open_reader: Open
) -> None:
    environment.groups.append(*[b"x"] * 100)
    reader = await open_reader()
    consumer = reader._consumer
    before = {code: len(requests) for code, requests in environment.cluster.requests.items()}
    for offset in (50, 99, 3):
        await reader.seek((offset,))
        assert reader.position == (offset,)
        batch = await receive(reader)
        assert batch is not None
        assert batch.first == (offset,)
    assert reader._consumer is consumer
    changed = {code for code, requests in environment.cluster.requests.items() if len(requests) != before.get(code, 0)}
    assert changed <= {Code.LITE_PULL_MESSAGE, Code.HEART_BEAT}
    assert environment.groups.offsets == {}


async def test_reading_continues_behind_a_gap_after_a_seek(environment: ScriptedEnvironment, open_reader: Open) -> None:
    environment.groups.append(*[b"x"] * 10)
    environment.groups.log().first = 4
    reader = await open_reader()
    with pytest.raises(GapError) as raised:
        await receive(reader)
    assert raised.value.resume == (4,)
    await reader.seek((4,))
    batch = await receive(reader)
    assert batch is not None
    assert batch.first == (4,)


async def test_a_range_ends_at_the_end_of_the_queue(environment: ScriptedEnvironment, open_reader: Open) -> None:
    environment.groups.append(*[b"x"] * 5)
    reader = await open_reader(0, 8)
    batch = await receive(reader)
    assert batch is not None
    assert batch.next == (5,)
    assert await receive(reader) is None
    environment.groups.append(*[b"y"] * 5)
    assert await receive(reader) is None, "the end stays the end"
    await reader.seek((5,))
    batch = await receive(reader)
    assert batch is not None
    assert (batch.first, batch.next) == ((5,), (8,))
    assert await receive(reader) is None


async def test_an_empty_range_pulls_nothing_until_a_seek(environment: ScriptedEnvironment, open_reader: Open) -> None:
    environment.groups.append(*[b"x"] * 5)
    reader = await open_reader(5, 5)
    assert await receive(reader) is None
    assert environment.groups.pulls() == []
    assert await reader.confirm_caught_up()
    await reader.seek((2,))
    batch = await receive(reader)
    assert batch is not None
    assert (batch.first, batch.next) == ((2,), (5,))


async def test_closing_ends_a_wait_and_leaves_no_task(environment: ScriptedEnvironment, open_reader: Open) -> None:
    before = asyncio.all_tasks()
    reader = await open_reader()
    waiting = asyncio.ensure_future(reader.receive())
    await until(lambda: environment.groups.held)
    await reader.close()
    await reader.close()
    with pytest.raises(ClusterError, match="closed") as raised:
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert raised.value.failure is Failure.FATAL
    with pytest.raises(ClusterError, match="closed"):
        await receive(reader)
    await asyncio.sleep(0.01)
    assert {task for task in asyncio.all_tasks() - before if not task.done()} == set()


async def end_queue(reader: RangeReader) -> None:
    """End the reader's queue, as a lost permission or a topic that was deleted does."""
    assigned = reader._assigned
    assert assigned is not None
    await assigned.release()
    with pytest.raises(ClusterError, match="lost its queue") as raised:
        await receive(reader)
    assert raised.value.failure is Failure.RETRY


async def test_a_seek_after_the_end_of_the_queue_leaves_nothing_of_the_old_consumer(
    environment: ScriptedEnvironment, open_reader: Open
) -> None:
    environment.groups.append(*[b"x"] * 5)
    before = asyncio.all_tasks()
    reader = await open_reader()
    for offset in (1, 3):
        await end_queue(reader)
        old = reader._consumer
        await reader.seek((offset,))
        assert reader._consumer is not old
        batch = await receive(reader)
        assert batch is not None
        assert batch.first == (offset,)
    await reader.close()
    await asyncio.sleep(0.01)
    assert {task.get_name() for task in asyncio.all_tasks() - before if not task.done()} == set()


async def test_a_seek_finds_a_queue_that_has_ended_and_is_still_listed(
    environment: ScriptedEnvironment, open_reader: Open
) -> None:
    environment.groups.append(*[b"x"] * 5)
    reader = await open_reader()
    assigned = reader._assigned
    assert assigned is not None
    assigned._leave(Event.RELEASE, "by a test")  # the release itself has not removed it yet
    await reader.seek((2,))
    batch = await receive(reader)
    assert batch is not None
    assert batch.first == (2,)


@pytest.mark.parametrize("end", [None, 3, 0])
async def test_a_closed_reader_cannot_be_moved(environment: ScriptedEnvironment, open_reader: Open, end: int | None) -> None:
    environment.groups.append(*[b"x"] * 5)
    reader = await open_reader(0, end)
    await reader.close()
    with pytest.raises(ClusterError, match="closed") as raised:
        await reader.seek((1,))
    assert raised.value.failure is Failure.FATAL
    assert reader.position == (0,)
    assert reader._consumer is None


async def test_a_seek_that_is_under_way_ends_when_the_reader_is_closed(
    environment: ScriptedEnvironment, open_reader: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment.groups.append(*[b"x"] * 5)
    reader = await open_reader(5, 5)
    before = asyncio.all_tasks()

    async def join_and_close(*arguments: Any) -> PullConsumer:
        consumer = await join(*arguments)
        await reader.close()
        return consumer

    monkeypatch.setattr(range_reader, "join", join_and_close)
    with pytest.raises(ClusterError, match="closed"):
        await asyncio.wait_for(reader.seek((1,)), PATIENCE_S)
    await asyncio.sleep(0.01)
    assert {task.get_name() for task in asyncio.all_tasks() - before if not task.done()} == set()
