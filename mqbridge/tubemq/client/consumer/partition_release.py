"""Releases a partition at its Broker; repeated requests to release it share one unregister request.

A pack is the messages of one response; the Broker sends the next one when it is confirmed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from mqbridge.errors import ClusterError, LaneRevoked, ProtocolError, ServerRefused, Unreachable
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.consumer.partition_calls import PartitionCalls, Unregistered
from mqbridge.tubemq.client.consumer.partition_signals import PartitionSignals
from mqbridge.tubemq.client.consumer.partition_state import PartitionState

log = logging.getLogger(__name__)

CONFIRM_WAIT_S = 3.0
"""How long a revoked partition waits for its delivered pack to be confirmed or rejected (the Java clients' default)."""


class Unsettled(NamedTuple):
    """Where a group has to go on in a partition whose Broker may have counted messages as consumed that nobody has confirmed.

    A Broker that shuts down in order does that with a pack that is out: it moves the group from `offset` to the pack's end, which
    is `limit` or less. If the group's position is after `limit`, another member has read on since.
    """

    offset: int
    limit: int

    @classmethod
    def of(cls, state: PartitionState) -> "Unsettled | None":
        """Return the offset to go back to if the Broker loses our registration; None if the Broker knows where to go on."""
        offset = state.offset_to_restore
        return None if offset is None else cls(offset, state.end_of_unsettled)

    def is_needed_at(self, position: int) -> bool:
        """Return True if the group has to go back from this position, at which its Broker would continue."""
        return self.offset < position <= self.limit


class PartitionRelease:
    """Ends the use of a partition, then calls `on_end`.

    lost      the Broker reports another owner or refuses us for good: there is nothing to unregister
    revoked   the Master assigns the partition to another member: unregister after a short wait for the delivered pack
    released  we give the partition up: unregister at once

    In errors and logs, `calls` reads as the topic, partition and group.
    """

    def __init__(
        self, calls: PartitionCalls, state: PartitionState, signals: PartitionSignals, on_end: Callable[[], None]
    ) -> None:
        self._calls, self._state, self._signals, self._on_end = calls, state, signals, on_end
        self._release_task: asyncio.Task[None] | None = None
        self.unsettled: Unsettled | None = None
        """The offset to which the group has to go back, after a release that the Broker did not confirm; None without need."""

    def lose(self, reason: LaneRevoked) -> None:
        """Mark the partition as lost, without unregistering at the Broker; reading raises `reason` from now on."""
        self._state.release(reason)
        self._signals.update()
        self._on_end()

    async def release(self, deadline: float | None) -> None:
        """Release the partition: a confirmed pack is committed, any other pack will be delivered again.

        Repeated calls share one release. At `deadline` (event loop time; None: no limit) the call returns even if the Broker has
        not responded.
        """
        self._state.revoke(self._released_error())  # stops reading; `_unregister` then makes the release final
        self._signals.update()
        await self._release(deadline)

    async def revoke(self) -> None:
        """Handle a revocation: wait up to CONFIRM_WAIT_S for the delivered pack (if any) to be settled, then release."""
        self._state.revoke(LaneRevoked(f"{self._calls} now belongs to another consumer"))
        self._signals.update()
        try:
            async with asyncio.timeout(CONFIRM_WAIT_S):
                await self._signals.settled.wait()
        except TimeoutError:
            text = (
                "%s: the messages delivered last were not confirmed within %g s of the revocation, they will be delivered again"
            )
            log.info(text, self._calls, CONFIRM_WAIT_S)
        await self._release(None)  # no deadline: the request to unregister has its own timeout

    async def _release(self, deadline: float | None) -> None:
        if self._release_task is None:
            self._release_task = spawn(self._unregister(), f"tubemq release {self._calls}")
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(self._release_task)
        except TimeoutError:
            log.info(
                "%s: the Broker did not confirm the release before the deadline; the lease at the Broker will expire", self._calls
            )

    async def _unregister(self) -> None:
        state = self._state
        must_unregister, unsettled = state.must_unregister, Unsettled.of(state)
        is_position_right = not state.is_locating
        if must_unregister and state.is_position_unset and unsettled is not None:
            is_position_right &= await self._try_set_position(unsettled.offset)
        must_confirm = state.release(self._released_error())
        self._signals.update()
        if must_unregister:
            result = await self._calls.try_unregister(consumed=must_confirm)
            # If the request got no response, it may arrive later, and end our next registration or confirm a pack that we read
            # then. So the next registration uses a new client id, for which the old request has no effect.
            if result is Unregistered.UNKNOWN:
                state.on_registration_abandoned()
            if result is not Unregistered.DONE or not is_position_right:
                self.unsettled = unsettled
        self._on_end()

    async def _try_set_position(self, offset: int) -> bool:
        """Register at the end of a detached pack that was confirmed, which the Broker does not know yet. Return True if done."""
        try:
            await self._calls.register(read_status=0, offset=offset)
        except (ClusterError, ProtocolError) as error:
            if not isinstance(error, (ServerRefused, Unreachable)):
                self._state.on_registration_abandoned()
            log.log(
                retry_log_level(error, logging.INFO),
                "%s: the group's position could not be set to %d, so messages will be delivered again: %s",
                self._calls,
                offset,
                error,
            )
            return False
        return True

    def _released_error(self) -> LaneRevoked:
        return LaneRevoked(f"{self._calls} was released")
