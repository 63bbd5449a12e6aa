"""A partition whose messages lie in entries of several, as in Pulsar, and its lanes: numbers do not count messages."""

import asyncio
from collections.abc import Sequence

from mqbridge.adapter.numbering import PackedNumbering
from mqbridge.errors import LaneRevoked
from mqbridge.groups.store import GroupKey
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.message import Batch, Message, Partition, Position
from tests.listener.scripted_lane import FORMAT, MESSAGE_BYTES
from tests.patience import PATIENCE_S

BEGIN: Position = (-1, -1, 0)
NUMBERING = PackedNumbering(3, BEGIN)
PARTITION = Partition("pulsar", "t", "0", 0)
KEY = GroupKey("app", "pulsar", "t", "0", "g")


def number(ledger: int, entry: int, index: int) -> int:
    return NUMBERING.number((ledger, entry, index))


class PackedQueue:
    """The stored entries, and the position of the group, which is always the begin of an entry."""

    def __init__(self, *entries: Position) -> None:
        """Entries are (ledger, entry, number of messages)."""
        self.entries = list(entries)
        self.acknowledged = 0
        """Number of entries that are acknowledged."""
        self.wake = asyncio.Event()

    def store(self, *entries: Position) -> None:
        self.entries += entries
        self.wake.set()

    @property
    def positions(self) -> list[Position]:
        return [(ledger, entry, index) for ledger, entry, count in self.entries for index in range(count)]

    @property
    def numbers(self) -> list[int]:
        return [NUMBERING.number(position) for position in self.positions]

    @property
    def next(self) -> Position:
        return self.after(len(self.entries))

    @property
    def committed(self) -> Position:
        return self.after(self.acknowledged)

    def after(self, count: int) -> Position:
        """Return the position after so many entries."""
        if not count:
            return (self.entries[0][0], 0, 0) if self.entries else BEGIN
        ledger, entry, _ = self.entries[count - 1]
        return (ledger, entry + 1, 0)


class PackedLane:
    """A lane of the queue, which begins at the first entry that is not acknowledged."""

    is_individual = needs_contents = False
    partition = PARTITION

    def __init__(self, queue: PackedQueue, *, batch_entries: int = 2) -> None:
        self.queue, self.lost = queue, asyncio.Event()
        self.next = queue.acknowledged
        """Index of the entry to deliver next."""
        self.late: list[Position] = []
        """Messages that are delivered next, whatever comes before them."""
        self.asked = 0
        """Number of times that its end was asked for."""
        self.is_told = False
        """True if it knows its end."""
        self._skipped = 0
        """Messages of the next entry that are before the position of a seek."""
        self._batch_entries, self._run = batch_entries, 0

    @property
    def caught_up(self) -> bool:
        return self.is_told and self.next >= len(self.queue.entries)

    async def confirm_caught_up(self) -> bool:
        self.asked += 1
        await asyncio.sleep(0)
        self.is_told = True
        return self.caught_up

    def lose(self) -> None:
        self.lost.set()
        self.queue.wake.set()

    def deliver_again(self) -> None:
        """Deliver everything again that is not acknowledged, under another number of acknowledgements."""
        self.next, self._skipped, self._run = self.queue.acknowledged, 0, self._run + 1
        self.queue.wake.set()

    async def receive(self) -> Batch:
        while True:
            await asyncio.sleep(0)
            if self.lost.is_set():
                raise LaneRevoked("lost")
            if self.late:
                position = self.late.pop(0)
                return self._made([position], position, self.queue.after(self.next), ())
            entries = self.queue.entries[self.next : self.next + self._batch_entries]
            if entries:
                begin, skipped, self._skipped = self.next, self._skipped, 0
                self.next += len(entries)
                (ledger, entry, _), ends = entries[0], tuple(range(begin + 1, self.next + 1))
                positions = [(ledger, entry, index) for ledger, entry, count in entries for index in range(count)][skipped:]
                counts = [count - (skipped if not index else 0) for index, (_, _, count) in enumerate(entries)]
                return self._made(
                    positions, (ledger, entry, skipped), self.queue.after(self.next), zip(ends, counts, strict=True)
                )
            self.queue.wake.clear()
            await self.queue.wake.wait()

    def _made(self, positions: Sequence[Position], first: Position, end: Position, entries: object) -> Batch:
        messages = [Message(repr(position).encode(), position=position) for position in positions]
        return Batch(
            PARTITION,
            lambda: messages,
            count=len(messages),
            size=len(messages) * MESSAGE_BYTES,
            first=first,
            next=end,
            data=b"received",
            handle=(self._run, list(entries)),  # type: ignore[call-overload]
        )

    def acknowledge(self, batch: Batch, count: int) -> None:
        """Acknowledge the entries that consist of the first messages, as a whole only."""
        run, entries = batch.handle
        assert 0 < count <= batch.count
        for end, messages in entries:
            count -= messages
            if count < 0 or self.lost.is_set() or run != self._run:
                return
            self.queue.acknowledged = max(self.queue.acknowledged, end)

    def acknowledge_some(self, batch: Batch, indexes: Sequence[int], *, is_last: bool) -> None:
        raise AssertionError("acknowledges a prefix")

    async def seek(self, position: Position) -> None:
        await asyncio.sleep(0)
        ids = [entry[:2] for entry in self.queue.entries]
        self.next = sum(each < position[:2] for each in ids)
        self._skipped = 0
        if self.next < len(ids) and ids[self.next] == position[:2]:
            if position[2] < self.queue.entries[self.next][2]:
                self._skipped = position[2]
            else:
                self.next += 1
        self.queue.acknowledged = self.next
        self._run += 1
        self.queue.wake.set()

    async def release(self, deadline: float | None = None) -> None:
        self.lose()


class PackedBench:
    """A feed of the queue."""

    def __init__(self, *entries: Position, span: int = 10_000) -> None:
        self.queue, self.memory = PackedQueue(*entries), UnacknowledgedBytes(1 << 20)
        self.feed = QueueFeed(KEY, FORMAT, NUMBERING, FeedLimits(self.memory, span), self.find_begin, self.find_bounds)

    async def find_begin(self) -> int | None:
        return NUMBERING.number(self.queue.committed)

    async def find_bounds(self) -> tuple[int, int]:
        return NUMBERING.number(self.queue.after(0)), NUMBERING.number(self.queue.next)

    def attach(self, *, batch_entries: int = 2) -> PackedLane:
        lane = PackedLane(self.queue, batch_entries=batch_entries)
        self.feed.attach(lane)
        return lane

    async def read(self, at: int, count: int = 100, *, may_skip: bool = False) -> list[Position]:
        """Pull, and return the positions of the messages."""
        if self.feed.is_ready(at):
            found = self.feed.take(at, count, 1 << 20)
        else:
            async with asyncio.timeout(PATIENCE_S):
                found = await self.feed.read(at, count, 1 << 20, may_skip=may_skip)
        return [NUMBERING.position(each) for each in found.numbers]

    async def close(self) -> None:
        await self.feed.detach()
        assert self.memory.used == 0
        assert (list(self.feed._window), self.feed._window_count) == ([], 0)
