"""Pulls that carry a commit along, and the last word after them.

Brokers work on requests side by side: a pull that is still on its way could overwrite a later commit with its own. So the task
whose pull carries a commit is not cut short when it is to end; it leaves, and who has to say the last word waits for it.
"""

import asyncio

from mqbridge.net.tasks import cancel
from mqbridge.rocketmq.client import pulling

BEGUN_S = 0.5
"""After so long a broker has begun with a pull that is to be held, and has seen to its commit before it holds it."""


class Carriers:
    """The tasks that pull one queue, one at a time. Made inside a running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._sailing: asyncio.Task[None] | None = None
        self._until = 0.0
        """Loop time from which on the commit of the one that sails has been seen to in any case."""
        self._leaving: dict[asyncio.Task[None], float] = {}
        """Tasks that were to end while they sailed, and until when to wait for them."""

    def sail(self, *, hold: bool) -> None:
        """The running task sends a pull with a commit; `hold`: one that the broker may hold."""
        self._sailing = asyncio.current_task()
        self._until = self._loop.time() + (BEGUN_S if hold else pulling.ANSWER_TIMEOUT_S)

    def land(self) -> None:
        """The running task's pull is answered, or has failed."""
        if self._sailing is asyncio.current_task():
            self._sailing = None

    def end(self, task: asyncio.Task[None]) -> None:
        """This task shall end: at once, or when its commit has been seen to."""
        if task is self._sailing and self._loop.time() < self._until:
            self._leaving[task] = self._until
            task.add_done_callback(self._leaving.pop)
        else:
            task.cancel()

    async def wait(self, most_s: float) -> None:
        """Until no commit is on its way that could come after what is said now, at most so long."""
        if self._leaving:
            left = max(self._leaving.values()) - self._loop.time()
            await asyncio.wait(self._leaving, timeout=max(0.0, min(left, most_s)))
            await self.cancel()

    async def cancel(self) -> None:
        """End those that are leaving at once."""
        await cancel(*self._leaving)
