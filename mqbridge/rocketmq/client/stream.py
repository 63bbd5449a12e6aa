"""One queue while it is ours: pulled ahead, handed out answer by answer, committed behind.

What state it is in and where it stands is in `queue_state`; `pull_loop` pulls it, `queue_commits` and `queue_release` commit it
and give it back. A queue that ends for a reason of its own (a gap, a refusal that retrying does not help) hands out what it has
and then raises that; the other queues go on.
"""

import asyncio
import contextlib
import logging
from functools import partial
from typing import Protocol

from mqbridge.errors import LaneRevoked, MqbridgeError
from mqbridge.rocketmq.client.pull_loop import PullContext, PullLoop
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.pulling import Puller
from mqbridge.rocketmq.client.queue_commits import CommitContext, QueueCommits
from mqbridge.rocketmq.client.queue_release import QueueRelease
from mqbridge.rocketmq.client.queue_state import QueueState
from mqbridge.rocketmq.client.queue_table import Event
from mqbridge.rocketmq.client.route import shown
from mqbridge.rocketmq.client.subscription import Subscription
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)


class Owner(PullContext, CommitContext, Protocol):
    """What a stream needs of its consumer."""

    name: str

    async def unlock(self, queue: Queue) -> None:
        """Give the queue's lock back."""

    def dropped(self, stream: "QueueStream") -> None:
        """The stream is over."""


class QueueStream:
    """A queue of ours, from its assignment until `receive` raises. Made inside a running loop; `begin` sets it going."""

    def __init__(self, owner: Owner, queue: Queue, subscription: Subscription, puller: Puller) -> None:
        self.queue = queue
        self.state = QueueState()
        self.over = asyncio.Event()
        """Set at once when the queue is taken away, lost or given back."""
        self.lends = False
        """Whether what is taken counts against the budget of all queues until `give_back`."""
        self._owner = owner
        self._error: MqbridgeError | None = None
        """What `receive` raises once nothing waits."""
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._pulls = PullLoop(
            str(self),
            queue,
            self.state,
            owner,
            subscription,
            puller,
            changed=self._changed.set,
            ended=self._ended_by,
            reset=self.reset,
        )
        self._commits = QueueCommits(str(self), queue, self.state, owner, self._pulls.commits)
        self._release = QueueRelease(str(self), self.state, self._commits, self._unlock, partial(owner.dropped, self))

    def __str__(self) -> str:
        return f"{shown(self.queue)} for {self._owner.name}"

    @property
    def revoked(self) -> bool:
        """Whether it was taken away or given back."""
        return not self.state.is_ours

    @property
    def caught_up(self) -> bool:
        """The last answer said that nothing comes after it, and all that came was taken."""
        return self.state.at_end and not self.state.waiting

    @property
    def position(self) -> int:
        """The offset that the next pull asks for."""
        return self.state.position

    @property
    def committed(self) -> int:
        """The offset below which everything is acknowledged."""
        return self.state.acknowledged

    @property
    def held_bytes(self) -> int:
        """Bytes that wait to be taken."""
        return self._pulls.held_bytes

    @property
    def first_offset(self) -> int:
        """Where the queue began when the last answer came."""
        return self._pulls.first_offset

    @property
    def end_offset(self) -> int:
        """Where the queue ended when the last answer came."""
        return self._pulls.end_offset

    @property
    def answered_ms(self) -> int:
        """When the last answer came, ms since the epoch."""
        return self._pulls.answered_ms

    def begin(self, offset: int, *, first_start: bool, locked_at: float | None = None) -> None:
        """Start pulling; the budget counts it already.

        `first_start`: there was no offset to go on from; the start we chose is committed.
        """
        self.state.start(offset, first_start=first_start, locked_at=locked_at)
        self._pulls.restart()

    # --- taking -----------------------------------------------------------------------------------------------------

    def take(self) -> Pulled | None:
        """What one pull brought, if something waits."""
        pulled = self.state.take(self._loop.time())
        if pulled is not None and self.lends:
            self._pulls.lend(pulled.size)
        self._pulls.settle_budget()
        return pulled

    def give_back(self, size: int) -> None:
        """So many bytes of what was taken are somebody else's account now, or nobody's; see `lends`."""
        self._pulls.give_back(size)

    async def receive(self) -> Pulled:
        """What the next pull brought; waits. Raises LaneRevoked, GapError, or the ClusterError that ended the queue."""
        while True:
            pulled = self.take()
            if pulled is not None:
                return pulled
            if self._error is not None and not self.state.waiting:
                raise self._error
            await self._wait()

    async def changed(self, timeout: float) -> None:
        """Wait until there is something to take or the queue is gone, at most `timeout` seconds; others always get to run.

        Raises what ended the queue (GapError, ClusterError) when nothing is left to take: it would not change any more.
        """
        if self.revoked or self.state.can_take(self._loop.time()):
            await asyncio.sleep(0)
        elif self._error is not None and not self.state.waiting:
            raise self._error
        else:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):  # wait_for would begin a turn later, and clear what came in between
                    await self._wait()

    async def _wait(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def commit(self, offset: int, run: int | None = None) -> None:
        """Everything below `offset` is consumed; the store hears of it with the next pull or within seconds.

        What was not handed out (any more, after a seek) and what is committed already changes nothing. `run` is the one in which
        it was handed out (`state.run`), None for this one: what will be handed out again does not count.
        """
        if self.state.acknowledge(offset, run) and self.state.is_quiet:
            self._release.all_acknowledged()

    def due(self) -> int | None:
        """The offset to tell the store, if it has not been told."""
        return self.state.due(self._loop.time())

    def told(self, offset: int | None) -> None:
        """The store is being told this one; None: it could not be told."""
        self.state.told(offset)

    # --- moving -----------------------------------------------------------------------------------------------------

    async def seek(self, offset: int) -> None:
        """Go on with `offset`. Back to what was handed out and not committed changes no commit; anywhere else commits it."""
        if not self.rewind(offset):
            await self._move(offset)

    def rewind(self, offset: int, run: int | None = None) -> bool:
        """Hand out again from `offset` on, if that was handed out and is not committed; False, and nothing happens, if not."""
        if not self.state.rewind(offset, run):
            return False
        self._error = None
        self._pulls.restart()
        return True

    async def reset(self, offset: int, why: str) -> None:
        """The broker says where to go on."""
        if self.state.may(Event.MOVE):
            log.warning("%s: goes on at offset %d instead of %d, %s", self, offset, self.position, why)
            await self._move(offset)
        elif self.state.reset(offset):
            log.warning("%s: its last commit is offset %d, %s", self, offset, why)
            self._release.all_acknowledged()

    async def _move(self, offset: int) -> None:
        if self.state.move(offset):
            self._error = None
            self._pulls.restart()
            await self._commits.save()

    def _ended_by(self, error: MqbridgeError) -> None:
        """Reading ended by itself; what waits can still be taken."""
        self._error = error
        self._changed.set()

    # --- the lock ---------------------------------------------------------------------------------------------------

    def lock_renewed(self, at: float) -> None:
        """The queue's lock was taken again, at this loop time; what waited for it can be taken."""
        self.state.lock_renewed(at)
        self._changed.set()

    def lock_lost(self) -> None:
        """Another member may have the lock and read on: nothing may be committed any more."""
        if self._leave(Event.LOSE_LOCK, f"{self} was lost: its lock could not be renewed") and not self._release.has_begun:
            self._owner.dropped(self)

    # --- ending -----------------------------------------------------------------------------------------------------

    async def release(self, deadline: float | None = None) -> None:
        """Give the queue back: what is acknowledged is committed, the rest will be delivered again.

        Waits for that, also if it was begun by another call; at `deadline` (loop time) what is not done by then is left.
        """
        self._leave(Event.RELEASE, f"{self} was given back")
        await self._release.wait(deadline)

    async def revoke(self) -> None:
        """It was taken away. With a lock, what is out gets a moment to be acknowledged before another member may read on."""
        self._leave(Event.REVOKE, f"{self} now belongs to another consumer")
        await self._release.wait(None)

    def _leave(self, event: Event, why: str) -> bool:
        """Stop pulling and handing out; False when that is so already."""
        if not self.state.leave(event):
            return False
        if not self.over.is_set():
            self._error = LaneRevoked(why)
            self._owner.budget.queues -= 1
        self._pulls.stop()
        self._pulls.give_back()
        self.over.set()
        self._changed.set()
        self._release.all_acknowledged()  # nothing is waited for any more; SETTLING takes it back
        return True

    async def _unlock(self) -> None:
        if self.state.locked_at is not None:
            await self._owner.unlock(self.queue)
