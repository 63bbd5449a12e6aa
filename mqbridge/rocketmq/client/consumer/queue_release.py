"""Releases a queue: waits a moment for acknowledgements if a lock protects the queue, then commits, then unlocks.

One task does the work, however often it is requested. If a caller is cancelled, the release continues.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from mqbridge.net.tasks import spawn
from mqbridge.rocketmq.client.consumer.queue_commits import QueueCommits
from mqbridge.rocketmq.client.consumer.queue_state import QueueState
from mqbridge.rocketmq.client.consumer.queue_transitions import Event, State

log = logging.getLogger(__name__)

SETTLE_S = 3.0
"""How long a revoked queue with a lock waits until messages in flight are acknowledged; then it is committed and unlocked."""


class QueueRelease:
    """Takes a queue from the state SETTLING (waits for acknowledgements) or RELEASING (commits, unlocks) to RELEASED.

    `name` is the queue's, for logs. `unlock` releases the lock, if any. `on_released` is called once the release has ended, even
    if it failed, was cut short, or the lock was lost meanwhile.
    """

    def __init__(
        self,
        name: str,
        state: QueueState,
        commits: QueueCommits,
        unlock: Callable[[], Awaitable[None]],
        on_released: Callable[[], None],
    ) -> None:
        self._name, self._state, self._commits = name, state, commits
        self._unlock, self._on_released = unlock, on_released
        self._stop_settling = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def has_begun(self) -> bool:
        """True once the release has begun."""
        return self._task is not None

    def stop_settling(self) -> None:
        """Stop waiting for acknowledgements: all have arrived, a reset has made them useless, or the lock is lost."""
        self._stop_settling.set()

    async def run(self, deadline: float | None) -> None:
        """Release the queue, or wait for the release in progress.

        At `deadline` (loop time; None: never) the release is cancelled for all callers.
        """
        if self._task is None:
            if self._state.state not in (State.SETTLING, State.RELEASING):
                return  # reading never began, or the lock is lost and nothing may be committed
            self._task = spawn(self._run(), f"rocketmq release of {self._name}")
        task = self._task
        if deadline is None:
            # Awaiting the task itself would raise CancelledError here when the deadline of another caller cancels the task.
            await asyncio.wait([task])
        else:
            remaining_s = max(0.0, deadline - self._loop.time())
            # The second half of the time is for the last commit and the unlock.
            self._loop.call_later(remaining_s / 2, self._stop_settling.set)
            await asyncio.wait([task], timeout=remaining_s)
            if not task.done():
                task.cancel()
                log.warning(
                    "%s: the deadline ended the release; unless offset %d was committed before, messages may be delivered again",
                    self._name,
                    self._state.acknowledged,
                )

    async def _run(self) -> None:
        try:
            if self._state.state is State.SETTLING:
                await self._settle()
            await self._commit_and_unlock()
        finally:
            if self._state.may(Event.FINISH_RELEASE):  # not if the lock was lost
                self._state.finish_release()
            self._on_released()

    async def _commit_and_unlock(self) -> None:
        """Commit and unlock. If an administrator resets the offset in the meantime, repeat this, to commit the new offset."""
        # A run is a period of reading without a jump; a reset begins a new one. -1: none is committed yet.
        committed_run = -1
        while committed_run != self._state.run:
            committed_run = self._state.run
            if self._state.state is State.RELEASING:
                await self._commits.save()
            await self._commits.cancel_pulls()  # `save` has ended them, but is not called if the lock was lost
            if self._state.state is State.RELEASING:  # not if the lock was lost meanwhile
                await self._unlock()

    async def _settle(self) -> None:
        """With a lock, wait until all messages handed out are acknowledged, at most SETTLE_S or until `stop_settling`."""
        if self._state.locked_at is not None and not self._state.nothing_in_flight:
            self._stop_settling.clear()  # calls before this wait must not end it
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`: before Python 3.12 it ignores a cancellation at the moment at which the wait ends.
                async with asyncio.timeout(SETTLE_S):
                    await self._stop_settling.wait()
        if self._state.may(Event.SETTLE):
            self._state.settle()
