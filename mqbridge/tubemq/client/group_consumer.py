"""What every member of a group does, whoever balances it: joins, says to the Master that it lives, joins again, leaves.

Heartbeats to the Master never wait for anything else.
"""

import asyncio
import logging
from abc import ABC, abstractmethod

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.balanced_membership import BalancedMembership
from mqbridge.tubemq.client.held_partitions import HeldPartitions
from mqbridge.tubemq.client.master import retried
from mqbridge.tubemq.client.membership import Membership
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.text import PartitionRef

log = logging.getLogger(__name__)

RETRY_S = 1.0


class GroupConsumer(ABC):
    """The base of `Consumer` and `BalancedConsumer`. Every `report_every`th heartbeat reports all that is held."""

    def __init__(
        self,
        membership: Membership | BalancedMembership,
        partitions: HeldPartitions,
        *,
        heartbeat_s: float,
        report_every: int,
    ) -> None:
        self.held_partitions = partitions
        self._member, self._heartbeat_s, self._report_every = membership, heartbeat_s, report_every
        self._wake = asyncio.Event()
        """There is something to say before the next heartbeat is due."""
        self._failed: ClusterError | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Join the group. Raises ClusterError after five tries; FATAL ones (no such topic, other filters or members) at once."""
        member = self._member
        await member.identify()
        await retried(f"joining group {member.group}", self._join)
        self.held_partitions.begin()
        self._tasks.append(spawn(self._heartbeats(), f"tubemq heartbeats of {member.client_id}"))

    async def close(self, deadline: float | None = None) -> None:
        """Give all partitions back, keeping what was confirmed, and leave the group; `deadline` is a time of the event loop."""
        self.held_partitions.close_by = deadline
        await cancel(*self._tasks)
        await self.held_partitions.close()
        try:
            async with asyncio.timeout_at(deadline):
                await self._member.leave()
        except (ClusterError, ProtocolError, TimeoutError) as error:
            log.log(level_of(error, logging.INFO), "the Master was not told that %s left: %s", self._member.client_id, error)

    async def _join(self) -> None:
        """Register with the Master, also when it has forgotten us."""
        await self._member.register(self.held_partitions.refs)
        self.held_partitions.seen_at = self._loop.time()

    async def _heartbeats(self) -> None:
        beats = 0
        while True:
            beats += 1
            try:
                await self._heartbeat(report=beats % self._report_every == 0)
            except (ClusterError, ProtocolError) as error:
                if isinstance(error, ServerRefused) and error.failure is Failure.FATAL and error.code != codes.TOPIC_NOT_DEPLOYED:
                    self._fail(error)
                    return
                log.log(
                    level_of(error, logging.WARNING),
                    "a heartbeat of group %s failed, retrying in %g s: %s",
                    self._member.group,
                    RETRY_S,
                    error,
                )
                await asyncio.sleep(RETRY_S)
            else:
                await self._until_next()

    async def _heartbeat(self, *, report: bool) -> None:
        partitions = self.held_partitions
        due, partitions.changed = partitions.changed, False
        try:
            await self._beat(partitions.refs if report or due else None)
        except (ClusterError, ProtocolError) as error:
            partitions.changed |= due
            if not isinstance(error, ServerRefused) or error.code != codes.NO_NODE:
                raise
            log.info("the Master does not know %s any more; it joins again", self._member.client_id)
            await self._join()
        else:
            partitions.seen_at = self._loop.time()

    @abstractmethod
    async def _beat(self, held: list[PartitionRef] | None) -> None:
        """One heartbeat, which reports `held` if that is given. Raises ClusterError."""

    async def _until_next(self) -> None:
        """Until the next heartbeat is due, or there is something to say."""
        try:
            async with asyncio.timeout(self._heartbeat_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _fail(self, error: ClusterError) -> None:
        """The group does not want us any more."""
        log.error("group %s cannot go on: %s", self._member.group, error)
        self._failed = error
