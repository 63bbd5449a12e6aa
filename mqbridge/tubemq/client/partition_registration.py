"""Registering a partition at its Broker: at first, again when the Broker forgot it, elsewhere by a seek.

A request that was given up may reach the Broker at any later time and move its position. So the partition is then fenced: given
back, and registered under a fresh client id, for which the Broker refuses the old request.
"""

import asyncio
import logging
from typing import Protocol

from mqbridge.errors import ClusterError, ServerRefused, Unreachable
from mqbridge.net.connectivity import level_of
from mqbridge.tubemq.client.member import Member
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.partition_commits import PartitionCommits
from mqbridge.tubemq.client.partition_signals import PartitionSignals
from mqbridge.tubemq.client.partition_state import PartitionState
from mqbridge.tubemq.client.partition_table import CONFIRMED, RELEASED
from mqbridge.tubemq.client.stats import ReadCounters
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import RegisterResponseB2C

log = logging.getLogger(__name__)

MASTER_TIMEOUT_S = 30.0
"""After this long without a heartbeat a Master has given our partitions away."""
REGISTER_TRIES = 5
REGISTER_PAUSE_S = 1.0
OCCUPIED_RETRY_S = 1.0
FORGOTTEN_PAUSE_S = 1.0
"""Between looks at whether the Master answers again."""


class RegistrationContext(Protocol):
    """What a registration needs of its consumer."""

    membership: Member

    @property
    def seen_at(self) -> float:
        """Loop time of the Master's last good answer."""


class PartitionRegistration:
    """The registrations of one partition, one after the other: the caller sees to it that no other request is under way."""

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
        """Take the partition at its Broker, from `offset` when there is one. Raises ServerRefused, ClusterError."""
        return await self._take_patiently(read_status, offset, None)

    async def start_at(self, read_status: int, offset: int) -> int:
        """Take the partition at exactly `offset`: a later one is a gap, an earlier one is logged. Returns which it is."""
        answer = await self._take_patiently(read_status, offset, offset)
        if (given := answer.currOffset) < offset:
            log.warning("%s starts at offset %d, the last that its Broker knows, and not at %d", self._calls, given, offset)
        return given

    async def seek(self, offset: int) -> int:
        """Go on at `offset`; returns where the Broker goes on.

        Raises LaneRevoked, and ClusterError, after which everything is as it was before.
        """
        if self._state.is_over:
            self._state.check()
        given = await self.start_at(0, offset)
        if self._state.is_over:
            self._state.check()
        return given

    async def renew(self) -> bool:
        """After the Broker has forgotten us, or a request was given up. False while the Master does not answer.

        Unless the Master still counts on us, the partition may be another's by now.
        """
        if self._loop.time() - self._context.seen_at > MASTER_TIMEOUT_S:
            await self._signals.pause(FORGOTTEN_PAUSE_S)
            return False
        if self._state.strays:
            await self._fence()
        known, offset = self._state.safe, self._state.resume_at
        answer = await self._take(0, offset, offset)
        if answer.currOffset < known:
            warn_set_back(self._calls, known, answer.currOffset)
        return True

    async def _fence(self) -> None:
        """End a run with strays: ask where the group stands, give the partition back, and go on under a fresh client id."""
        if self._state.can_ask:
            try:
                await self._commits.commit(consumed=self._state.pack is CONFIRMED)
            except ServerRefused as error:
                if error.code not in (codes.NO_NODE, codes.UNAUTHORIZED):
                    raise
                # It restarted, so its position may lie behind a pack that was out.
                log.info("%s is registered again where reading is known to be safe: %s", self._calls, error)
        await self._calls.give_back(consumed=False)
        self._calls.client_id = self._context.membership.fresh_client_id()

    async def _take_patiently(self, read_status: int, offset: int | None, asked: int | None) -> RegisterResponseB2C:
        """`_take` up to five times, fenced from what was given up before; an occupied partition twice.

        The first try against a dead owner's expired lease only removes that; the second succeeds. Raises LaneRevoked when the
        partition was taken away or given back between two tries: somebody else may have it, or this member anew.
        """
        for left in range(REGISTER_TRIES - 1, -1, -1):
            try:
                if self._state.strays:
                    await self._fence()
                return await self._take(read_status, offset, asked)
            except ClusterError as error:
                occupied = isinstance(error, ServerRefused) and error.code == codes.PARTITION_OCCUPIED
                if not left or (occupied and left < REGISTER_TRIES - 1):
                    raise
                log.log(level_of(error, logging.INFO), "taking %s failed, trying again: %s", self._calls, error)
                await asyncio.sleep(OCCUPIED_RETRY_S if occupied else REGISTER_PAUSE_S)
            if self._state.is_over:
                self._state.check()
        raise AssertionError("unreachable")

    async def _take(self, read_status: int, offset: int | None, asked: int | None) -> RegisterResponseB2C:
        """One registration at `offset`, if there is one; with `asked` it is a gap when the Broker begins behind that."""
        try:
            found = await self._calls.take(read_status, offset)
        except (ServerRefused, Unreachable):  # answered, or never sent
            raise
        except BaseException:
            self._state.registration_lost()
            raise
        self._counters.registrations += 1
        self._state.registered(found.currOffset, found.maxOffset, asked)
        self._signals.update()
        # Given back while this was under way.
        if self._state.lease is RELEASED and not await self._calls.try_give_back(consumed=False):
            self._state.registration_lost()
        return found


def warn_set_back(partition: object, known: int, offset: int) -> None:
    """A Broker reads again before what it once had confirmed."""
    lost = "the Broker lost what it had not written to disk, or was set back"
    log.warning("%s went back from offset %d to %d: %s", partition, known, offset, lost)
