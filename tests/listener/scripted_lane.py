"""A partition of a group, and its lanes, whose messages a test decides: numbers ascend, and have holes between them."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence

from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.errors import GapError, LaneRevoked
from mqbridge.groups.store import GroupKey
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.message import Batch, Message, Partition, Position, Unit
from tests.patience import PATIENCE_S

FORMAT = "test.unit"
PARTITION = Partition("log", "t", "0", 0)
KEY = GroupKey("app", "log", "t", "0", "g")
MESSAGE_BYTES = 10


def payload_of(number: int) -> bytes:
    return b"%010d" % number


def make_batch(
    numbers: Sequence[int],
    first: int | None = None,
    end: int | None = None,
    *,
    format_name: str = "messages",
    handle: object = None,
    messages_replace_data: bool = True,
) -> Batch:
    """Make a batch of messages with these numbers; without `first` and `end`, it has no holes at its begin and end."""
    messages = [Message(payload_of(number), position=(number,)) for number in numbers]
    units = [Unit(payload_of(number), 1, None, (number,)) for number in numbers]
    return Batch(
        PARTITION,
        lambda: messages,
        count=len(numbers),
        size=len(numbers) * MESSAGE_BYTES,
        first=(numbers[0] if first is None else first,),
        next=(numbers[-1] + 1 if end is None else end,),
        format=format_name,
        data=b"received",
        handle=handle,
        units=None if format_name == "messages" else lambda: units,
        messages_replace_data=messages_replace_data,
    )


class ScriptedQueue:
    """The messages that are stored, and the committed number of the group."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.deleted_before = 0
        self.committed: int | None = 0
        self.wake = asyncio.Event()

    def store(self, *numbers: int) -> None:
        self.numbers += numbers
        self.wake.set()

    def delete_before(self, number: int) -> None:
        """Lose messages."""
        self.deleted_before = number
        self.numbers = [each for each in self.numbers if each >= number]
        self.wake.set()

    def between(self, first: int, end: int) -> list[int]:
        return self.numbers[bisect_left(self.numbers, first) : bisect_left(self.numbers, end)]

    @property
    def first(self) -> int:
        return self.numbers[0] if self.numbers else self.end

    @property
    def end(self) -> int:
        return max(self.deleted_before, self.numbers[-1] + 1 if self.numbers else 0)


class ScriptedLane:
    """A lane of the queue, which begins at the committed number."""

    is_individual = False
    partition = PARTITION

    def __init__(
        self,
        queue: ScriptedQueue,
        *,
        batch_messages: int = 3,
        has_wide_batches: bool = False,
        needs_contents: bool = False,
        messages_replace_data: bool = True,
    ) -> None:
        """With `has_wide_batches`, holes belong to the batches before and after them."""
        self.queue, self.needs_contents = queue, needs_contents
        self.lost = asyncio.Event()
        self.next = queue.committed or 0
        self.errors: list[Exception] = []
        """What `receive` raises next."""
        self.seek_errors: list[Exception] = []
        self.seek_gate = asyncio.Event()
        self.seek_gate.set()
        self.release_gate = asyncio.Event()
        self.release_gate.set()
        self.seeks: list[int] = []
        self.receiving = 0
        """Number of `receive` calls that run."""
        self.released_at: list[float | None] = []
        """Deadlines with which it was released."""
        self.on_seek: Callable[[int], None] = lambda _: None
        self.gap_resumes = True
        self._batch_messages, self._has_wide_batches = batch_messages, has_wide_batches
        self._messages_replace_data = messages_replace_data
        self._run = 0

    @property
    def caught_up(self) -> bool:
        return not self.queue.between(self.next, self.queue.end)

    def fail(self, error: Exception) -> None:
        self.errors.append(error)
        self.queue.wake.set()

    def lose(self) -> None:
        self.lost.set()
        self.queue.wake.set()

    def deliver_again(self, number: int) -> None:
        """Deliver everything from a message on again."""
        self.next = number
        self.queue.wake.set()

    async def receive(self) -> Batch:
        self.receiving += 1
        assert self.receiving == 1
        try:
            while True:
                await asyncio.sleep(0)
                if self.lost.is_set():
                    raise LaneRevoked("lost")
                if self.errors:
                    raise self.errors.pop(0)
                if self.next < self.queue.deleted_before:
                    raise GapError("messages were deleted", (self.queue.deleted_before,) if self.gap_resumes else None)
                if (batch := self._batch()) is not None:
                    (self.next,) = batch.next
                    return batch
                self.queue.wake.clear()
                await self.queue.wake.wait()
        finally:
            self.receiving -= 1

    def _batch(self) -> Batch | None:
        stored = self.queue.between(self.next, self.queue.end)
        numbers, rest = stored[: self._batch_messages], stored[self._batch_messages :]
        if not numbers:
            return None
        first, end = numbers[0], numbers[-1] + 1
        if self._has_wide_batches:
            first, end = self.next, rest[0] if rest else end
        return make_batch(numbers, first, end, handle=(self._run, numbers), messages_replace_data=self._messages_replace_data)

    def acknowledge(self, batch: Batch, count: int) -> None:
        run, numbers = batch.handle
        assert 0 < count <= batch.count == len(numbers)
        if self.needs_contents and not batch.messages_replace_data:
            assert batch.data is not None, "the contents were dropped too early"
        if not self.lost.is_set() and run == self._run:
            number = batch.next[0] if count == batch.count else numbers[count - 1] + 1
            self.queue.committed = max(self.queue.committed or 0, number)

    def acknowledge_some(self, batch: Batch, indexes: Sequence[int], *, is_last: bool) -> None:
        raise AssertionError("acknowledges a prefix")

    async def seek(self, position: Position) -> None:
        (number,) = position
        self.on_seek(number)
        if self.seek_gate.is_set() and not self.seek_errors:
            self._move(number)  # at once, as some lanes do
            await asyncio.sleep(0)
            return
        await self.seek_gate.wait()
        if self.seek_errors:
            raise self.seek_errors.pop(0)
        self._move(number)

    def _move(self, number: int) -> None:
        if self.lost.is_set():
            raise LaneRevoked("lost")
        self._run += 1
        self.next = self.queue.committed = number
        self.seeks.append(number)

    async def release(self, deadline: float | None = None) -> None:
        self.released_at.append(deadline)
        await self.release_gate.wait()
        self.lose()


class SparseNumbering(OffsetNumbering):
    """Numbers that only order messages."""

    dense = False


class QueueBench:
    """A feed of the queue."""

    def __init__(self, *numbers: int, limit: int = 1 << 20, span: int = 10_000, numbering: OffsetNumbering | None = None) -> None:
        self.queue = ScriptedQueue(*numbers)
        self.memory = UnacknowledgedBytes(limit)
        limits = FeedLimits(self.memory, span)
        self.feed = QueueFeed(KEY, FORMAT, numbering or OffsetNumbering(), limits, self.find_begin, self.find_bounds)
        self.begins = 0
        """Number of times that the begin was looked for."""

    async def find_begin(self) -> int | None:
        self.begins += 1
        await asyncio.sleep(0)
        return self.queue.committed

    async def find_bounds(self) -> tuple[int, int]:
        return self.queue.first, self.queue.end

    def attach(
        self, *, begin: int | None = None, has_wide_batches: bool = False, needs_contents: bool = False, replaces: bool = True
    ) -> ScriptedLane:
        lane = ScriptedLane(
            self.queue,
            has_wide_batches=has_wide_batches,
            needs_contents=needs_contents,
            messages_replace_data=replaces,
        )
        self.feed.attach(lane, None if begin is None else (begin,))
        return lane

    async def read(self, number: int, count: int = 100, max_bytes: int = 1 << 20, *, may_skip: bool = False) -> list[int]:
        """Pull, and return the numbers of the messages."""
        async with asyncio.timeout(PATIENCE_S):
            return list((await self.feed.read(number, count, max_bytes, may_skip=may_skip)).numbers)

    async def close(self) -> None:
        await self.feed.detach()
        assert self.memory.used == self.held == 0
        assert not self.feed._window
        assert not self.feed._releases
        assert self.feed._receiving is None

    @property
    def held(self) -> int:
        """Bytes of the contents that the feed holds."""
        return sum(each.batch.held_bytes for each in self.feed._window if each.batch.data is not None)
