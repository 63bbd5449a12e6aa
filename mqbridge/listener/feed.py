"""A feed: one partition of one group, as all consumers of a listener share it.

The feed reads its source in order and holds every unit until it is acknowledged. Consumers take units, acknowledge them in any
order, or give them back. `take` never waits, so one feed serves a push to consumers with permits, a pull at an offset whose
request is held, and a get that is confirmed before the next one.

A unit is in one of four states:

    QUEUED   it waits to be taken; units that were given back come before new ones
    OUT      a consumer has it
    DELAYED  it was given back, and is queued when its time comes
    DONE     all of its messages are acknowledged, or were before; it is forgotten once all units before it are, too

        take                 QUEUED -> OUT
        give_back            OUT -> QUEUED, or DELAYED
        (time passes)        DELAYED -> QUEUED
        acknowledge          QUEUED, OUT, DELAYED -> DONE, when its last message is acknowledged

A seek, a lost partition and `close` forget all units: what a consumer does with them later has no effect.

Numbers of units ascend, but need not be consecutive. What is acknowledged behind the prefix is recorded in a `GroupStore`, so
that a restart delivers only the rest. If the source then resumes before the recorded mark, somebody has moved the group back, and
the record does not count.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from mqbridge.adapter.numbering import Numbering
from mqbridge.errors import ClusterError, GapError, LaneRevoked
from mqbridge.groups.acknowledged import Acknowledged, ranges_of
from mqbridge.groups.store import GroupKey, GroupStore
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.sources import FeedSource
from mqbridge.message import Batch, Message, Position, Unit
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)


class State(Enum):
    """The state of a unit, see the table above."""

    QUEUED = "queued"
    OUT = "out"
    DELAYED = "delayed"
    DONE = "done"


class HeldBatch:
    """A batch whose bytes are held until all of its units are DONE: its units refer to them."""

    __slots__ = ("batch", "open_units", "size")

    def __init__(self, batch: Batch, size: int) -> None:
        """`size` are the bytes that it holds."""
        self.batch, self.size = batch, size
        self.open_units = 0
        """Number of its units that are not DONE."""


class Delivered:
    """A unit of a feed, or a message that was stored without one.

    number      number of its first message; that of message k is `number + k`
    count       number of messages
    unit        the stored unit, in the format of the feed; None if there is none
    message     the message, if there is no unit
    remaining   bits of the messages that are not acknowledged
    deliveries  number of deliveries before this one that count
    """

    __slots__ = (
        "count",
        "deliveries",
        "end",
        "end_index",
        "generation",
        "held",
        "message",
        "number",
        "remaining",
        "size",
        "state",
        "unit",
    )

    def __init__(
        self, number: int, content: Unit | Message, held: HeldBatch, first_index: int, end: Position, generation: int
    ) -> None:
        """`first_index` is the index of its first message in the batch, `end` the position after it."""
        if isinstance(content, Unit):
            self.unit: Unit | None = content
            self.message: Message | None = None
            self.count, self.size, self.deliveries = content.message_count, len(content.data), 0
            self.remaining = ((1 << self.count) - 1) & ~content.left_out
        else:
            self.unit, self.message = None, content
            self.count, self.size, self.deliveries = 1, len(content.payload or b""), content.delivery_count
            self.remaining = 1
        self.number, self.held, self.end, self.generation = number, held, end, generation
        self.end_index = first_index + self.remaining.bit_count()
        """Index in the batch after its last message; messages that are left out of the batch do not count."""
        self.state = State.QUEUED


class FeedCounters:
    """Totals of a feed, for metrics."""

    __slots__ = ("acknowledged", "delivered", "gaps", "redelivered")

    def __init__(self) -> None:
        self.delivered = self.redelivered = self.acknowledged = self.gaps = 0


class FeedLimits(NamedTuple):
    """Limits of a feed: the bytes of its listener, and the messages from the oldest unacknowledged one to the newest read."""

    unacknowledged: UnacknowledgedBytes
    span: int


class Feed:
    """See the module. All methods run on the event loop; only those that are coroutines wait."""

    def __init__(
        self, key: GroupKey, format_name: str, numbering: Numbering, store: GroupStore | None, limits: FeedLimits
    ) -> None:
        """`format_name` is the format in which units are delivered as they are; others are decoded into messages."""
        self.key = key
        self.counters = FeedCounters()
        self.problem: str | None = None
        """Why the feed does not read; None while it does, or while another gateway has the partition."""
        self._format, self._numbering = format_name, numbering
        self._store, self._limits = store, limits
        self._source: FeedSource | None = None
        self._units: deque[Delivered] = deque()
        """All units from the oldest one that is not DONE to the newest, in order."""
        self._by_number: dict[int, Delivered] = {}
        """The units of `_units` that are not DONE."""
        self._fresh: deque[Delivered] = deque()
        """Units that were never taken; some may be DONE."""
        self._again: list[tuple[int, Delivered]] = []
        """A heap of units that were given back, by number; some may be DONE or DELAYED or OUT again."""
        self._span = self._held_bytes = 0
        """Messages in `_units`, and bytes of their batches that have units which are not DONE."""
        self._mark: Position | None = None
        """Position before which everything is acknowledged; None while it is not known."""
        self._known: Acknowledged | None = None
        """What was recorded before the source was attached, as long as units that it knows may come."""
        self._generation = 0
        """Number of seeks and attached sources: units of earlier ones do not count."""
        self._watchers: set[Callable[[], None]] = set()
        self._may_read = asyncio.Event()
        """Set when a consumer found nothing to take, and there is room."""
        self._is_wanted = False
        self._tasks: list[asyncio.Task[None]] = []
        """The tasks that read the source, and notice that it is lost; none without a source."""
        self._all_acknowledged = asyncio.Event()
        """Set while there are no units."""
        self._all_acknowledged.set()
        self._commit_scheduled = False
        self._uncommitted: list[tuple[Batch, int]] = []
        """Batches, with the number of their messages up to which everything is acknowledged, not passed to the source yet."""
        self._wake_scheduled = False

    # --- the source -------------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """False while another gateway has the partition, or nobody: nothing comes."""
        return self._source is not None

    @property
    def caught_up(self) -> bool:
        """True if every message that the source had at the last look was taken."""
        return self._source is not None and self._source.caught_up and not self._fresh and not self._again

    def attach(self, source: FeedSource, begin: Position | None = None) -> None:
        """Read this source from now on; `begin` is the position of its first message, if that is known.

        An earlier source was detached or lost before.
        """
        assert self._source is None  # noqa: S101 - a bug of the caller
        self._generation += 1
        self._source, self._mark = source, begin
        self._known = None if self._store is None else self._store.load(self.key)
        if begin is not None and self._known is not None and self._known.mark != begin:
            self._known = None  # the group was moved
        self._start(source)

    def _start(self, source: FeedSource) -> None:
        name = f"feed of {source.partition} for {self.key.group}"
        self._tasks = [spawn(self._read(source), name), spawn(self._wait_lost(source), name)]
        self._wake()

    async def detach(self, deadline: float | None = None) -> None:
        """Give the source up; the units that are out do not count any more."""
        self._commit()
        tasks, self._tasks = self._tasks, []
        await cancel(*tasks)
        if (source := self._source) is not None:
            self._end(source)
            await source.release(deadline)

    def _end(self, source: FeedSource) -> None:
        """Forget the source and its units."""
        if self._source is source:
            state, self._source = self._recorded_state(), None
            self._forget(state)
            self._wake()

    def _recorded_state(self) -> Acknowledged | None:
        """Return what is to be recorded now; None if nothing is."""
        if self._store is None or self._mark is None or self._source is None or self._source.is_individual:
            return None
        return self.state()

    def _forget(self, state: Acknowledged | None) -> None:
        """Forget all units, and record this state instead of what follows from them."""
        if state is not None and self._store is not None:
            self._store.record(self.key, lambda: state)
        self._all_acknowledged.set()
        self._limits.unacknowledged.release(self._held_bytes)
        self._units.clear()
        self._by_number.clear()
        self._fresh.clear()
        self._again.clear()
        self._span = self._held_bytes = 0
        self._generation += 1
        self._mark = self._known = None
        self._uncommitted = []

    async def _read(self, source: FeedSource) -> None:
        """Read batches while consumers want them and there is room, until the source is lost or detached."""
        try:
            while True:
                await self._wait_for_room()
                try:
                    batch = await source.receive()
                except GapError as gap:
                    await self._skip(source, gap)
                else:
                    self._add(batch)
        except LaneRevoked:
            self._end(source)
        except ClusterError as error:
            self.problem = str(error)
            log.warning(
                "feed of %s, group %s, stops until the partition is read anew: %s", source.partition, self.key.group, error
            )
            self._end(source)
            await source.release()

    async def _wait_lost(self, source: FeedSource) -> None:
        """End the source as soon as it is lost, also while it is not read."""
        await source.lost.wait()
        tasks, self._tasks = self._tasks, []
        self._end(source)
        await cancel(*(task for task in tasks if task is not asyncio.current_task()))

    async def _wait_for_room(self) -> None:
        """Wait until consumers have taken everything that was read, and the limits permit to read more."""
        while not (self._is_wanted and self._has_room()):
            self._may_read.clear()
            if self._is_wanted and self._span < self._limits.span:
                self._limits.unacknowledged.wait(self._may_read.set)
            await self._may_read.wait()

    def _has_room(self) -> bool:
        return self._span < self._limits.span and self._limits.unacknowledged.may_read(self._held_bytes)

    async def _skip(self, source: FeedSource, gap: GapError) -> None:
        """Continue behind lost messages, as the real servers do, and count them. Raises LaneRevoked, ClusterError.

        A seek commits, so everything before the gap is acknowledged first: a crash would lose it otherwise.
        """
        if gap.resume is None:
            raise ClusterError(str(gap)) from gap
        await self._all_acknowledged.wait()
        self._commit()
        self.counters.gaps += 1
        log.warning("group %s continues without lost messages of %s: %s", self.key.group, source.partition, gap)
        await source.seek(gap.resume)

    def _add(self, batch: Batch) -> None:
        """Queue the units of a batch, or its messages, without those that are acknowledged already."""
        self.problem = None
        if self._mark is None:
            self._begin_at(batch.first)
        units = batch.units if batch.has_units and batch.format == self._format else None
        contents: Sequence[Unit | Message] = batch.messages if units is None else units
        held = HeldBatch(batch, batch.held_bytes if units is not None else batch.held_bytes + batch.size)
        ends = [content.position for content in contents[1:]] + [batch.next]
        index = 0
        for content, end in zip(contents, ends, strict=True):
            delivered = Delivered(self._numbering.number(content.position), content, held, index, end, self._generation)
            index = delivered.end_index
            self._add_unit(delivered)
        self._is_wanted = not self._fresh  # if all of it was acknowledged before, the consumers wait for the next batch
        if held.open_units:
            self._held_bytes += held.size
            self._limits.unacknowledged.add(held.size)
        self._advance()
        self._wake()

    def _begin_at(self, first: Position) -> None:
        """Begin at the first message of a source: what is recorded counts unless the group was moved back behind the record."""
        self._mark = first
        if self._known is not None and first < self._known.mark:
            self._known = None

    def _add_unit(self, delivered: Delivered) -> None:
        """Add a unit, as DONE if it is acknowledged already. One that is here already is not added.

        A source that delivers messages in any order may deliver one again after it has lost its connection.
        """
        if delivered.number in self._by_number:
            return
        if self._known is not None:
            delivered.remaining &= ~self._known.acknowledged_bits(delivered.number, delivered.count)
            if delivered.number >= self._known.last:
                self._known = None
        self._units.append(delivered)
        self._all_acknowledged.clear()
        self._span += delivered.count
        if delivered.remaining:
            delivered.held.open_units += 1
            self._by_number[delivered.number] = delivered
            self._fresh.append(delivered)
        else:
            delivered.state, delivered.unit, delivered.message = State.DONE, None, None

    # --- consumers --------------------------------------------------------------------------------------------------

    def take(self, max_messages: int, max_bytes: int) -> list[Delivered]:
        """Return units for a consumer, which are OUT now: up to these limits, but one at least if there is any.

        Never waits; if it returns nothing, the watchers are called when there is something.
        """
        taken: list[Delivered] = []
        while (delivered := self._next()) is not None:
            messages, size = delivered.remaining.bit_count(), delivered.size
            if taken and (messages > max_messages or size > max_bytes):
                break
            self._drop_next()
            delivered.state = State.OUT
            self.counters.delivered += messages
            taken.append(delivered)
            max_messages -= messages
            max_bytes -= size
            if max_messages <= 0 or max_bytes <= 0:
                break
        if not self._fresh and not self._again:
            self._is_wanted = True
            self._may_read.set()
        return taken

    def _next(self) -> Delivered | None:
        """Return the unit that is taken next: the first one that was given back, or the oldest new one."""
        while self._again and self._again[0][1].state is not State.QUEUED:
            heapq.heappop(self._again)
        while self._fresh and self._fresh[0].state is not State.QUEUED:
            self._fresh.popleft()
        if self._again:
            return self._again[0][1]
        return self._fresh[0] if self._fresh else None

    def _drop_next(self) -> None:
        if self._again:
            heapq.heappop(self._again)
        else:
            self._fresh.popleft()

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` soon after there is something to take, or `is_held` has changed; return the function that ends this."""
        self._watchers.add(wake)
        return lambda: self._watchers.discard(wake)

    def _wake(self) -> None:
        if not self._wake_scheduled:
            self._wake_scheduled = True
            asyncio.get_running_loop().call_soon(self._call_watchers)

    def _call_watchers(self) -> None:
        self._wake_scheduled = False
        for wake in list(self._watchers):
            wake()

    def find(self, number: int) -> Delivered | None:
        """Return the unit with this number that is not acknowledged; None if there is none."""
        return self._by_number.get(number)

    def acknowledge(self, delivered: Delivered, bits: int | None = None) -> None:
        """Acknowledge the messages of a unit whose bits are set; None: all of them. Units that are forgotten do not count."""
        if delivered.generation == self._generation:
            self._acknowledge(delivered, delivered.remaining if bits is None else bits)
            self._advance()

    def acknowledge_to(self, number: int) -> None:
        """Acknowledge every message whose number is smaller than this one."""
        for delivered in self._units:
            if delivered.number >= number:
                break
            self._acknowledge(delivered, (1 << min(delivered.count, number - delivered.number)) - 1)
        self._advance()

    def _acknowledge(self, delivered: Delivered, bits: int) -> None:
        bits &= delivered.remaining
        if not bits:
            return
        self.counters.acknowledged += bits.bit_count()
        delivered.remaining &= ~bits
        if not delivered.remaining:
            del self._by_number[delivered.number]
            delivered.held.open_units -= 1
        source = self._source
        if source is not None and source.is_individual:
            source.acknowledge_some(delivered.held.batch, _indexes(delivered, bits), is_last=not delivered.held.open_units)
        if not delivered.held.open_units:
            self._held_bytes -= delivered.held.size
            self._limits.unacknowledged.release(delivered.held.size)
        if not delivered.remaining:
            delivered.state, delivered.unit, delivered.message = State.DONE, None, None

    def give_back(self, delivered: Delivered, *, counted: bool, delay_s: float = 0.0) -> None:
        """Deliver a unit that is OUT again, after `delay_s`; with `counted`, this delivery counts as one."""
        if delivered.generation != self._generation or delivered.state is not State.OUT:
            return
        delivered.deliveries += counted
        self.counters.redelivered += counted
        if delay_s > 0:
            delivered.state = State.DELAYED
            asyncio.get_running_loop().call_later(delay_s, self._queue_again, delivered, delivered.generation)
        else:
            self._queue_again(delivered, delivered.generation)

    def _queue_again(self, delivered: Delivered, generation: int) -> None:
        if generation == self._generation and delivered.state in {State.OUT, State.DELAYED}:
            delivered.state = State.QUEUED
            heapq.heappush(self._again, (delivered.number, delivered))
            self._wake()

    # --- what is acknowledged ---------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Forget the units of the acknowledged prefix, and commit it soon."""
        while self._units and self._units[0].state is State.DONE:
            delivered = self._units.popleft()
            self._span -= delivered.count
            self._mark = delivered.end
            batch = delivered.held.batch
            if self._uncommitted and self._uncommitted[-1][0] is batch:
                self._uncommitted.pop()
            self._uncommitted.append((batch, delivered.end_index))
        if not self._units:
            self._all_acknowledged.set()
        if self._store is not None and self._mark is not None and self._source is not None and not self._source.is_individual:
            self._store.record(self.key, self.state)
        if self._uncommitted and not self._commit_scheduled:
            self._commit_scheduled = True
            asyncio.get_running_loop().call_soon(self._commit)
        if self._is_wanted:
            self._may_read.set()

    def _commit(self) -> None:
        """Acknowledge the prefix at the source."""
        self._commit_scheduled = False
        uncommitted, self._uncommitted = self._uncommitted, []
        if self._source is not None and not self._source.is_individual:
            for batch, count in uncommitted:
                self._source.acknowledge(batch, count)

    def state(self) -> Acknowledged:
        """Return what is acknowledged, as it is recorded."""
        assert self._mark is not None  # noqa: S101 - it is recorded only once something was read
        ranges = ranges_of((each.number, each.state is State.DONE) for each in self._units)
        partial = {
            each.number: ((1 << each.count) - 1) & ~each.remaining
            for each in self._units
            if each.state is not State.DONE and each.remaining != (1 << each.count) - 1
        }
        return Acknowledged(self._mark, ranges, partial)

    # --- seek ---------------------------------------------------------------------------------------------------------

    async def seek(self, position: Position) -> None:
        """Continue at this position; the units that are out do not count any more.

        Raises LaneRevoked, and ClusterError if the source cannot: then nothing has changed.
        """
        source = self._source
        if source is None:
            raise LaneRevoked(f"partition {self.key.partition} of topic {self.key.topic} is not held by this gateway")
        tasks, self._tasks = self._tasks, []
        await cancel(*tasks)  # a batch that is received while the source moves could be of either side
        try:
            await source.seek(position)
            if self._source is source:
                self._forget(None)
                self._mark = position
                self._is_wanted = bool(self._watchers)
                self._advance()
        finally:
            if self._source is source:
                self._start(source)


def _indexes(delivered: Delivered, bits: int) -> list[int]:
    """Return the indexes in the batch of the messages with these bits; messages that are left out of the batch have none."""
    left_out = 0 if delivered.unit is None else delivered.unit.left_out
    in_batch = [bit for bit in range(delivered.count) if not left_out >> bit & 1]
    first = delivered.end_index - len(in_batch)
    return [first + index for index, bit in enumerate(in_batch) if bits >> bit & 1]
