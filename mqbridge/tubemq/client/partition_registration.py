"""Registers a partition at its Broker: the first time, again after the Broker forgot it, at another offset by a seek.

An abandoned request may reach the Broker at any later time and move its position. So the partition is then fenced: unregistered,
and registered under a fresh client id, so that the Broker refuses the old request.
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
"""After this long without a heartbeat a Master has assigned our partitions to others."""
REGISTER_ATTEMPTS = 5
REGISTER_PAUSE_S = 1.0
OCCUPIED_RETRY_S = 1.0
FORGOTTEN_PAUSE_S = 1.0
"""Interval between checks if the Master responds again."""


class RegistrationContext(Protocol):
    """The part of a consumer that registrations need."""

    membership: MemberIdentity

    @property
    def master_seen_at(self) -> float:
        """Loop time of the Master's last successful response."""


class PartitionRegistration:
    """The registrations of one partition; the caller makes sure that no other request is in flight."""

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
        """Register at the Broker, at `offset` if given. Raises ServerRefused, ClusterError."""
        return await self._register_with_retries(read_status, offset, None)

    async def start_at(self, read_status: int, offset: int, *, exact: bool = True) -> int:
        """Register at `offset` and return the Broker's offset: a later one is a gap if `exact`, an earlier one is logged."""
        answer = await self._register_with_retries(read_status, offset, offset if exact else None)
        if (given := answer.currOffset) < offset:
            log.warning("%s starts at offset %d, its Broker's end, and not at %d", self._calls, given, offset)
        return given

    async def seek(self, offset: int, *, exact: bool = True) -> int:
        """Continue at `offset`; return where the Broker continues.

        Raises LaneRevoked, or ClusterError, which leaves everything as it was.
        """
        if self._state.is_over:
            self._state.raise_if_stopped()
        given = await self.start_at(0, offset, exact=exact)
        if self._state.is_over:
            self._state.raise_if_stopped()
        return given

    async def renew(self) -> bool:
        """Register again after the Broker forgot us or a request was abandoned. False while the Master does not respond.

        The Master has to respond first: otherwise the partition may belong to another member by now.
        """
        if self._loop.time() - self._context.master_seen_at > MASTER_TIMEOUT_S:
            await self._signals.pause(FORGOTTEN_PAUSE_S)
            return False
        if self._state.abandoned:
            await self._fence()
        known, offset = self._state.safe, self._state.resume_offset
        answer = await self._take(0, offset, offset)
        if answer.currOffset < known:
            warn_set_back(self._calls, known, answer.currOffset)
        return True

    async def _fence(self) -> None:
        """Fence abandoned requests: query the group's position, unregister, and continue under a fresh client id."""
        if self._state.can_query_position:
            try:
                await self._commits.commit(consumed=self._state.pack is CONFIRMED)
            except ServerRefused as error:
                if error.code not in (codes.NO_NODE, codes.UNAUTHORIZED):
                    raise
                # The Broker restarted, so its position may lie behind a pack that was delivered.
                log.info("%s is registered again at the last safe offset: %s", self._calls, error)
        await self._calls.unregister(consumed=False)
        self._calls.client_id = self._context.membership.fresh_client_id()

    async def _register_with_retries(self, read_status: int, offset: int | None, asked: int | None) -> RegisterResponseB2C:
        """Register with up to five tries, fencing abandoned requests before each; an occupied partition is tried twice.

        The first try against a dead owner's expired lease only removes the lease; the second succeeds. Raises LaneRevoked if the
        partition was revoked or released between two tries: another member may hold it, or this member again.
        """
        for tries_left in range(REGISTER_ATTEMPTS - 1, -1, -1):
            try:
                if self._state.abandoned:
                    await self._fence()
                return await self._take(read_status, offset, asked)
            except ClusterError as error:
                occupied = isinstance(error, ServerRefused) and error.code == codes.PARTITION_OCCUPIED
                if not tries_left or (occupied and tries_left < REGISTER_ATTEMPTS - 1):
                    raise
                log.log(level_of(error, logging.INFO), "registering %s failed, retrying: %s", self._calls, error)
                await asyncio.sleep(OCCUPIED_RETRY_S if occupied else REGISTER_PAUSE_S)
            if self._state.is_over:
                self._state.raise_if_stopped()
        raise AssertionError("unreachable")

    async def _take(self, read_status: int, offset: int | None, asked: int | None) -> RegisterResponseB2C:
        """Register once, at `offset` if given; if the Broker begins behind `asked`, that is a gap."""
        try:
            found = await self._calls.register(read_status, offset)
        except (ServerRefused, Unreachable):  # answered, or never sent
            raise
        except BaseException:
            self._state.registration_lost()
            raise
        self._counters.registrations += 1
        self._state.registered(found.currOffset, found.maxOffset, asked)
        self._signals.update()
        # The partition was released while this request was in flight.
        if self._state.lease is RELEASED and not await self._calls.try_unregister(consumed=False):
            self._state.registration_lost()
        return found


def warn_set_back(partition: object, known: int, offset: int) -> None:
    """Log that a Broker went back behind its confirmed offset."""
    lost = "the Broker lost what it had not written to disk, or was set back"
    log.warning("%s went back from offset %d to %d: %s", partition, known, offset, lost)
