"""Giving a partition back to its Broker, once, whoever asks for it and however often."""

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
"""How long a partition that is taken away waits for the pack that is out (the Java clients' default)."""


class PartitionRelease:
    """How a partition ends. `dropped` is called when it is over."""

    def __init__(
        self, calls: PartitionCalls, state: PartitionState, signals: PartitionSignals, dropped: Callable[[], None]
    ) -> None:
        self._calls, self._state, self._signals, self._dropped = calls, state, signals, dropped
        self._giving_back: asyncio.Task[None] | None = None

    def lose(self, why: LaneRevoked) -> None:
        """It is over, and nothing is left to give back."""
        self._state.release(why)
        self._signals.update()
        self._dropped()

    async def release(self, deadline: float | None) -> None:
        """Give the partition back: a confirmed pack is committed, one that is out will be delivered again.

        However often it is asked for, it happens once. `deadline` is a time of the event loop.
        """
        self._state.revoke(self._was_given_back())
        self._signals.update()
        await self._give_back(deadline)

    async def revoke(self) -> None:
        """It was taken away: wait a moment for the pack that is out, then give the partition back."""
        self._state.revoke(LaneRevoked(f"{self._calls} now belongs to another consumer"))
        self._signals.update()
        try:
            async with asyncio.timeout(CONFIRM_WAIT_S):
                await self._signals.settled.wait()
        except TimeoutError:
            log.info("%s: the pack that is out was not confirmed in time and will be delivered again", self._calls)
        await self._give_back(None)

    async def _give_back(self, deadline: float | None) -> None:
        if self._giving_back is None:
            self._giving_back = spawn(self._given_back(), f"tubemq give back {self._calls}")
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._giving_back)
        except TimeoutError:
            log.info("%s could not be given back in time, its Broker will notice", self._calls)

    async def _given_back(self) -> None:
        is_due = self._state.must_give_back
        consumed = self._state.release(self._was_given_back())
        self._signals.update()
        if is_due and not await self._calls.try_give_back(consumed=consumed):
            self._state.registration_lost()  # it would end, or confirm, what we have here the next time
        self._dropped()

    def _was_given_back(self) -> LaneRevoked:
        return LaneRevoked(f"{self._calls} was given back")
