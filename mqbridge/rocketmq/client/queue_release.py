"""Giving a queue back: what is out gets a moment where a lock allows it, then the last commit and the unlock.

It is one task, whoever asks for it and however often: a caller that is cancelled stops waiting, the queue is given back all the
same.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.queue_commits import QueueCommits
from mqbridge.rocketmq.client.queue_state import QueueState
from mqbridge.rocketmq.client.queue_table import Event, State

log = logging.getLogger(__name__)

SETTLE_S = 3.0
"""How long a locked queue that is taken away waits for what is out, before its lock goes to another member."""


class QueueRelease:
    """Takes `state` from SETTLING or RELEASING to its end; `unlock` gives the lock back, `dropped` is called at the end."""

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
        """Whether the queue is being given back, or was."""
        return self._task is not None

    def all_acknowledged(self) -> None:
        """All that was handed out is acknowledged, or is waited for no more."""
        self._quiet.set()

    async def wait(self, deadline: float | None) -> None:
        """Give it back, or wait for that; at `deadline` (loop time) what is not done by then is left, for all who wait."""
        if self._task is None:
            if self._state.state not in (State.SETTLING, State.RELEASING):
                return  # it never began, or its lock is lost: nothing may be said any more
            self._task = spawn(self._give_back(), f"rocketmq giving back {self._name}")
        task = self._task
        if deadline is None:
            await asyncio.wait([task])  # and not the task itself: its cancellation by a deadline is not ours
        else:
            left = max(0.0, deadline - self._loop.time())
            self._loop.call_later(left / 2, self._quiet.set)  # the other half is for the last commit and the unlock
            await asyncio.wait([task], timeout=left)
            if not task.done():
                task.cancel()
                log.warning("%s: offset %d was not committed by the deadline", self._name, self._state.acknowledged)

    async def _give_back(self) -> None:
        try:
            if self._state.state is State.SETTLING:
                await self._settle()
            await self._commit_and_unlock()
        finally:
            if self._state.may(Event.GIVEN_BACK):
                self._state.given_back()
            self._dropped()

    async def _commit_and_unlock(self) -> None:
        """Once more after a reset that was told meanwhile: what was said before it does not count."""
        run = -1
        while run != self._state.run:
            run = self._state.run
            if self._state.state is State.RELEASING:
                await self._commits.save()
            await self._commits.cancel()
            if self._state.state is State.RELEASING:
                await self._unlock()

    async def _settle(self) -> None:
        if self._state.locked_at is not None and not self._state.is_quiet:
            self._quiet.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), SETTLE_S)
        if self._state.may(Event.SETTLE):
            self._state.settle()
