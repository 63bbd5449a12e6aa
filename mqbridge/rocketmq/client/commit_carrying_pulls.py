"""Pulls that carry a commit along, and the last commit after them.

Brokers work on requests side by side: a pull that is still on its way could overwrite a later commit with its own. So a task
whose pull carries a commit is not cut short when it is to end; it ends when the pull is answered, and the last commit waits.
"""

import asyncio

from mqbridge.net.tasks import cancel
from mqbridge.rocketmq.client import pulling

BEGUN_S = 0.5
"""After so long a broker has begun with a pull that is to be held, and has stored its commit before it holds it."""


class CommitCarryingPulls:
    """The tasks that pull one queue, one at a time. Made inside a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._carrying: asyncio.Task[None] | None = None
        self._until = 0.0
        """Loop time from which on the commit under way has been stored in any case."""
        self._ending: dict[asyncio.Task[None], float] = {}
        """Cancelled tasks whose commit-carrying pull has no answer yet, with their deadlines."""

    def started(self, task: "asyncio.Task[None]", *, hold: bool) -> None:
        """This task sends a pull with a commit; `hold`: one that the broker may hold."""
        self._carrying = task
        self._until = self._loop.time() + (BEGUN_S if hold else pulling.ANSWER_TIMEOUT_S)

    def answered(self, task: "asyncio.Task[None]") -> None:
        """This task's pull is answered, or has failed."""
        if self._carrying is task:
            self._carrying = None
        self._ending.pop(task, None)

    def end(self, task: asyncio.Task[None]) -> None:
        """End this task: at once, or when its commit has been stored."""
        if not self.overtaken(task):
            task.cancel()

    def overtaken(self, task: asyncio.Task[None]) -> bool:
        """This task goes on only until its pull is answered. Whether its commit may still be on its way."""
        if task is not self._carrying or self._loop.time() >= self._until:
            return False
        self._ending[task] = self._until
        task.add_done_callback(lambda _: self._ending.pop(task, None))
        return True

    async def wait(self, most_s: float) -> None:
        """Until no commit is on its way that could come after what is committed now, at most so long."""
        if self._ending:
            left = max(self._ending.values()) - self._loop.time()
            await asyncio.wait(self._ending, timeout=max(0.0, min(left, most_s)))
            await self.cancel()

    async def cancel(self) -> None:
        """End those that are still waiting for an answer at once."""
        await cancel(*self._ending)
