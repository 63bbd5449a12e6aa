"""Releases a partition at its Broker, once, however often it is requested."""

import asyncio
import logging
from collections.abc import Callable

from mqbridge.errors import LaneRevoked
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.partition_signals import PartitionSignals
from mqbridge.tubemq.client.partition_state import PartitionState

log = logging.getLogger(__name__)

CONFIRM_WAIT_S = 3.0
"""How long a revoked partition waits for the delivered pack to be settled (the Java clients' default)."""


class PartitionRelease:
    """The end of a partition. `on_end` is called once it is over."""

    def __init__(
        self, calls: PartitionCalls, state: PartitionState, signals: PartitionSignals, on_end: Callable[[], None]
    ) -> None:
        self._calls, self._state, self._signals, self._on_end = calls, state, signals, on_end
        self._releasing: asyncio.Task[None] | None = None

    def lose(self, why: LaneRevoked) -> None:
        """End without unregistering at the Broker."""
        self._state.release(why)
        self._signals.update()
        self._on_end()

    async def release(self, deadline: float | None) -> None:
        """Release the partition: a confirmed pack is committed, an unsettled one will be delivered again.

        Repeated calls share one release. `deadline` is event loop time.
        """
        self._state.revoke(self._was_released())
        self._signals.update()
        await self._release(deadline)

    async def revoke(self) -> None:
        """Handle a revocation: wait a moment for the delivered pack to be settled, then release the partition."""
        self._state.revoke(LaneRevoked(f"{self._calls} now belongs to another consumer"))
        self._signals.update()
        try:
            async with asyncio.timeout(CONFIRM_WAIT_S):
                await self._signals.settled.wait()
        except TimeoutError:
            log.info("%s: the delivered pack was not confirmed in time and will be delivered again", self._calls)
        await self._release(None)

    async def _release(self, deadline: float | None) -> None:
        if self._releasing is None:
            self._releasing = spawn(self._unregister(), f"tubemq release {self._calls}")
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._releasing)
        except TimeoutError:
            log.info("%s could not be released in time, its Broker will end the lease", self._calls)

    async def _unregister(self) -> None:
        is_due = self._state.must_unregister
        consumed = self._state.release(self._was_released())
        self._signals.update()
        if is_due and not await self._calls.try_unregister(consumed=consumed):
            self._state.registration_lost()  # it could end, or confirm, our next registration
        self._on_end()

    def _was_released(self) -> LaneRevoked:
        return LaneRevoked(f"{self._calls} was released")
