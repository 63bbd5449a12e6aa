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

A seek, a lost partition and `detach` forget all units, and begin another `generation`: what a consumer does with them later has
no effect. `finish` hands out nothing more, and waits for the consumers before the source is given up.

What this rests on: numbers ascend within an ordered source, but need not be consecutive; a batch ends with a unit; a consumer
gives a unit back at most once for each time that it took it. An ordered source that delivers again what it has delivered counts
as one that begins anew.

What is acknowledged behind the prefix is recorded, so that a restart delivers only the rest: see `progress`.
"""

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mqbridge.adapter.numbering import Numbering
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.errors import ClusterError, GapError, LaneRevoked, LocalProtocolError
from mqbridge.groups.acknowledged import Acknowledged
from mqbridge.groups.store import GroupKey, GroupStore
from mqbridge.listener.delivered import Delivered, HeldBatch, State
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.progress import GroupProgress
from mqbridge.listener.sources import FeedSource
from mqbridge.message import Batch, Message, Position, Unit
from mqbridge.net.tasks import cancel, mark_error_retrieved, spawn

log = logging.getLogger(__name__)

MAX_ALLOWED_BYTES = 256 << 20
"""Maximum of the bytes that a feed holds beyond its limit, for messages that consist of several units."""
RELEASE_GRACE_S = 0.5
"""Time after the deadline that sources get that obey it."""


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
        self.on_failed: Callable[[], None] | None = None
        """Called when the source was given up because of a problem: somebody has to attach one again."""
        self._format, self._numbering, self._store, self._limits = format_name, numbering, store, limits
        self._source: FeedSource | None = None
        self._pump: asyncio.Task[None] | None = None
        """The task that reads the source; None without a source, and while a seek moves it."""
        self._loss_task: asyncio.Task[None] | None = None
        """The task that notices that the source is lost."""
        self._releases: set[asyncio.Task[None]] = set()
        """Tasks that release earlier sources."""
        self._seek_lock = asyncio.Lock()
        self._units: deque[Delivered] = deque()
        """All units from the oldest one that is not DONE to the newest, in order."""
        self._by_number: dict[int, Delivered] = {}
        """The units of `_units`."""
        self._fresh: deque[Delivered] = deque()
        """Units that were never taken; some may be DONE."""
        self._again: list[tuple[int, Delivered]] = []
        """A heap of units that were given back, by number; some may be DONE."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        """Timers of units that were given back with a delay, by number."""
        self._span = self._held_bytes = self._open_bytes = self._out_count = self._allowed_bytes = 0
        """Messages in `_units`; bytes of their batches that have units which are not DONE, and of these units alone; number of
        units that are OUT; bytes that may be held beyond the limit, see `allow`."""
        self._last = -1
        """Number of the newest unit that the source has delivered; -1 before the first."""
        self._all_acknowledged = asyncio.Event()
        """Set while there are no units."""
        self._all_acknowledged.set()
        self._progress = GroupProgress(key, None)
        """How far the group has come with the present source."""
        self.generation = 0
        """Number of seeks and of ended sources: units of earlier ones do not count."""
        self._is_finishing = False
        """True if nothing is handed out any more, because the source is going to be given up."""
        self._none_out = asyncio.Event()
        """Set while no unit is OUT."""
        self._none_out.set()
        self._watchers: set[Callable[[], None]] = set()
        self._may_read = asyncio.Event()
        """Set when the pump has to check again whether it may read."""
        self._is_wanted = False
        """True if a consumer found nothing to take since the last batch that had something."""
        self._commit_scheduled = self._wake_scheduled = False
        self._uncommitted: list[tuple[Batch, int]] = []
        """Batches, with the number of their messages up to which everything is acknowledged, not passed to the source yet."""

    # --- the source -------------------------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """False while another gateway has the partition, or nobody: nothing comes."""
        return self._source is not None

    @property
    def is_any_out(self) -> bool:
        """True if a consumer has a unit."""
        return self._out_count > 0

    @property
    def caught_up(self) -> bool:
        """True if every message that the source had at the last look was taken."""
        return self._source is not None and self._source.caught_up and self._next() is None

    def attach(self, source: FeedSource, begin: Position | None = None) -> None:
        """Read this source from now on; `begin` is the position of its first message, if that is known.

        An earlier source was detached or lost before.
        """
        if self._source is not None:
            raise LocalProtocolError(f"the feed of {source.partition} has a source already")
        self._source, self.problem, self._is_finishing = source, None, False
        self._progress = self._new_progress(source)
        if begin is not None:
            self._progress.begin_at(begin)
        self._start(source)
        self._loss_task = spawn(self._wait_lost(source), f"loss of {source.partition} for {self.key.group}")
        self._wake()

    def _new_progress(self, source: FeedSource) -> GroupProgress:
        return GroupProgress(self.key, None if source.is_individual else self._store)

    def _start(self, source: FeedSource) -> None:
        self._pump = spawn(self._read(source), f"feed of {source.partition} for {self.key.group}")

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more, and wait until the consumers have settled what they have, or until the deadline (loop time)."""
        self._is_finishing = True
        try:
            async with asyncio.timeout_at(deadline):
                await self._none_out.wait()
        except TimeoutError:
            log.info("group %s: %d units of %s are out when it is given up", self.key.group, self._out_count, self.key.partition)

    async def detach(self, deadline: float | None = None, *, source: FeedSource | None = None) -> None:
        """Give the source up, and wait until it is released; the units that are out do not count any more.

        With `source`, only that one is given up, not a newer one.
        """
        if self._source is not None and source in (None, self._source):
            self._end(self._source, deadline)
        if self._releases:
            await asyncio.wait(self._releases, timeout=seconds_until(deadline) + RELEASE_GRACE_S)

    def _end(self, source: FeedSource, deadline: float | None = None) -> None:
        """Commit, forget the source and its units, and release it in the background."""
        if self._source is not source:
            return
        self._commit()
        state = self.state()
        tasks = [self._pump, self._loss_task]
        self._source = self._pump = self._loss_task = None
        progress = None if source.lost.is_set() else self._progress
        self._forget(state)
        self._wake()
        others = [task for task in tasks if task is not asyncio.current_task()]
        release = spawn(_release(source, deadline, others, progress), f"release of {source.partition} for {self.key.group}")
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    def _forget(self, state: Acknowledged | None) -> None:
        """Forget all units, and record this state instead of what follows from them."""
        self._progress.end(state)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._limits.unacknowledged.release(self._held_bytes)
        self._limits.unacknowledged.open -= self._open_bytes
        self._units.clear()
        self._by_number.clear()
        self._fresh.clear()
        self._again.clear()
        self._span = self._held_bytes = self._open_bytes = self._allowed_bytes = 0
        self._last = -1
        self._all_acknowledged.set()
        self.generation += 1
        self._uncommitted = []
        self._out_count = 0
        self._none_out.set()

    async def _read(self, source: FeedSource) -> None:
        """Read batches while consumers want them and there is room, until the source is lost, detached or moved."""
        try:
            while True:
                await self._wait_for_room()
                try:
                    batch = await source.receive()
                except GapError as gap:
                    await self._skip(source, gap)
                else:
                    if self._source is not source:  # it was given up as the batch came, and this task is about to be cancelled
                        return
                    self._add(source, batch)
        except LaneRevoked:
            self._end(source)
        except ClusterError as error:
            log.warning("group %s stops reading %s until it is assigned anew: %s", self.key.group, source.partition, error)
            self._fail(source, error)
        except Exception as error:  # a bug of the adapter or of ours must not look like a partition without messages
            log.exception("group %s stops reading %s until it is assigned anew", self.key.group, source.partition)
            self._fail(source, error)

    def _fail(self, source: FeedSource, error: Exception) -> None:
        if self._source is source:
            self.problem = str(error) or repr(error)
            self._end(source)
            if self.on_failed is not None:
                self.on_failed()

    async def _wait_lost(self, source: FeedSource) -> None:
        """End the source as soon as it is lost, also while it is not read."""
        await source.lost.wait()
        self._end(source)

    async def _wait_for_room(self) -> None:
        """Wait until consumers have taken everything that was read, and the limits permit to read more."""
        while not (self._is_wanted and self._has_room()):
            self._may_read.clear()
            if self._is_wanted and self._span < self._limits.span:
                self._limits.unacknowledged.wait(self._may_read.set)
            await self._may_read.wait()

    def _has_room(self) -> bool:
        own = max(0, self._held_bytes - self._allowed_bytes)
        return self._span < self._limits.span and self._limits.unacknowledged.may_read(own)

    def allow(self, size: int) -> None:
        """Permit to hold this many bytes beyond the limit, at most MAX_ALLOWED_BYTES: consumers cannot acknowledge them yet.

        A large message may consist of several units, of which none is acknowledged before the last one has come.
        """
        self._allowed_bytes = min(size, MAX_ALLOWED_BYTES)
        self._may_read.set()

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

    # --- what the source delivers -------------------------------------------------------------------------------------

    def _add(self, source: FeedSource, batch: Batch) -> None:
        """Queue the units of a batch, or its messages, without those that are acknowledged already."""
        self.problem = None
        units = self._units_of(batch)
        if not units:
            return
        if not source.is_individual and units[0].number <= self._last:
            self._begin_anew(source)
            for delivered in units:
                delivered.generation = self.generation
        if self._progress.mark is None:
            self._progress.begin_at(batch.first)
        for delivered in units:
            self._add_unit(source, delivered)
        held = units[0].held
        self._held_bytes += held.size
        self._limits.unacknowledged.add(held.size)
        if not held.open_units:
            self._drop_contents(held)
        self._is_wanted = not self._fresh  # if all of it was acknowledged before, the consumers wait for the next batch
        self._advance()
        self._wake()

    def _units_of(self, batch: Batch) -> list[Delivered]:
        """Return the units of a batch, or its messages. Raises an error of the batch before anything has changed."""
        units = batch.units if batch.has_units and batch.format == self._format else None
        contents: Sequence[Unit | Message] = batch.messages if units is None else units
        held = HeldBatch(batch, batch.keep_messages() if units is None else batch.held_bytes)
        ends = [content.position for content in contents[1:]]
        found: list[Delivered] = []
        index = 0
        for content, end in zip(contents, [*ends, batch.next][: len(contents)], strict=True):
            number = self._numbering.number(content.position)
            found.append(Delivered(number, content, held, index, end, self.generation))
            index = found[-1].end_index
        if index != batch.count:
            raise LocalProtocolError(f"a batch of {batch.count} messages of {batch.partition} has units with {index}")
        return found

    def _begin_anew(self, source: FeedSource) -> None:
        """Take note that the source delivers again what it has delivered: it has begun anew, perhaps at another connection."""
        log.info("group %s: %s is delivered again from an earlier message on", self.key.group, source.partition)
        state = self.state()
        self._forget(state)
        self._progress = self._new_progress(source)
        if state is not None:
            self._progress.continue_with(state)

    def _add_unit(self, source: FeedSource, delivered: Delivered) -> None:
        """Add a unit, as DONE if it is acknowledged already."""
        if (existing := self._by_number.get(delivered.number)) is not None:
            self._deliver_again(source, existing, delivered)
            return
        self._last = max(self._last, delivered.number)
        delivered.remaining &= ~self._progress.acknowledged_before(delivered)
        self._units.append(delivered)
        self._by_number[delivered.number] = delivered
        self._all_acknowledged.clear()
        self._span += delivered.count
        if delivered.remaining:
            delivered.held.open_units += 1
            self._count_open(delivered.size)
            self._fresh.append(delivered)
        else:
            delivered.finish()

    def _deliver_again(self, source: FeedSource, existing: Delivered, again: Delivered) -> None:
        """Acknowledge a unit that is here already by its newest delivery from now on, and at once what is acknowledged of it.

        A source of single messages delivers them again after it has lost its connection, in any order, and without those that it
        knows to be acknowledged.
        """
        existing.held.is_whole = again.held.is_whole = False
        if settled := again.remaining & ~existing.remaining:
            source.acknowledge_some(again.held.batch, again.indexes_in_batch(settled), is_last=False)
        if existing.state is State.DONE:
            return
        existing.remaining &= again.remaining
        if not existing.remaining:
            self._finish_unit(existing)
            return
        self._close_unit(existing.held)
        self._count_open(again.size - existing.size)
        existing.take_content(again)
        existing.held.open_units += 1

    # --- consumers --------------------------------------------------------------------------------------------------

    def take(self, max_messages: int, max_bytes: int) -> list[Delivered]:
        """Return units for a consumer, which are OUT now: up to these limits, but one at least if there is any.

        Never waits; if it returns nothing, the watchers are called when there is something.
        """
        taken: list[Delivered] = []
        delivered_messages = 0
        while not self._is_finishing and (delivered := self._next()) is not None:
            messages, size = delivered.remaining.bit_count(), delivered.size
            if taken and (messages > max_messages or size > max_bytes):
                break
            self._drop_next()
            delivered.state = State.OUT
            delivered_messages += messages
            taken.append(delivered)
            max_messages -= messages
            max_bytes -= size
            if max_messages <= 0 or max_bytes <= 0:
                break
        if taken:
            self._out_count += len(taken)
            self._none_out.clear()
            self.counters.delivered += delivered_messages
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
        for wake in self._watchers:
            asyncio.get_running_loop().call_soon(wake)  # by itself: an error in one does not keep the others from being called

    def find(self, number: int) -> Delivered | None:
        """Return the unit with this number that consumers can acknowledge; None if there is none."""
        delivered = self._by_number.get(number)
        return None if delivered is None or delivered.state is State.DONE or delivered.is_withheld else delivered

    def acknowledge(self, delivered: Delivered, bits: int | None = None) -> None:
        """Acknowledge the messages of a unit whose bits are set; None: all of them. Units that are forgotten do not count."""
        if delivered.generation == self.generation:
            self._acknowledge(delivered, delivered.remaining if bits is None else bits)
            self._advance()

    def acknowledge_all(self, units: Iterable[tuple[Delivered, int | None]]) -> None:
        """Acknowledge messages of several units, see `acknowledge`."""
        for delivered, bits in units:
            if delivered.generation == self.generation:
                self._acknowledge(delivered, delivered.remaining if bits is None else bits)
        self._advance()

    def acknowledge_to(self, number: int) -> None:
        """Acknowledge every message whose number is smaller than this one, except for those that are withheld from consumers."""
        for delivered in self._units:
            if delivered.is_withheld:
                continue
            if delivered.number < number:
                self._acknowledge(delivered, (1 << min(delivered.count, number - delivered.number)) - 1)
            elif self._source is not None and not self._source.is_individual:
                break  # numbers ascend
        self._advance()

    def _acknowledge(self, delivered: Delivered, bits: int) -> None:
        bits &= delivered.remaining
        if not bits:
            return
        self.counters.acknowledged += bits.bit_count()
        delivered.remaining &= ~bits
        held, source = delivered.held, self._source
        if source is not None and source.is_individual:
            is_last = held.is_whole and held.open_units == 1 and not delivered.remaining
            source.acknowledge_some(held.batch, delivered.indexes_in_batch(bits), is_last=is_last)
        if not delivered.remaining:
            self._finish_unit(delivered)

    def _finish_unit(self, delivered: Delivered) -> None:
        """Make a unit DONE of which nothing remains."""
        if delivered.state is State.OUT:
            self._count_returned()
        elif delivered.state is State.DELAYED:
            self._timers.pop(delivered.number).cancel()
        self._count_open(-delivered.size)
        delivered.finish()
        self._close_unit(delivered.held)

    def _count_open(self, size: int) -> None:
        """Count the bytes of a unit that is not DONE, or (negative) of one that is."""
        self._open_bytes += size
        self._limits.unacknowledged.open += size

    def _count_returned(self) -> None:
        """Count one unit less that is OUT."""
        self._out_count -= 1
        if not self._out_count:
            self._none_out.set()

    def _close_unit(self, held: HeldBatch) -> None:
        """Count one open unit of a batch less; without any, its contents are dropped."""
        held.open_units -= 1
        if not held.open_units:
            self._drop_contents(held)

    def _drop_contents(self, held: HeldBatch) -> None:
        """Drop the contents of a batch without open units.

        If the source needs them to acknowledge the batch, they stay, and count, until everything before is acknowledged, too.
        """
        source = self._source
        if source is None or source.is_individual or not source.needs_contents or held.batch.messages_replace_data:
            held.batch.drop_contents()
            self._let_go(held)

    def _let_go(self, held: HeldBatch) -> None:
        """Count the bytes of a batch no longer: its contents were dropped, or nothing refers to it soon."""
        size, held.size = held.size, 0
        self._held_bytes -= size
        self._limits.unacknowledged.release(size)

    def give_back(self, delivered: Delivered, *, counted: bool, delay_s: float = 0.0) -> None:
        """Deliver a unit that is OUT again, after `delay_s`; with `counted`, this delivery counts as one."""
        if delivered.generation != self.generation or delivered.state is not State.OUT:
            return
        self._count_returned()
        delivered.deliveries += counted
        self.counters.redelivered += counted
        if delay_s > 0:
            delivered.state = State.DELAYED
            loop = asyncio.get_running_loop()
            self._timers[delivered.number] = loop.call_later(delay_s, self._on_due, delivered)
        else:
            self._queue_again(delivered)

    def count_redelivery(self, delivered: Delivered) -> None:
        """Count a delivery of a unit that stays OUT, and is delivered again by whoever has taken it."""
        if delivered.generation == self.generation:
            delivered.deliveries += 1
            self.counters.redelivered += 1

    def _on_due(self, delivered: Delivered) -> None:
        del self._timers[delivered.number]
        if delivered.state is State.DELAYED:
            self._queue_again(delivered)

    def _queue_again(self, delivered: Delivered) -> None:
        delivered.state = State.QUEUED
        heapq.heappush(self._again, (delivered.number, delivered))
        self._wake()

    # --- what is acknowledged ---------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Forget the units of the acknowledged prefix, and commit it soon."""
        while self._units and self._units[0].state is State.DONE:
            delivered = self._units.popleft()
            del self._by_number[delivered.number]
            self._span -= delivered.count
            self._progress.advance_past(delivered)
            batch = delivered.held.batch
            if delivered.end_index == batch.count:
                self._let_go(delivered.held)
            if self._uncommitted and self._uncommitted[-1][0] is batch:
                self._uncommitted.pop()
            self._uncommitted.append((batch, delivered.end_index))
        if not self._units:
            self._all_acknowledged.set()
        if self._source is not None:
            self._progress.record(self.state)
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

    def state(self) -> Acknowledged | None:
        """Return what is acknowledged, as it is recorded; None while the position of the group is not known."""
        return self._progress.state(self._units, self._last)

    async def recorded(self) -> None:
        """Wait until what is acknowledged now is in the state file, if there is one. Raises ClusterError if it is not in time."""
        if self._store is not None:
            await self._store.written(self.key)

    async def advance(self, position: Position) -> None:
        """Acknowledge everything before a position; what is acknowledged behind it stays so. Raises LaneRevoked, ClusterError."""
        number = self._numbering.number(position)
        if number <= self._last:
            self.acknowledge_to(number)
        else:  # nothing behind it was read yet
            await self.seek(position)

    # --- seek ---------------------------------------------------------------------------------------------------------

    async def seek(self, position: Position) -> None:
        """Continue at this position; the units that are out do not count any more.

        It goes on if the caller is cancelled. Raises LaneRevoked, and ClusterError if the source cannot: then nothing changes.
        """
        task = spawn(
            self._seek(position), f"seek in {self.key.topic}/{self.key.partition} for {self.key.group}", log_errors=False
        )
        task.add_done_callback(mark_error_retrieved)
        await asyncio.shield(task)

    async def _seek(self, position: Position) -> None:
        async with self._seek_lock:
            source = self._held_source()
            pump, self._pump = self._pump, None
            await cancel(pump)  # a batch that is received while the source moves could be of either side
            try:
                await source.seek(position)
                if self._held_source() is not source:
                    raise LaneRevoked(f"{source.partition} was released while the group was moved in it")
                self._forget(None)
                self._progress = self._new_progress(source)
                self._progress.move_to(position)
                self._is_wanted = bool(self._watchers)
                self._advance()
            finally:
                if self._source is source:
                    self._start(source)
                    self._wake()

    def _held_source(self) -> FeedSource:
        """Return the source. Raises LaneRevoked if there is none."""
        if self._source is None:
            raise LaneRevoked(f"partition {self.key.partition} of topic {self.key.topic} is not held by this gateway")
        return self._source


async def _release(
    source: FeedSource, deadline: float | None, tasks: Sequence["asyncio.Task[None] | None"], progress: GroupProgress | None
) -> None:
    """End the tasks that use a source, and release it: it then has stored how far the group has come, unless it was lost."""
    await cancel(*tasks)
    await source.release(deadline)
    if progress is not None:
        progress.released()
