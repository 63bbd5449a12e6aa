"""A partition of a group of the cluster, for clients that pull at a number and commit a number.

Such clients keep their own position: they say from which number on they want messages, and now and then up to which number the
group has consumed. So nothing is kept of single messages, as `Feed` does, but of the batches that were handed out and are not
committed yet. Their contents are dropped when all of them was handed out.

    UNHELD     another gateway has the partition, or nobody
    HELD       the lane is read, as pulls ask for it
    FINISHING  nothing more is handed out: what was handed out may still be committed before the lane is given up

        attach           UNHELD -> HELD
        finish           HELD -> FINISHING
        detach, (lost)   HELD, FINISHING -> UNHELD

Numbers, ascending:   committed    the group has consumed everything before it
                      next         the next one to hand out

Numbers only order messages, unless they are dense (`Numbering.dense`): many may lie between two messages. So no message is before
`next` from the number after the last message on, and a client may pull at any of these numbers, or commit it.

What this rests on: numbers ascend; a lane delivers what was not committed again when it is attached anew, from the committed
position of the group on, which `find_begin` returns. A client that pulls behind that has what is before it from an earlier lane.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from mqbridge.adapter.inbound import ConfirmsEnd, KeepsPrefixes
from mqbridge.adapter.numbering import Numbering
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.errors import ClusterError, GapError, LaneRevoked, LocalProtocolError
from mqbridge.groups.store import GroupKey
from mqbridge.listener.feed import RELEASE_GRACE_S, FeedLimits
from mqbridge.listener.numbered import NumberedBatch, Slice
from mqbridge.listener.sources import FeedSource
from mqbridge.message import Batch, Position
from mqbridge.net.tasks import cancel, mark_error_retrieved, spawn

log = logging.getLogger(__name__)

FIRST_LOOK_S = 10.0
"""Time between two looks whether messages are still stored that clients have, and that are before a gap."""


class OutOfReach(ClusterError):
    """The lane is not at this number: a reader by position has it."""


class QueueFeedState(Enum):
    """The state of a feed, see the module."""

    UNHELD = "unheld"
    HELD = "held"
    FINISHING = "finishing"


class QueueFeed:
    """See the module, and `mqbridge.listener.groups.GroupFeed`. All methods run on the event loop."""

    def __init__(
        self,
        key: GroupKey,
        unit_format: str,
        numbering: Numbering,
        limits: FeedLimits,
        find_begin: Callable[[], Coroutine[Any, Any, int | None]],
        find_bounds: Callable[[], Awaitable[tuple[int, int]]],
    ) -> None:
        """`find_begin` returns the committed number of the group, which the cluster knows; None if it has none.

        `find_bounds` returns the number of the partition's first message, and that of its next one. Both raise ClusterError.
        """
        self.key = key
        self.problem: str | None = None
        self.on_failed: Callable[[], None] | None = None
        self.on_change: Callable[[QueueFeed], None] = lambda _: None
        """Called when the state has changed."""
        self.state = QueueFeedState.UNHELD
        self.gaps = 0
        self.committed: int | None = None
        self.next: int | None = None
        """The numbers that the module describes; None while they are not known, or the partition is not held."""
        self._after: int | None = None
        """The number after the last message before `next`: it and those up to `next` all mean the next message."""
        self._format, self._numbering, self._limits = unit_format, numbering, limits
        self._find_begin, self._find_bounds = find_begin, find_bounds
        self._source: FeedSource | None = None
        self._loss_task: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self._window: deque[NumberedBatch] = deque()
        """Batches that are not committed whole, in order."""
        self._window_count = 0
        """Number of messages of the batches of the window."""
        self._current: NumberedBatch | None = None
        """The last batch of the window, while some of it was not handed out."""
        self._held_bytes: dict[NumberedBatch, int] = {}
        """Bytes of the batches of the window that have their contents."""
        self._receiving: asyncio.Task[Batch] | None = None
        """The task that receives the next batch; it goes on when the pull that wanted it has ended."""
        self._reading = asyncio.Lock()
        """Held by the pull that reads."""
        self._moving = asyncio.Lock()
        """Held by a move."""
        self._changed = asyncio.Event()
        """Set when the state, or what was committed, has changed, and when the group was moved."""
        self._settled = asyncio.Event()
        """Set while everything that was handed out is committed."""
        self._settled.set()
        self._unclaimed = asyncio.Event()
        """Set while no client has messages that are not committed: they are committed, or the client has given them back."""
        self._unclaimed.set()
        self._finding: asyncio.Task[int | None] | None = None
        """The task that finds the group's begin; it goes on when the pull that wanted it has ended."""
        self._handed_out = 0
        """The number after the last message that a client has: it was handed out, or skipped, since the lane was attached."""
        self._moves = 0
        """Number of begins and ends of moves: a commit from before the end of a move does not undo it."""
        self._is_retired = False
        self._generation = 0
        """Increases when the lane is given up, and when the group is moved: no pull that waits outlives that."""

    @property
    def is_held(self) -> bool:
        """True if this gateway has the partition."""
        return self.state is not QueueFeedState.UNHELD

    @property
    def is_settled(self) -> bool:
        """True if everything that was handed out is committed."""
        return self._settled.is_set()

    @property
    def caught_up(self) -> bool:
        """True if the source had no more messages at the last look, and all that it has delivered was handed out.

        False if that is not known: some sources know it only when they are asked, see `confirm_caught_up`.
        """
        return self._source is not None and self._source.caught_up and not self._has_received

    @property
    def _has_received(self) -> bool:
        """True if messages were received that are not handed out."""
        receiving = self._receiving
        return self._current is not None or (receiving is not None and receiving.done())

    async def confirm_caught_up(self) -> bool:
        """Ask the source for its end, if it can be asked, and return `caught_up`. Raises ClusterError."""
        source = self._source
        if isinstance(source, ConfirmsEnd) and not self._has_received:
            await source.confirm_caught_up()
        return self.caught_up

    def _set_state(self, state: QueueFeedState) -> None:
        self.state = state
        self._changed.set()
        self.on_change(self)

    # --- the source -------------------------------------------------------------------------------------------------------

    def attach(self, source: FeedSource, begin: Position | None = None) -> None:
        """Read this source from now on; `begin` is the position of its first message, if that is known."""
        if self._source is not None:
            raise LocalProtocolError(f"the feed of {source.partition} has a source already")
        self._source, self.problem = source, None
        if begin is not None:
            self._begin_at(self._numbering.number(begin))
        self._loss_task = spawn(self._wait_lost(source), f"loss of {source.partition} for {self.key.group}")
        self._set_state(QueueFeedState.HELD)

    def _begin_at(self, number: int) -> None:
        """Begin at a number: everything before it is committed."""
        self.committed = self.next = self._after = number

    async def _wait_lost(self, source: FeedSource) -> None:
        await source.lost.wait()
        self._end(source)

    async def finish(self, deadline: float) -> None:
        """Hand out nothing more, and wait until no client has what is not committed, or until the deadline (loop time)."""
        if self.state is not QueueFeedState.HELD:
            return
        self._set_state(QueueFeedState.FINISHING)
        try:
            async with asyncio.timeout_at(deadline):
                await self._unclaimed.wait()
        except TimeoutError:
            log.info("group %s has not committed all of %s when it is given up", self.key.group, self.key.partition)

    async def detach(self, deadline: float | None = None, *, source: FeedSource | None = None) -> None:
        """Give the source up, or this one only, and wait until it is released."""
        if self._source is not None and source in (None, self._source):
            self._end(self._source, deadline)
        if self._releases:
            await asyncio.wait(self._releases, timeout=seconds_until(deadline) + RELEASE_GRACE_S)

    def _end(self, source: FeedSource, deadline: float | None = None) -> None:
        """Forget the source and what was handed out, and release it in the background."""
        if self._source is not source:
            return
        tasks: list[asyncio.Task[Any] | None] = [self._loss_task, self._receiving, self._finding]
        self._source = self._loss_task = self._receiving = self._finding = None
        self._forget_handed_out()
        self.committed = self.next = self._after = None
        self._set_state(QueueFeedState.UNHELD)
        others = [task for task in tasks if task is not asyncio.current_task()]
        release = spawn(_release(source, deadline, others), f"release of {source.partition} for {self.key.group}")
        self._releases.add(release)
        release.add_done_callback(self._releases.discard)

    def _forget_handed_out(self) -> None:
        """Forget all batches, and what was handed out."""
        self._forget_batches()
        self._generation += 1
        self._handed_out = 0
        self._set_settled()

    def _forget_batches(self) -> None:
        self._window.clear()
        self._window_count = 0
        self._current = None
        self._limits.unacknowledged.release(sum(self._held_bytes.values()))
        self._held_bytes.clear()

    def _fail(self, source: FeedSource, error: Exception) -> None:
        if self._source is source:
            log.warning("group %s stops reading %s until it is assigned anew: %s", self.key.group, source.partition, error)
            self.problem = str(error) or repr(error)
            self._end(source)
            if self.on_failed is not None:
                self.on_failed()

    def retire(self) -> None:
        """End the pulls that wait for a source, because there will be none."""
        self._is_retired = True
        self._changed.set()

    # --- pulls ------------------------------------------------------------------------------------------------------------

    def is_ready(self, number: int) -> bool:
        """Return True if `take` has messages from this number on."""
        current = self._current
        if current is None or self.state is not QueueFeedState.HELD or self._reading.locked():
            return False
        return self._is_next(number)

    def _is_next(self, number: int) -> bool:
        """Return True if the message to hand out next is the first one from this number on."""
        return self.next is not None and self._after is not None and self._after <= number <= self.next

    def take(self, number: int, max_messages: int, max_bytes: int) -> Slice:
        """Hand out what was received already from a number on, see `is_ready`."""
        current = self._current
        assert current is not None  # noqa: S101 - `is_ready`
        taken = current.cut(number, max_messages, max_bytes)
        self.next, self._after = taken.next, current.after(taken.next)
        if taken.numbers:
            self._note_handed_out(taken.numbers[-1] + 1)
        if taken.next >= current.end:
            self._current = None
            self._drop_contents(current)
        return taken

    def _note_handed_out(self, end: int) -> None:
        """Take note that a client has what is before this number."""
        self._handed_out = max(self._handed_out, end)
        if self.committed is None or self.committed < self._handed_out:
            self._settled.clear()
            self._unclaimed.clear()

    def give_back(self) -> None:
        """Take note that no client has messages that are not committed any more: they are read again by position."""
        self._unclaimed.set()

    def claim(self) -> None:
        """Take note that a client has got such messages again."""
        if not self._settled.is_set():
            self._unclaimed.clear()

    def _set_settled(self) -> None:
        self._settled.set()
        self._unclaimed.set()

    def _drop_contents(self, numbered: NumberedBatch) -> None:
        """Drop the contents of a batch that was handed out, unless the source needs them to acknowledge it."""
        source = self._source
        if source is None or not source.needs_contents or numbered.batch.messages_replace_data:
            if isinstance(source, KeepsPrefixes):
                source.keep_prefixes(numbered.batch)
            numbered.drop_contents()
            self._limits.unacknowledged.release(self._held_bytes.pop(numbered, 0))

    async def read(self, number: int, max_messages: int, max_bytes: int, *, may_skip: bool) -> Slice:
        """Wait for messages from a number on, and hand them out; cancelling loses none.

        With `may_skip`, a first pull at what the group has consumed already gets what comes after that. Waits while the partition
        is not held. Raises OutOfReach if a reader has to be asked, LaneRevoked if the partition is lost or given up, or the group
        is moved in it, and ClusterError.
        """
        self._check_reach(number, may_skip=may_skip)
        async with self._reading:
            await self._wait_held()
            generation = self._generation
            if self.next is None:
                await self._learn_begin(generation)
            number = self._check_reach(number, may_skip=may_skip)
            while self._current is None or self._current.last < number:
                self._check_span(number)
                await self._receive(generation)
            if self.state is not QueueFeedState.HELD:
                raise LaneRevoked(f"partition {self.key.partition} of topic {self.key.topic} is being given up")
            return self.take(max(number, self._current.first), max_messages, max_bytes)

    def _check_reach(self, number: int, *, may_skip: bool) -> int:
        """Return the number from which on a pull at this number reads. Raises OutOfReach if it was handed out, or consumed."""
        if self.next is None or number >= self.next or self._is_next(number):
            return number
        if may_skip and self.committed is not None and self._is_next(self.committed):
            return self.next
        raise OutOfReach(f"{number} was handed out, or consumed before")

    async def _wait_held(self) -> None:
        while self.state is not QueueFeedState.HELD:
            if self._is_retired:
                raise LaneRevoked(f"the group has a new feed of partition {self.key.partition} of topic {self.key.topic}")
            self._changed.clear()
            await self._changed.wait()

    async def _learn_begin(self, generation: int) -> None:
        if self._finding is None:
            self._finding = spawn(self._find_begin(), f"begin of {self.key.group}", log_errors=False)
            self._finding.add_done_callback(mark_error_retrieved)
        finding = self._finding
        await asyncio.wait([finding])
        if self._finding is finding:
            self._finding = None
        self._source_of(generation)
        begin = finding.result()
        if self.next is None and begin is not None:
            self._begin_at(begin)

    def _source_of(self, generation: int) -> FeedSource:
        """Return the source that a pull reads. Raises LaneRevoked if it was lost, or moved."""
        if self._source is None or self._generation != generation:
            raise LaneRevoked(f"partition {self.key.partition} of topic {self.key.topic} was lost, or the group was moved in it")
        return self._source

    def _check_span(self, number: int) -> None:
        """Raise OutOfReach if more would be skipped than may be uncommitted: there would be no room until somebody commits."""
        if self.next is None or self.committed is None or number <= self.next:
            return
        span = number - self.committed if self._numbering.dense else self._span
        if span >= self._limits.span:
            raise OutOfReach(f"{number} is far behind {self.next}")

    async def _receive(self, generation: int) -> None:
        """Receive the next batch; the one before, if there is one, is skipped. Raises LaneRevoked, ClusterError."""
        skipped = self._current
        if skipped is not None:
            self._current, self.next, self._after = None, skipped.end, skipped.last + 1
            self._drop_contents(skipped)
            self._note_handed_out(skipped.last + 1)  # the client has it from an earlier lane, and may not have processed it
        if self.committed is not None:
            self._acknowledge_whole(self._source_of(generation), self.committed)  # those that were delivered again
        await self._wait_for_room(generation)
        batch = await self._received(generation)
        numbered = NumberedBatch(batch, self._numbering, self._format)
        if self.next is not None and numbered.first < self.next:
            if self._is_late(numbered):
                log.warning("group %s: %s has a message at %s that came too late", self.key.group, batch.partition, batch.first)
                self._add(numbered)
                self._drop_contents(numbered)
                return
            self._begin_anew(numbered)
        if self.committed is None:
            self.committed = numbered.first
        if self.next is None:
            self.next = self._after = numbered.first
        self.next = max(self.next, numbered.first)
        self._add(numbered)
        self._current = numbered

    def _add(self, numbered: NumberedBatch) -> None:
        """Add a batch to the window."""
        batch = numbered.batch
        self._window.append(numbered)
        self._window_count += batch.count
        self._held_bytes[numbered] = batch.held_bytes
        self._limits.unacknowledged.add(batch.held_bytes)

    def _is_late(self, numbered: NumberedBatch) -> bool:
        """Return True for a message that the source delivers behind later ones: a Pulsar message of which chunks are missing.

        Pulls have passed it, and no client could decode it. What is delivered again ends before, or with what was delivered last.
        """
        if self._numbering.dense or self.next is None or self._after is None:
            return False
        return numbered.last + 1 < self._after and numbered.end >= self.next

    def _begin_anew(self, numbered: NumberedBatch) -> None:
        """Take note that the source delivers again what it has delivered, perhaps at another connection.

        What was handed out stays so: pulls go on at their numbers, and the batches are committed by those that came now.
        """
        log.info("group %s: %s is delivered again from %d on", self.key.group, numbered.batch.partition, numbered.first)
        self._forget_batches()
        self.next = self._after = numbered.first

    async def _received(self, generation: int) -> Batch:
        """Return the next batch. Raises LaneRevoked if the lane is lost or moved, and ClusterError."""
        async with self._moving:  # nothing is received while the group is moved
            source = self._source_of(generation)
        if self._receiving is None:
            self._receiving = spawn(self._receive_past_gaps(source), f"pull of {source.partition}", log_errors=False)
            self._receiving.add_done_callback(mark_error_retrieved)
        receiving = self._receiving
        await asyncio.wait([receiving])  # it goes on if this pull ends
        if self._receiving is not receiving:
            raise LaneRevoked(f"{source.partition} was lost, or the group was moved in it")
        self._receiving = None
        try:
            return receiving.result()
        except LaneRevoked:
            self._end(source)
            raise
        except ClusterError as error:
            self._fail(source, error)
            raise

    async def _receive_past_gaps(self, source: FeedSource) -> Batch:
        """Receive a batch, behind lost messages if there are some."""
        while True:
            try:
                return await source.receive()
            except GapError as gap:
                if gap.resume is None:
                    raise ClusterError(str(gap)) from gap
                await self._wait_passable()
                if self._source is not source:
                    raise LaneRevoked(f"{source.partition} was lost") from gap
                self.gaps += 1
                log.warning("group %s continues without lost messages of %s: %s", self.key.group, source.partition, gap)
                await source.seek(self._behind(gap.resume))

    def _behind(self, position: Position) -> Position:
        """Return a position, or the committed one if that is larger: what is delivered again may be committed already."""
        return position if self.committed is None else max(position, self._numbering.position(self.committed))

    async def _wait_passable(self) -> None:
        """Wait until a seek, which commits, loses nothing: until what clients have is committed, or is not stored any more."""
        while not self._settled.is_set():
            try:
                first, end = await self._find_bounds()
            except ClusterError as error:
                log.info("the first message of %s is not known now: %s", self.key.partition, error)
            else:
                if first >= self._handed_out or first == end:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_LOOK_S):
                    await self._settled.wait()

    async def _wait_for_room(self, generation: int) -> None:
        """Wait until the limits permit to receive another batch. Raises LaneRevoked."""
        memory = self._limits.unacknowledged
        while not (self._span < self._limits.span and memory.may_read(sum(self._held_bytes.values()))):
            self._changed.clear()
            memory.wait(self._changed.set)
            await self._changed.wait()
            self._source_of(generation)

    @property
    def _span(self) -> int:
        """Number of messages from the first one that is not committed to the last one that was handed out.

        Where numbers do not count messages, those that are received.
        """
        if self.next is None or self.committed is None:
            return 0
        if self._numbering.dense:
            return self.next - self.committed
        return self._window_count - (self._window[0].count_before(self.committed) if self._window else 0)

    # --- commits ----------------------------------------------------------------------------------------------------------

    def commit(self, number: int) -> bool:
        """Commit everything before a number; return False if this needs `move`, because none of it was received.

        Numbers that do not ascend have no effect, and none has while the partition is not held.
        """
        source = self._source
        if source is None or (self.committed is not None and number <= self.committed):
            return True
        window = self._window
        received = window[-1].end if window else self.next
        if received is None or number > received:
            return False
        self._acknowledge_whole(source, number)
        if window and (count := window[0].count_before(number)):
            source.acknowledge(window[0].batch, count)
        self.committed = number
        if self.next is None or number > self.next:
            self.next = self._after = number
        if number >= self._handed_out:
            self._set_settled()
        self._changed.set()
        return True

    def _acknowledge_whole(self, source: FeedSource, number: int) -> None:
        """Acknowledge the batches whose messages are all before a number."""
        window = self._window
        while window and window[0].last < number:  # behind its messages may be a hole
            whole = window.popleft()
            self._window_count -= whole.batch.count
            source.acknowledge(whole.batch, whole.batch.count)
            if whole is self._current:
                self._current = None
            self._limits.unacknowledged.release(self._held_bytes.pop(whole, 0))

    async def advance(self, position: Position) -> None:
        """Commit everything before a position, which moves no group back. Raises LaneRevoked, ClusterError.

        A position behind the end has no effect: a group that was moved there would get nothing.
        """
        self._held_source()
        moves, number = self._moves, self._numbering.number(position)
        if self.committed is None:  # the lane is new here, and the client may still commit what it got before
            await self._learn_begin(self._generation)
        if self.commit(number):
            return
        _, end = await self._find_bounds()
        if number > end:
            log.warning("group %s cannot commit %d in %s, which ends at %d", self.key.group, number, self.key.partition, end)
        else:
            await self._spawn_seek(position, advances=moves)

    async def seek(self, position: Position) -> None:
        """Move the group to this position; it goes on if the caller is cancelled.

        Pulls that wait fail with LaneRevoked. Raises LaneRevoked, and ClusterError if the lane cannot: then nothing changes.
        """
        self._moves += 1
        await self._spawn_seek(position)

    async def _spawn_seek(self, position: Position, *, advances: int | None = None) -> None:
        seek = self._seek(position, advances)
        task = spawn(seek, f"seek in {self.key.topic}/{self.key.partition}", log_errors=False)
        task.add_done_callback(mark_error_retrieved)
        await asyncio.shield(task)

    async def _seek(self, position: Position, advances: int | None) -> None:
        """Move the group; with `advances`, the number of moves when it was asked for, this is a commit."""
        async with self._moving:
            source = self._held_source()
            if advances is not None and (advances != self._moves or self.commit(self._numbering.number(position))):
                return  # the group was moved, another commit was faster, or it was received meanwhile
            receiving, self._receiving = self._receiving, None
            await cancel(receiving)  # a batch that is received while the source moves could be of either side
            try:
                await source.seek(position)
            except BaseException:
                if self._source is source and receiving is not None and not receiving.cancelled():
                    self._receiving = receiving  # the lane is behind the batch that it has received
                raise
            if self._held_source() is not source:
                raise LaneRevoked(f"{source.partition} was released while the group was moved in it")
            self._forget_handed_out()
            self._begin_at(self._numbering.number(position))
            if advances is None:
                self._moves += 1  # nor does a commit undo it that came meanwhile
            self._changed.set()
            self.on_change(self)

    def _held_source(self) -> FeedSource:
        """Return the source. Raises LaneRevoked if there is none."""
        if self._source is None:
            raise LaneRevoked(f"partition {self.key.partition} of topic {self.key.topic} is not held by this gateway")
        return self._source


async def _release(source: FeedSource, deadline: float | None, tasks: Sequence["asyncio.Task[Any] | None"]) -> None:
    """End the tasks that use a source, and release it."""
    await cancel(*tasks)
    await source.release(deadline)
