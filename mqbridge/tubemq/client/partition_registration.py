"""Registers a partition at its Broker: for the first time, again if the Broker lost the registration, or for a seek.

A request is abandoned if its caller no longer waits for the response. It may reach the Broker at any later time and move the
group's position. So an abandoned request is fenced: the partition is unregistered, and registered with a new client id, which
makes the Broker refuse the old request.
"""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import ClusterError, ServerRefused, Unreachable
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.counters import ReadCounters
from mqbridge.tubemq.client.group_member import MemberIdentity
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.partition_commits import PartitionCommits
from mqbridge.tubemq.client.partition_signals import PartitionSignals
from mqbridge.tubemq.client.partition_state import PartitionState
from mqbridge.tubemq.client.partition_transitions import CONFIRMED, RELEASED
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import RegisterResponseB2C

log = logging.getLogger(__name__)

MASTER_TIMEOUT_S = 30.0
"""After this time without a heartbeat a Master assigns our partitions to other members."""
REGISTER_ATTEMPTS = 5
REGISTER_PAUSE_S = 1.0
OCCUPIED_RETRY_S = 1.0
FORGOTTEN_PAUSE_S = 1.0
"""Pause of a reregistration that has to wait for a response of the Master."""


class RegistrationContext(Protocol):
    """The part of a consumer that registrations need."""

    membership: MemberIdentity

    @property
    def master_seen_at(self) -> float:
        """Loop time of the Master's last successful response."""


class PartitionRegistration:
    """Registers one partition; the caller makes sure that no other request of the partition is in flight."""

    def __init__(
        self,
        context: RegistrationContext,
        calls: PartitionCalls,
        state: PartitionState,
        signals: PartitionSignals,
        counters: ReadCounters,
        commits: PartitionCommits,
    ) -> None:
        self._context, self._calls, self._state, self._signals = context, calls, state, signals
        self._counters, self._commits = counters, commits
        self._loop = asyncio.get_running_loop()

    async def register(self, read_status: int, offset: int | None) -> RegisterResponseB2C:
        """Register at the Broker; `offset` sets the group's position, None keeps it. Raises ServerRefused, ClusterError."""
        return await self._register_with_retries(read_status, offset, None)

    async def start_at(self, read_status: int, offset: int, *, exact: bool = True) -> int:
        """Register at `offset` and return the offset at which the Broker starts.

        With `exact` a later offset is reported as a gap. An earlier one is logged: it is the end of the Broker's data.
        """
        response = await self._register_with_retries(read_status, offset, offset if exact else None)
        if (start := response.currOffset) < offset:
            log.warning("%s starts at offset %d, the end of its Broker's data, instead of %d", self._calls, start, offset)
        return start

    async def seek(self, offset: int, *, exact: bool = True) -> int:
        """Continue at `offset`; return the offset at which the Broker continues.

        Raises LaneRevoked, or ClusterError, after which the position is as before.
        """
        if self._state.is_over:
            self._state.raise_if_stopped()
        start = await self.start_at(0, offset, exact=exact)
        if self._state.is_over:
            self._state.raise_if_stopped()
        return start

    async def renew(self) -> bool:
        """Register again after the Broker lost the registration or a request was abandoned; return True if done.

        Returns False, after a pause, while the Master does not respond: it may have assigned the partition to another member.
        """
        if self._loop.time() - self._context.master_seen_at > MASTER_TIMEOUT_S:
            await self._signals.pause(FORGOTTEN_PAUSE_S)
            return False
        if self._state.abandoned:
            await self._fence()
        safe, offset = self._state.safe, self._state.resume_offset
        response = await self._register_once(0, offset, offset)
        if response.currOffset < safe:
            warn_set_back(self._calls, safe, response.currOffset)
        return True

    async def _fence(self) -> None:
        """Fence abandoned requests: query the group's position if needed, unregister, and switch to a new client id."""
        if self._state.can_query_position:
            try:
                await self._commits.commit(consumed=self._state.pack is CONFIRMED)
            except ServerRefused as error:
                if error.code not in (codes.NO_NODE, codes.UNAUTHORIZED):
                    raise
                # The Broker restarted: its position may be after a pack that was delivered and not confirmed.
                log.info("%s: registering again at the last safe offset; the position query failed: %s", self._calls, error)
        await self._calls.unregister(consumed=False)
        self._calls.client_id = self._context.membership.fresh_client_id()

    async def _register_with_retries(self, read_status: int, offset: int | None, wanted: int | None) -> RegisterResponseB2C:
        """Register in up to five attempts, fencing abandoned requests before each; an occupied partition gets two attempts.

        If the lease of a dead owner has expired, the first attempt only removes the lease, and the second succeeds. Raises
        LaneRevoked if the partition was revoked or released between two attempts: it may then be assigned to another member or
        again to this one.
        """
        for attempts_left in range(REGISTER_ATTEMPTS - 1, -1, -1):
            try:
                if self._state.abandoned:
                    await self._fence()
                return await self._register_once(read_status, offset, wanted)
            except ClusterError as error:
                occupied = isinstance(error, ServerRefused) and error.code == codes.PARTITION_OCCUPIED
                if not attempts_left or (occupied and attempts_left < REGISTER_ATTEMPTS - 1):
                    raise
                log.log(level_of(error, logging.INFO), "registering %s failed, retrying: %s", self._calls, error)
                await asyncio.sleep(OCCUPIED_RETRY_S if occupied else REGISTER_PAUSE_S)
            if self._state.is_over:
                self._state.raise_if_stopped()
        raise AssertionError("unreachable")

    async def _register_once(self, read_status: int, offset: int | None, wanted: int | None) -> RegisterResponseB2C:
        """Register in one attempt, at `offset` if given. If the Broker starts after `wanted`, the data in between is a gap."""
        try:
            response = await self._calls.register(read_status, offset)
        except (ServerRefused, Unreachable):  # the Broker responded, or the request was never sent
            raise
        except BaseException:
            self._state.registration_lost()
            raise
        self._counters.registrations += 1
        self._state.registered(response.currOffset, response.maxOffset, wanted)
        self._signals.update()
        # If the partition was released while this request was in flight, undo the registration.
        if self._state.lease is RELEASED and not await self._calls.try_unregister(consumed=False):
            self._state.registration_lost()
        return response


def warn_set_back(partition: object, known: int, offset: int) -> None:
    """Log that a Broker continues at `offset`, before the offset `known` that it had confirmed."""
    reason = "the Broker lost data or offsets that were not on disk yet, or the group was moved; messages may be delivered again"
    log.warning("%s went back from offset %d to %d: %s", partition, known, offset, reason)
