"""Wakes the tasks that wait for the state of a partition to change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from mqbridge.tubemq.client.partition_state import PartitionState


class PartitionSignals:
    """Events that follow a state, which knows nothing of tasks: whoever changes the state calls `update` after that.

    A pack that is read and confirmed as usual moves `settled` only, and that is done directly.
    """

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.settled = asyncio.Event()
        """Set while no get is under way and no pack is out."""
        self.revoked = asyncio.Event()
        """Set at once when the partition is taken away or given back."""
        self._until_over: set[asyncio.Timeout] = set()
        """What ends as soon as the partition is not ours any more; each expires at once when it is moved to now."""
        self.update()

    def update(self) -> None:
        """Let the events say what the state says now."""
        if self._state.is_settled:
            self.settled.set()
        else:
            self.settled.clear()
        if self._state.is_over:
            self.revoked.set()
            for wait in self._until_over:
                wait.reschedule(0.0)
            self._until_over.clear()

    @contextlib.asynccontextmanager
    async def until_over(self) -> AsyncIterator[None]:
        """A body that waits; when the partition is taken away or given back meanwhile, it is cancelled, and this raises why."""
        if self._state.is_over:
            self._state.check()
        try:
            async with asyncio.timeout(None) as wait:
                self._until_over.add(wait)
                try:
                    yield
                finally:
                    self._until_over.discard(wait)
        except TimeoutError:
            self._state.check()
            raise

    async def pause(self, seconds: float) -> None:
        """Sleep; when the partition is taken away meanwhile, raise why."""
        try:
            async with asyncio.timeout(seconds):
                await self.revoked.wait()
        except TimeoutError:
            return
        self._state.check()
