"""Reading from any number on: what is found, what is read again, and what is held meanwhile."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.errors import ClusterError, Failure, LaneRevoked
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.number_reader import NumberReader
from mqbridge.listener.sources import ReaderSource
from mqbridge.message import Position
from mqbridge.net.tasks import cancel, spawn
from tests.listener.feeds import settle
from tests.listener.scripted_lane import FORMAT, MESSAGE_BYTES, PARTITION, ScriptedLane, ScriptedQueue
from tests.patience import PATIENCE_S

MUCH = 1 << 20


class ScriptedReader(ScriptedLane):
    """Reads the queue by position; of the group it knows nothing."""

    def __init__(self, queue: ScriptedQueue, begin: int, *, has_wide_batches: bool = False) -> None:
        super().__init__(queue, has_wide_batches=has_wide_batches)
        self.next = begin
        self.is_closed = False

    @property
    def position(self) -> Position:
        return (self.next,)

    async def seek(self, position: Position) -> None:
        if self.seek_errors:
            raise self.seek_errors.pop(0)
        (self.next,) = position
        self.seeks.append(self.next)

    async def close(self, deadline: float | None = None) -> None:
        self.is_closed = True
        self.released_at.append(deadline)
        self.lose()


class ReaderBench:
    """A reader of the queue, and the readers that it has opened."""

    def __init__(self, *numbers: int, limit: int = 1 << 20) -> None:
        self.queue = ScriptedQueue(*numbers)
        self.memory = UnacknowledgedBytes(limit)
        self.opened: list[ScriptedReader] = []
        self.has_wide_batches = False
        self.reader = NumberReader(self._source, OffsetNumbering(), FORMAT, self.memory)

    def _source(self, begin: Position) -> ReaderSource:
        return ReaderSource(PARTITION, self._open, begin)

    async def _open(self, begin: Position) -> ScriptedReader:
        self.opened.append(ScriptedReader(self.queue, *begin, has_wide_batches=self.has_wide_batches))
        return self.opened[-1]

    @property
    def last(self) -> ScriptedReader:
        return self.opened[-1]

    async def read(self, number: int, count: int = 100, max_bytes: int = MUCH) -> list[int]:
        async with asyncio.timeout(PATIENCE_S):
            return list((await self.reader.read(number, count, max_bytes)).numbers)

    async def close(self) -> None:
        await self.reader.close()
        assert self.memory.used == 0
        assert all(each.is_closed for each in self.opened)


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[ReaderBench]:
    made = ReaderBench(*range(10))
    yield made
    await made.close()


async def test_reading_begins_at_any_number_and_goes_on(bench: ReaderBench) -> None:
    found = await bench.reader.read(4, 100, MUCH)
    assert (list(found.numbers), found.next) == ([4, 5, 6], 7)
    assert await bench.read(7) == [7, 8, 9]
    assert len(bench.opened) == 1
    assert bench.last.seeks == [], "it was there already"
    assert bench.queue.committed == 0, "no group is moved"


async def test_another_number_is_read_by_the_same_reader(bench: ReaderBench) -> None:
    assert await bench.read(7) == [7, 8, 9]
    assert await bench.read(2) == [2, 3, 4]
    assert await bench.read(8) == [8, 9]
    assert len(bench.opened) == 1
    assert bench.last.seeks == [2, 8]


async def test_what_was_read_is_taken_in_pieces_without_waiting(bench: ReaderBench) -> None:
    assert await bench.read(3, 1) == [3]
    assert [bench.reader.is_ready(number) for number in range(2, 8)] == [False, True, True, True, False, False]
    assert bench.memory.used == 3 * MESSAGE_BYTES
    assert list(bench.reader.take(5, 1, MUCH).numbers) == [5]
    assert bench.memory.used == 0, "nothing is left of the batch"
    assert not bench.reader.is_ready(4)
    assert await bench.read(4, 1) == [4]
    assert await bench.read(5, 9, MESSAGE_BYTES) == [5]
    assert bench.last.seeks == [4]


async def test_it_follows_where_no_seek_is_needed(bench: ReaderBench) -> None:
    assert not any(bench.reader.follows(number) for number in range(11)), "nothing was read yet"
    await bench.read(3, 1)
    assert [number for number in range(11) if bench.reader.follows(number)] == [3, 4, 5, 6]
    bench.reader.take(5, 1, MUCH)
    assert [number for number in range(11) if bench.reader.follows(number)] == [6]


async def test_numbers_that_no_message_has_are_passed() -> None:
    bench = ReaderBench(2, 3, 7, 20)
    found = await bench.reader.read(0, 100, MUCH)
    assert (list(found.numbers), found.next) == ([2, 3, 7], 8)
    assert await bench.read(8) == [20]
    await bench.close()


async def test_a_read_at_the_end_waits_for_the_next_message(bench: ReaderBench) -> None:
    reading = spawn(bench.read(10), "read")
    await settle()
    assert not reading.done()
    bench.queue.store(10, 11)
    assert await reading == [10, 11]


async def test_what_is_left_is_dropped_and_read_again_while_memory_is_full() -> None:
    bench = ReaderBench(*range(10), limit=4 * MESSAGE_BYTES)
    assert await bench.read(0, 1) == [0]
    assert bench.memory.used == 3 * MESSAGE_BYTES, "there is room"
    bench.memory.add(MESSAGE_BYTES)
    assert list(bench.reader.take(1, 1, MUCH).numbers) == [1]
    assert bench.memory.used == MESSAGE_BYTES
    assert not bench.reader.is_ready(2)
    assert await bench.read(2) == [2, 3, 4]
    assert bench.last.seeks == [2]
    bench.memory.release(MESSAGE_BYTES)
    await bench.close()


async def test_a_read_that_is_given_up_loses_nothing(bench: ReaderBench) -> None:
    await bench.read(7)
    reading = spawn(bench.read(10), "read")
    await settle()
    await cancel(reading)
    bench.queue.store(10, 11)
    assert bench.reader.follows(10)
    assert await bench.read(10) == [10, 11]
    assert bench.last.seeks == []


@given(st.lists(st.integers(0, 12), min_size=1, max_size=10), st.lists(st.integers(0, 8), min_size=1, max_size=10))
@settings(max_examples=100)
def test_reads_that_are_given_up_at_any_step_lose_nothing(numbers: list[int], steps: list[int]) -> None:
    async def run() -> None:
        bench = ReaderBench(*range(10))
        for number, count in zip(numbers, steps, strict=False):
            reading = spawn(bench.read(number, 2), "read")
            for _ in range(count):
                await asyncio.sleep(0)
            await cancel(reading)
            if number < 10:
                found = await bench.read(number, 2)
                assert found == list(range(number, number + len(found)))
        await bench.close()

    asyncio.run(run())


async def test_lost_messages_are_passed_and_counted(bench: ReaderBench) -> None:
    bench.queue.delete_before(5)
    found = await bench.reader.read(2, 100, MUCH)
    assert (list(found.numbers), found.next) == ([5, 6, 7], 8)
    assert bench.reader.gaps == 1
    assert await bench.read(8) == [8, 9]
    assert bench.reader.gaps == 1


async def test_messages_that_are_lost_while_lost_ones_are_passed_are_passed_too(bench: ReaderBench) -> None:
    """Retention goes on while it is read."""
    bench.queue.delete_before(3)
    await bench.read(9)
    seek = bench.last.seek

    async def lose_more(position: Position) -> None:
        await seek(position)
        if position == (3,):
            bench.queue.delete_before(6)

    bench.last.seek = lose_more  # type: ignore[method-assign]
    assert await bench.read(0) == [6, 7, 8]
    assert bench.reader.gaps == 2


async def test_a_read_that_is_given_up_behind_lost_messages_begins_again(bench: ReaderBench) -> None:
    bench.queue.delete_before(30)
    reading = spawn(bench.read(2), "read")
    await settle()
    assert bench.reader.gaps == 1
    await cancel(reading)
    bench.queue.store(30)
    assert await bench.read(2) == [30]


async def test_lost_messages_without_a_known_end_are_an_error(bench: ReaderBench) -> None:
    await bench.read(0)
    bench.queue.delete_before(5)
    bench.last.gap_resumes = False
    with pytest.raises(ClusterError, match="messages were deleted"):
        await bench.read(3)
    assert bench.reader.gaps == 0


async def test_an_error_is_raised_and_the_next_read_tries_again(bench: ReaderBench) -> None:
    await bench.read(0, 1)
    bench.last.fail(ClusterError("away", Failure.FATAL))
    with pytest.raises(ClusterError, match="away"):
        await bench.read(3)
    assert bench.memory.used == 0
    assert await bench.read(3) == [3, 4, 5]
    bench.last.seek_errors.append(ClusterError("cannot", Failure.FATAL))
    with pytest.raises(ClusterError, match="cannot"):
        await bench.read(0)
    assert await bench.read(6) == [6, 7, 8]
    assert await bench.read(0) == [0, 1, 2]


async def test_the_last_use_is_known(bench: ReaderBench) -> None:
    assert bench.reader.used_at == 0.0
    before = asyncio.get_running_loop().time()
    await bench.read(0)
    assert before <= bench.reader.used_at <= asyncio.get_running_loop().time()


async def test_between_the_last_message_and_the_next_one_no_seek_is_needed() -> None:
    """Where numbers do not count messages, clients know the number of the last message, and not that of the next."""
    queue = ScriptedQueue(0, 1, 2, 10, 11, 12, 30)
    bench = ReaderBench()
    bench.queue = queue
    bench.has_wide_batches = True
    assert await bench.read(0) == [0, 1, 2]
    assert [number for number in range(14) if bench.reader.follows(number)] == list(range(3, 11))
    assert await bench.read(5) == [10, 11, 12]
    assert [number for number in range(32) if bench.reader.follows(number)] == list(range(13, 31))
    assert await bench.read(13) == [30]
    assert bench.last.seeks == []
    await bench.close()


async def test_a_read_behind_the_last_message_of_a_batch_gets_what_comes_next() -> None:
    bench = ReaderBench(0, 1, 2, 20)
    bench.has_wide_batches = True
    assert await bench.read(0, 1) == [0]
    assert [bench.reader.is_ready(number) for number in (2, 3)] == [True, False]
    assert await bench.read(3) == [20]
    await bench.close()


async def test_closing_drops_what_was_read(bench: ReaderBench) -> None:
    await bench.read(0, 1)
    await bench.reader.close(123.0)
    assert bench.memory.used == 0
    assert bench.last.released_at == [123.0]
    assert not bench.reader.is_ready(1)
    await bench.reader.close()
    assert bench.last.released_at == [123.0], "a second time does nothing"


async def test_a_reader_that_was_never_used_closes(bench: ReaderBench) -> None:
    await bench.reader.close()
    assert bench.opened == []


async def test_closing_ends_a_read(bench: ReaderBench) -> None:
    reading = spawn(bench.read(10), "read", log_errors=False)
    await settle()
    await bench.reader.close()
    with pytest.raises(LaneRevoked):
        await reading
    assert bench.memory.used == 0


@pytest.mark.parametrize("steps", range(6))
async def test_a_batch_that_comes_when_it_is_closed_is_not_kept(bench: ReaderBench, steps: int) -> None:
    reading = spawn(bench.read(10, 1), "read", log_errors=False)
    await settle()
    bench.queue.store(10, 11)
    for _ in range(steps):
        await asyncio.sleep(0)
    closing = spawn(bench.reader.close(), "close")
    await asyncio.wait([reading, closing])
    if (error := reading.exception()) is not None:
        assert isinstance(error, LaneRevoked)
    assert not bench.reader.is_ready(11)
    assert bench.memory.used == 0
