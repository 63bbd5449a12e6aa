"""Wakes tasks that wait for a partition's state to change.

A get is a request for stored messages, and a pack is the content of its response.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from mqbridge.tubemq.client.consumer.partition_state import PartitionState


class PartitionSignals:
    """Events derived from a `PartitionState`, which does no signalling itself: call `update` after each change of the state.

    For each pack that is read and confirmed, only `settled` changes; the caller then sets or clears it directly, which is faster.
    """

    def __init__(self, state: PartitionState) -> None:
        self._state = state
        self.settled = asyncio.Event()
        """Set while no get is in flight and no delivered pack waits to be confirmed or rejected."""
        self.revoked = asyncio.Event()
        """Set as soon as the partition is revoked or released."""
        self._revocation_timeouts: set[asyncio.Timeout] = set()
        """Open timeouts of `raise_on_revocation`. `update` reschedules them to the past, so that they expire at once."""
        self.update()

    def update(self) -> None:
        """Set or clear the events according to the state."""
        if self._state.is_settled:
            self.settled.set()
        else:
            self.settled.clear()
        if self._state.is_over:
            self.revoked.set()
            for timeout in self._revocation_timeouts:
                timeout.reschedule(0.0)
            self._revocation_timeouts.clear()

    @contextlib.asynccontextmanager
    async def raise_on_revocation(self) -> AsyncIterator[None]:
        """Cancel the body of the `with` statement if the partition is revoked or released meanwhile; raise LaneRevoked."""
        if self._state.is_over:
            self._state.raise_if_stopped()  # raises LaneRevoked, the stop reason of a partition that is over
        try:
            async with asyncio.timeout(None) as timeout:
                self._revocation_timeouts.add(timeout)
                try:
                    yield
                finally:
                    self._revocation_timeouts.discard(timeout)
        except TimeoutError:
            self._state.raise_if_stopped()
            raise  # a timeout inside the body

    async def sleep_unless_revoked(self, seconds: float) -> None:
        """Sleep for `seconds`; if the partition is revoked or released meanwhile, raise LaneRevoked at once."""
        try:
            async with asyncio.timeout(seconds):
                await self.revoked.wait()
        except TimeoutError:
            return
        self._state.raise_if_stopped()
