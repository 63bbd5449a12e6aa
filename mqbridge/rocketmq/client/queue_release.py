"""Releases a queue: messages in flight get a moment if a lock protects the queue, then follow the last commit and the unlock.

One task does it, however often it is requested: a cancelled caller stops waiting, the release goes on.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.queue_commits import QueueCommits
from mqbridge.rocketmq.client.queue_state import QueueState
from mqbridge.rocketmq.client.queue_transitions import Event, State

log = logging.getLogger(__name__)

SETTLE_S = 3.0
"""How long a revoked queue with a lock waits for messages in flight, before the lock goes to another member."""


class QueueRelease:
    """Takes `state` from SETTLING or RELEASING to its end; `unlock` releases the lock, `dropped` is called at the end."""

    def __init__(
        self,
        name: str,
        state: QueueState,
        commits: QueueCommits,
        unlock: Callable[[], Awaitable[None]],
        dropped: Callable[[], None],
    ) -> None:
        self._name, self._state, self._commits, self._unlock, self._dropped = name, state, commits, unlock, dropped
        self._quiet = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def has_begun(self) -> bool:
        """True once the release has begun."""
        return self._task is not None

    def all_acknowledged(self) -> None:
        """Stop waiting: all messages handed out are acknowledged, or no longer awaited."""
        self._quiet.set()

    async def wait(self, deadline: float | None) -> None:
        """Release the queue, or wait for a release under way; at `deadline` (loop time) it is cut short for all callers."""
        if self._task is None:
            if self._state.state not in (State.SETTLING, State.RELEASING):
                return  # it never began, or its lock is lost: nothing may be committed
            self._task = spawn(self._run(), f"rocketmq release of {self._name}")
        task = self._task
        if deadline is None:
            await asyncio.wait([task])  # not the task itself: its cancellation by a deadline is not ours
        else:
            left = max(0.0, deadline - self._loop.time())
            self._loop.call_later(left / 2, self._quiet.set)  # the other half is for the last commit and the unlock
            await asyncio.wait([task], timeout=left)
            if not task.done():
                task.cancel()
                log.warning("%s: offset %d was not committed by the deadline", self._name, self._state.acknowledged)

    async def _run(self) -> None:
        try:
            if self._state.state is State.SETTLING:
                await self._settle()
            await self._commit_and_unlock()
        finally:
            if self._state.may(Event.GIVEN_BACK):
                self._state.given_back()
            self._dropped()

    async def _commit_and_unlock(self) -> None:
        """Commit and unlock; repeat after a reset in the meantime, which voids the commit before it."""
        run = -1
        while run != self._state.run:
            run = self._state.run
            if self._state.state is State.RELEASING:
                await self._commits.save()
            await self._commits.cancel()
            if self._state.state is State.RELEASING:
                await self._unlock()

    async def _settle(self) -> None:
        if self._state.locked_at is not None and not self._state.nothing_in_flight:
            self._quiet.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), SETTLE_S)
        if self._state.may(Event.SETTLE):
            self._state.settle()
