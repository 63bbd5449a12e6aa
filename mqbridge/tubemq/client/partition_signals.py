"""Wakes tasks that wait for a partition's state to change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from mqbridge.tubemq.client.partition_state import PartitionState


class PartitionSignals:
    """Events derived from a `PartitionState`, which does no signalling itself: call `update` after each change of the state.

    Reading and confirming a pack changes only `settled`; there the caller sets this event directly, which is faster.
    """

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.settled = asyncio.Event()
        """Set while no get is in flight and no delivered pack waits to be confirmed or rejected."""
        self.revoked = asyncio.Event()
        """Set as soon as the partition is revoked or released."""
        self._until_over: set[asyncio.Timeout] = set()
        """Timeouts that expire when the partition is revoked: rescheduling a timeout to the past makes it expire at once."""
        self.update()

    def update(self) -> None:
        """Set the events according to the state."""
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
        """Cancel the body of the `with` statement if the partition is revoked or released meanwhile, and raise the reason."""
        if self._state.is_over:
            self._state.raise_if_stopped()
        try:
            async with asyncio.timeout(None) as wait:
                self._until_over.add(wait)
                try:
                    yield
                finally:
                    self._until_over.discard(wait)
        except TimeoutError:
            self._state.raise_if_stopped()
            raise

    async def pause(self, seconds: float) -> None:
        """Sleep for `seconds`; if the partition is revoked meanwhile, raise the reason at once."""
        try:
            async with asyncio.timeout(seconds):
                await self.revoked.wait()
        except TimeoutError:
            return
        self._state.raise_if_stopped()
