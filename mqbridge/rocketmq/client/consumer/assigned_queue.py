"""One queue assigned to this consumer: pulls ahead, delivers pull by pull, and commits acknowledged offsets.

`queue_state` holds the state and offsets of the queue, `pull_loop` pulls, `queue_commits` commits, `queue_release` releases.
After an error that a retry cannot cure (unread messages were deleted, or the broker refused a pull), `receive` returns the
buffered pulls, then raises the error until a rewind, a seek or a reset moves the queue; other queues continue.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from mqbridge.errors import LaneRevoked, MqbridgeError
from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.route import queue_label
from mqbridge.rocketmq.client.consumer.pull_loop import PullContext, PullLoop
from mqbridge.rocketmq.client.consumer.pull_request import Puller
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_commits import CommitContext, QueueCommits
from mqbridge.rocketmq.client.consumer.queue_identity import Anchor
from mqbridge.rocketmq.client.consumer.queue_release import QueueRelease
from mqbridge.rocketmq.client.consumer.queue_state import QueueState
from mqbridge.rocketmq.client.consumer.queue_transitions import Event, State
from mqbridge.rocketmq.client.consumer.subscription import Subscription
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)


class ConsumerContext(PullContext, CommitContext, Protocol):
    """The part of a consumer that its assigned queues use."""

    name: str

    async def unlock(self, queue: Queue) -> None:
        """Unlock the queue at its broker."""

    def on_queue_ended(self, assigned: "AssignedQueue") -> None:
        """Remove the queue from the consumer: its release has ended, or its lock was lost."""


class AssignedQueue:
    """A queue from its assignment until it ends: it goes to another member, loses its lock, or is released by the consumer.

    Create it inside a running loop; `begin` starts the pulling. `puller` sends its pulls.
    """

    def __init__(self, context: ConsumerContext, queue: Queue, subscription: Subscription, puller: Puller) -> None:
        self.queue, self._context, self._puller = queue, context, puller
        self.state = QueueState(str(self))
        self.ended = asyncio.Event()
        """Set as soon as the queue ends in one of these ways."""
        self.releasing = asyncio.Event()
        """Set when the queue is going to be released for another member, see `announce_release`, and when it ends."""
        self.holds_budget = False
        """True: taken bytes count against the consumer's memory budget until `release_budget`. False: `take` releases them.

        Set by the user of the queue.
        """
        self.on_jump: Callable[[], None] | None = None
        """Called after a rewind, a seek or a reset: what was taken before is outdated. Set by the user of the queue."""
        self._error: MqbridgeError | None = None
        """The error that `receive` raises once no pull is buffered."""
        self._changed = asyncio.Event()
        """Set when a pull may have become available, or `_error` was set."""
        self._loop = asyncio.get_running_loop()
        self._pulls = PullLoop(
            str(self),
            queue,
            self.state,
            context,
            subscription,
            puller,
            on_change=self._changed.set,
            on_error=self._on_pull_error,
            on_reset=self.reset,
        )
        self._commits = QueueCommits(str(self), queue, self.state, context, self._pulls.commit_carrying_pulls)
        self._release = QueueRelease(str(self), self.state, self._commits, self._unlock, partial(context.on_queue_ended, self))

    def __str__(self) -> str:
        return f"queue {queue_label(self.queue)} for {self._context.name}"

    @property
    def revoked(self) -> bool:
        """True once the queue has ended, not only by `revoke`: also after `release` and `on_lock_lost`."""
        return not self.state.is_ours

    @property
    def caught_up(self) -> bool:
        """True if the last pull was answered and reached the end of the queue, and no pull is buffered."""
        return self.state.at_end and not self.state.pull_failed and not self.state.buffered

    async def confirm_caught_up(self) -> bool:
        """Request the end of the queue from its broker, which may hold our pull; return True if nothing is left to take.

        If a filter drops the last messages, this waits until the broker answers the held pull. Raises ClusterError.
        """
        try:
            end = await self._puller.find_end()
        except AccessRefused:  # the credentials may only consume; but the broker responds, so it also answers our held pull
            end = self.position
        while self.position < end and not (self.state.buffered or self.revoked or self._error is not None):
            await self._wait()
        if self.position < end:
            return False
        self.state.pull_failed = False  # the broker responds again, and has no messages that a lost pull would have returned
        return self.caught_up

    @property
    def refusal(self) -> str | None:
        """Why the broker does not permit reading now, for example because the group is paused; None while it does."""
        return self._pulls.refusal

    @property
    def position(self) -> int:
        """The offset from which the next pull requests messages."""
        return self.state.position

    @property
    def acknowledged(self) -> int:
        """The offset below which all messages are acknowledged; it may not be committed yet."""
        return self.state.acknowledged

    @property
    def held_bytes(self) -> int:
        """Bytes that are buffered, or taken and not yet released from the budget."""
        return self._pulls.held_bytes

    @property
    def first_offset(self) -> int:
        """The first offset of the queue, by the last response to a pull; 0 before the first response."""
        return self._pulls.first_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last message of the queue, by the last response to a pull; 0 before the first response."""
        return self._pulls.end_offset

    @property
    def answered_ms(self) -> int:
        """Time of the last response to a pull, ms since the epoch; 0 before the first response."""
        return self._pulls.answered_ms

    @property
    def anchor(self) -> Anchor | None:
        """A message that was read, by which the next assignment of the queue finds out if it was made anew; None without one."""
        return self._pulls.identity.anchor

    def begin(self, offset: int, *, first_start: bool, locked_at: float | None = None, anchor: Anchor | None = None) -> None:
        """Start pulling at `offset`. The caller has counted this queue in the consumer's `budget.queues`.

        `first_start`: the group had no offset in this queue, so the start offset is committed. `locked_at` is the loop time at
        which the queue's lock was requested; None if it needs no lock. `anchor` is that of an earlier assignment, if any.
        """
        self.state.start(offset, first_start=first_start, locked_at=locked_at)
        if anchor is not None:
            self._pulls.identity.restore(anchor)
        self._pulls.restart()

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self) -> PulledRecords | None:
        """Return the records of the next buffered pull.

        Returns None without one, once the queue has ended, and while its lock may have expired.
        """
        pulled = self.state.take(self._loop.time())
        if pulled is not None and self.holds_budget:
            self._pulls.keep_on_budget(pulled.size)
        self._pulls.settle_budget()
        return pulled

    def hold_budget(self, size: int) -> None:
        """Charge `size` bytes more to the budget until `release_budget`, for memory that taken records need besides."""
        self._pulls.hold_budget(size)

    def release_budget(self, size: int) -> None:
        """Release taken bytes from the budget; see `holds_budget`."""
        self._pulls.release_budget(size)

    @property
    def waits_for_release(self) -> bool:
        """True if nothing is pulled before `release_budget` is called, because taken bytes leave no room for a pull."""
        return self._pulls.waits_for_release and not self.state.buffered

    async def receive(self) -> PulledRecords:
        """Wait for the records of the next pull.

        Raises LaneRevoked if the queue is no longer ours, and the error that stopped the pulling: GapError or another
        ClusterError.
        """
        while True:
            pulled = self.take()
            if pulled is not None:
                return pulled
            if self._error is not None and not self.state.buffered:
                raise self._error
            await self._wait()

    async def wait_for_change(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until a pull is buffered, an error stops the pulling, or the queue is no longer ours.

        Always yields to other tasks. Raises the error that stopped the pulling (GapError or another ClusterError) once no pull is
        buffered; if the queue is no longer ours, it returns at once.
        """
        if self.revoked or self.state.can_take(self._loop.time()):
            await asyncio.sleep(0)
        elif self._error is not None and not self.state.buffered:
            raise self._error
        else:
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`, which starts one loop iteration later and would miss a change in between.
                async with asyncio.timeout(timeout):
                    await self._wait()

    async def _wait(self) -> None:
        """Wait for the next change."""
        self._changed.clear()
        await self._changed.wait()

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def commit(self, offset: int, run: int | None = None) -> None:
        """Acknowledge all messages below `offset`, without waiting: the next pull or the regular commit stores the offset.

        `run` is the run in which the messages were delivered (`state.run`), None for the current one: a rewind, a seek or a
        reset begins a new run. Has no effect for an offset that was not delivered in `run`, or is acknowledged already.
        """
        if self.state.acknowledge(offset, run) and self.state.nothing_in_flight:
            self._release.stop_settling()  # a release in progress need not wait for more acknowledgements

    def unreported(self) -> int | None:
        """Return the acknowledged offset to send to the store; None if it was sent already, or may not be committed now."""
        return self.state.unreported(self._loop.time())

    def mark_reported(self, offset: int | None) -> None:
        """Record that `offset` is being sent to the store; with None, that sending failed, so `unreported` returns it again."""
        self.state.mark_reported(offset)

    async def flush(self) -> None:
        """Wait until the acknowledged offset is committed. Raises ClusterError."""
        await self._commits.flush()

    # --- moving -----------------------------------------------------------------------------------------------------

    async def seek(self, offset: int) -> None:
        """Continue at `offset`. Commit it too, unless its message was delivered and is not acknowledged (see `rewind`).

        A commit that fails is only logged. Once the queue has announced its release, the next member continues at the offset.
        """
        state = self.state
        if self.rewind(offset):
            return
        if state.may(Event.MOVE):
            await self._move(offset)
        elif state.state is State.LEAVING and not state.acknowledged <= offset <= state.handed_out and state.reset(offset):
            await self._commits.save()

    def rewind(self, offset: int, run: int | None = None) -> bool:
        """Deliver again from `offset`, if its message was delivered and is not acknowledged; else return False without effect.

        `run` is the run in which the message was delivered, as in `commit`.
        """
        if not self.state.rewind(offset, run):
            return False
        self._restart()
        return True

    async def reset(self, offset: int, why: str) -> None:
        """Continue at an offset that an administrator has set at the broker; `why` is the reason for the log.

        If the queue is being released, the offset becomes its last commit. After the release there is no effect.
        """
        if self.state.may(Event.MOVE):
            log.warning("%s: continuing at offset %d instead of %d, %s", self, offset, self.position, why)
            await self._move(offset)
        elif self.state.reset(offset):
            log.warning("%s: this member is releasing the queue and will commit offset %d, %s", self, offset, why)
            self._release.stop_settling()

    async def _move(self, offset: int) -> None:
        if self.state.move(offset):
            self._restart()
            await self._commits.save()

    def _restart(self) -> None:
        """Pull from the position to which the queue was moved."""
        self._error = None
        if self.on_jump is not None:
            self.on_jump()
        self._pulls.restart()

    def _on_pull_error(self, error: MqbridgeError) -> None:
        """Record the error that stopped the pulling; buffered pulls can still be taken.

        For a queue that was made anew, commit its beginning: the stored offset belongs to the queue that it replaces.
        """
        self._error = error
        self._changed.set()
        if self.state.anew_first is not None:
            spawn(self._commits.save(), f"rocketmq commit of {self}, which was made anew")

    # --- the lock ---------------------------------------------------------------------------------------------------

    def on_lock_renewed(self, requested_at: float) -> None:
        """Record that the lock was renewed by a request sent at this loop time: buffered pulls can be taken again."""
        self.state.record_lock_renewal(requested_at)
        self._changed.set()

    def on_lock_lost(self) -> None:
        """End the queue without a commit: its lock expired or belongs to another member, which may consume the queue already.

        A release in progress removes the queue from the consumer itself.
        """
        if self._leave(Event.LOSE_LOCK, f"{self} was lost: its lock could not be renewed") and not self._release.has_begun:
            self._context.on_queue_ended(self)

    # --- ending -----------------------------------------------------------------------------------------------------

    async def release(self, deadline: float | None = None) -> None:
        """Release the queue: commit acknowledged messages; all others will be delivered again.

        Waits for the end of the release, also if another call began it. At `deadline` (loop time; None: never) the
        release is cancelled.
        """
        self._leave(Event.RELEASE, f"{self} was released")
        await self._release.run(deadline)

    def announce_release(self, wait_s: float) -> None:
        """Stop pulling and delivering, and release the queue for another member by `release`, but after `wait_s` at the latest.

        Until then the queue is kept, and so is its lock; messages in flight can be acknowledged. Without effect if the queue has
        announced its release before, or is no longer ours.
        """
        if not self.state.leave(Event.ANNOUNCE):
            return
        log.info("%s will belong to another consumer: waiting up to %.1f s for messages in flight", self, wait_s)
        self._error = None  # an error such as a gap is reported to the next member
        self._pulls.stop()
        self.releasing.set()
        self._loop.call_later(wait_s, self._end_announced_release)

    def _end_announced_release(self) -> None:
        if not self.revoked:
            spawn(self.release(), f"rocketmq release of {self}, which now belongs to another consumer")

    async def revoke(self) -> None:
        """Release the queue for another member; with a lock, first wait a moment until messages in flight are acknowledged."""
        self._leave(Event.REVOKE, f"{self} now belongs to another consumer")
        await self._release.run(deadline=None)

    def _leave(self, event: Event, why: str) -> bool:
        """Stop pulling and delivering; return False if the event is not allowed now. `why` is the text of `receive`'s error."""
        if not self.state.leave(event):
            return False
        if not self.ended.is_set():  # LOSE_LOCK may follow REVOKE or RELEASE
            self._error = LaneRevoked(why)
            self._context.budget.queues -= 1
        self._pulls.stop()
        self._pulls.release_budget()
        self.ended.set()
        self.releasing.set()
        self._changed.set()
        self._release.stop_settling()  # ends a wait in progress, for example after LOSE_LOCK; a new wait clears this first
        return True

    async def _unlock(self) -> None:
        """Unlock the queue at its broker, if it has a lock."""
        if self.state.locked_at is not None:
            await self._context.unlock(self.queue)
