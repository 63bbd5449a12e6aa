"""Pulls that carry a commit, and the last commit after them.

Brokers handle requests concurrently: a pull in flight could overwrite a later commit with its own. So a task whose pull carries a
commit is not cancelled at once; it ends with the response, and the last commit waits for that.
"""

import asyncio

from mqbridge.net.tasks import cancel
from mqbridge.rocketmq.client import pull_request

BEGUN_S = 0.5
"""After this time a broker has started a pull that it holds; it stores the commit before it holds the pull."""


class CommitCarryingPulls:
    """The tasks that pull one queue, one at a time. Made inside a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._carrying: asyncio.Task[None] | None = None
        self._until = 0.0
        """Loop time at which the commit in flight is certainly stored."""
        self._ending: dict[asyncio.Task[None], float] = {}
        """Cancelled tasks whose commit-carrying pull has no answer yet, with their deadlines."""

    def started(self, task: "asyncio.Task[None]", *, hold: bool) -> None:
        """This task sends a pull with a commit; `hold`: the broker may hold it."""
        self._carrying = task
        self._until = self._loop.time() + (BEGUN_S if hold else pull_request.ANSWER_TIMEOUT_S)

    def answered(self, task: "asyncio.Task[None]") -> None:
        """This task's pull is answered, or has failed."""
        if self._carrying is task:
            self._carrying = None
        self._ending.pop(task, None)

    def end(self, task: asyncio.Task[None]) -> None:
        """End this task: at once, or after its commit is stored."""
        if not self.overtaken(task):
            task.cancel()

    def overtaken(self, task: asyncio.Task[None]) -> bool:
        """Let this task run only until its pull is answered. Return True if its commit may still be in flight."""
        if task is not self._carrying or self._loop.time() >= self._until:
            return False
        self._ending[task] = self._until
        task.add_done_callback(lambda _: self._ending.pop(task, None))
        return True

    async def wait(self, most_s: float) -> None:
        """Wait up to `most_s` until no commit is in flight that could overwrite the next one."""
        if self._ending:
            left = max(self._ending.values()) - self._loop.time()
            await asyncio.wait(self._ending, timeout=max(0.0, min(left, most_s)))
            await self.cancel()

    async def cancel(self) -> None:
        """Cancel the tasks that still wait for a response."""
        await cancel(*self._ending)
