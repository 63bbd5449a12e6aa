"""Lets a separate commit request (when a queue is released or its position moves) wait for earlier pulls that carry a commit.

Brokers handle requests concurrently, so the commit in a pull that is still in flight could overwrite a later commit. So a task
whose pull carries a commit is not cancelled at once. It ends when the response arrives, or `wait` cancels it when the commit is
certainly stored: after COMMIT_STORED_S if the broker may hold the pull. The commit request is sent after the task has ended.

Requests that may report an administrator's reset count as such pulls, too, because brokers report it only once.
"""

import asyncio

from mqbridge.net.tasks import cancel
from mqbridge.rocketmq.client.consumer import pull_request

COMMIT_STORED_S = 0.5
"""After this time, a broker has stored the commit of a pull that it may hold: it stores the commit first, then holds the pull."""


class CommitCarryingPulls:
    """Tracks the tasks whose commit-carrying pull of one queue is in flight. Create it inside a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._current_task: asyncio.Task[None] | None = None
        """The task that sent the last pull with a commit, until its response."""
        self._stored_at = 0.0
        """Loop time from which the commit of the last pull with a commit is certainly stored, or the pull has timed out."""
        self._ending: dict[asyncio.Task[None], float] = {}
        """Tasks whose commit-carrying pull has no response yet, and for each the `_stored_at` of its pull.

        Each ends after the response, or `wait` cancels it.
        """

    def started(self, task: "asyncio.Task[None]", *, hold: bool) -> None:
        """Record that this task sends a pull with a commit. `hold`: the broker may hold the pull until messages arrive."""
        self._current_task = task
        # The response to a pull that is not held comes soon, so `wait` waits for it; a held one would take too long.
        self._stored_at = self._loop.time() + (COMMIT_STORED_S if hold else pull_request.RESPONSE_TIMEOUT_S)

    def answered(self, task: "asyncio.Task[None]") -> None:
        """Record that this task's pull has its response, or has failed."""
        if self._current_task is task:
            self._current_task = None
        self._ending.pop(task, None)

    def cancel_unless_committing(self, task: asyncio.Task[None]) -> None:
        """Cancel this task, unless its commit may be in flight; then it ends after the response, or `wait` cancels it."""
        if not self.mark_ending(task):
            task.cancel()

    def mark_ending(self, task: asyncio.Task[None]) -> bool:
        """If this task's commit may be in flight, let `wait` wait for the task, and return True.

        The caller makes sure that the task ends after its response.
        """
        if task is not self._current_task or self._loop.time() >= self._stored_at:
            return False
        self._ending[task] = self._stored_at
        task.add_done_callback(lambda _: self._ending.pop(task, None))
        return True

    async def wait(self, max_s: float) -> None:
        """Wait until the commits of the ending tasks are stored, up to `max_s` seconds: they could overwrite the next commit.

        Tasks that have no response by then are cancelled.
        """
        if self._ending:
            remaining_s = max(self._ending.values()) - self._loop.time()
            await asyncio.wait(self._ending, timeout=max(0.0, min(remaining_s, max_s)))
            await self.cancel()

    async def cancel(self) -> None:
        """Cancel the tasks that `mark_ending` recorded and whose pull has no response yet."""
        await cancel(*self._ending)
