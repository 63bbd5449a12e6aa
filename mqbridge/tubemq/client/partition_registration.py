"""Registers a partition at its Broker: for the first time, again if the Broker lost the registration, or for a seek.

A request is abandoned if its caller no longer waits for the response. It may reach the Broker at any later time and move the
group's position. So an abandoned request is fenced: the partition is unregistered and registered again with a new client id. The
Broker then refuses the abandoned request, which has the old client id.
"""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import ClusterError, ServerRefused, Unreachable
from mqbridge.net.connectivity import retry_log_level
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
"""Number of attempts to register at a Broker."""
REGISTER_PAUSE_S = 1.0
"""Pause after a failed attempt to register."""
OCCUPIED_RETRY_S = 1.0
"""Pause after an attempt that failed because another consumer holds the partition."""
MASTER_SILENT_PAUSE_S = 1.0
"""Pause before `renew` returns False, while the Master does not respond."""


class RegistrationContext(Protocol):
    """The part of a consumer that registrations need."""

    membership: MemberIdentity

    @property
    def master_seen_at(self) -> float:
        """Loop time of the Master's last successful response."""


class PartitionRegistration:
    """Registers one partition. The caller ensures that no other request of the partition is in flight.

    LaneRevoked means that the partition was revoked or released, so its lane (the reading of the partition) has ended.
    """

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
        """Register at the Broker; `offset` sets the group's position, None keeps it. Raises ClusterError, LaneRevoked.

        `read_status` says where a group without a position starts; see `StartOffset`.
        """
        return await self._register_with_retries(read_status, offset, requested=None)

    async def start_at(self, read_status: int, offset: int, *, exact: bool = True) -> int:
        """Register at `offset` and return the offset at which the Broker starts.

        If the Broker starts later than `offset`, its data was deleted up to there. With `exact` this is a gap: the next fetch of
        the partition raises GapError. If the Broker starts earlier, its data ends before `offset`: this is only logged.
        """
        response = await self._register_with_retries(read_status, offset, offset if exact else None)
        if (start := response.currOffset) < offset:
            log.warning(
                "%s: reading starts at offset %d, where the Broker's data ends, instead of at offset %d",
                self._calls,
                start,
                offset,
            )
        return start

    async def seek(self, offset: int, *, exact: bool = True) -> int:
        """Continue at `offset`; return the offset at which the Broker continues.

        Raises LaneRevoked, and ClusterError if the seek fails: reading then continues where it was before.
        """
        if self._state.is_over:  # revoked or released; a gap also stops reading, but a seek continues after it
            self._state.raise_if_stopped()
        start = await self.start_at(read_status=0, offset=offset, exact=exact)
        if self._state.is_over:  # revoked during the registration
            self._state.raise_if_stopped()
        return start

    async def renew(self) -> bool:
        """Register again after the Broker lost the registration or a request was abandoned; return True if done.

        Returns False, after a pause, if the Master has not responded for MASTER_TIMEOUT_S: it may have assigned the partition to
        another member. Raises ClusterError, LaneRevoked.
        """
        if self._loop.time() - self._context.master_seen_at > MASTER_TIMEOUT_S:
            await self._signals.sleep_unless_revoked(MASTER_SILENT_PAUSE_S)
            return False
        if self._state.abandoned:
            await self._fence()
        # The registration overwrites `safe_offset`, the end of the confirmed messages.
        safe_offset, offset = self._state.safe_offset, self._state.resume_offset
        # If `resume_offset` is None, the Broker continues at the group's position, because readStatus is 0.
        response = await self._register_once(read_status=0, offset=offset, requested=offset)
        if response.currOffset < safe_offset:
            warn_offset_set_back(self._calls, safe_offset, response.currOffset)
        return True

    async def _fence(self) -> None:
        """Fence abandoned requests: unregister, and switch to a new client id for the next registration.

        If only the Broker knows where to continue, send a commit first: its response contains the offset. `consumed` is
        True if the commit or unregister request confirms the last pack (the messages of the last get). Raises ClusterError.
        """
        if self._state.can_query_position:
            try:
                await self._commits.commit(consumed=self._state.pack_state is CONFIRMED)
            except ServerRefused as error:
                if error.code not in (codes.NO_NODE, codes.UNAUTHORIZED):
                    raise
                # The Broker restarted. A Broker that shuts down cleanly counts the last pack that it sent as confirmed, so its
                # position cannot be used.
                log.info(
                    "%s: the Broker lost the registration and the position (%s); registering again at the last confirmed offset",
                    self._calls,
                    error,
                )
        await self._calls.unregister(consumed=False)
        self._calls.client_id = self._context.membership.fresh_client_id()

    async def _register_with_retries(self, read_status: int, offset: int | None, requested: int | None) -> RegisterResponseB2C:
        """Register in up to REGISTER_ATTEMPTS attempts, fencing abandoned requests before each; see `_register_once`.

        If another consumer holds the partition, only the first attempt is repeated: if that consumer is dead and its lease has
        expired, the first attempt makes the Broker remove the lease, and the second succeeds. Raises ClusterError after the last
        attempt, and LaneRevoked if the partition was revoked or released between two attempts: the Master may then assign it
        again, also to this member.
        """
        for attempts_left in range(REGISTER_ATTEMPTS - 1, -1, -1):
            try:
                if self._state.abandoned:
                    await self._fence()
                return await self._register_once(read_status, offset, requested)
            except ClusterError as error:
                occupied = isinstance(error, ServerRefused) and error.code == codes.PARTITION_OCCUPIED
                if not attempts_left or (occupied and attempts_left < REGISTER_ATTEMPTS - 1):
                    raise
                pause_s = OCCUPIED_RETRY_S if occupied else REGISTER_PAUSE_S
                level = retry_log_level(error, logging.INFO)
                log.log(level, "registering %s failed, retrying in %g s: %s", self._calls, pause_s, error)
                await asyncio.sleep(pause_s)
            if self._state.is_over:
                self._state.raise_if_stopped()
        raise AssertionError("the loop over the attempts ended without a result or an error")

    async def _register_once(self, read_status: int, offset: int | None, requested: int | None) -> RegisterResponseB2C:
        """Register in one attempt, at `offset` if given.

        If the Broker starts after the offset `requested`, this is a gap; if `requested` is None, any start is accepted.
        """
        try:
            response = await self._calls.register(read_status, offset)
        except (ServerRefused, Unreachable):  # the Broker responded, or the request was never sent
            raise
        except BaseException:
            self._state.on_registration_abandoned()
            raise
        self._counters.registrations += 1
        self._state.on_registered(response.currOffset, response.maxOffset, requested)
        self._signals.update()
        # If the partition was released while this request was in flight, undo the registration.
        if self._state.lease is RELEASED and not await self._calls.try_unregister(consumed=False):
            self._state.on_registration_abandoned()
        return response


def warn_offset_set_back(partition: object, confirmed_offset: int, offset: int) -> None:
    """Log that a Broker continues at `offset`, although all messages before `confirmed_offset` had been confirmed."""
    reason = (
        "the Broker lost data or offsets that were not on disk yet, or somebody reset the group's offset;"
        " messages may be delivered again"
    )
    log.warning("%s: reading goes back from offset %d to %d: %s", partition, confirmed_offset, offset, reason)
