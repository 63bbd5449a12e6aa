"""Base class of all group consumers: joins a group, sends heartbeats to the Master, rejoins if it has forgotten us, and leaves.

The Master assigns the partitions of a `PackConsumer`; a `BalancedConsumer` chooses its partitions itself. Heartbeats to the
Master run in their own task, so that no other work delays them.
"""

import asyncio
import logging
from abc import ABC, abstractmethod

from mqbridge.errors import ClusterError, Failure, ProtocolError, ServerRefused
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.connection.master import call_with_retries
from mqbridge.tubemq.client.consumer.group_member import GroupMember
from mqbridge.tubemq.client.consumer.held_partitions import HeldPartitions
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import PartitionRef

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""Pause after a failed heartbeat to the Master, before the next one."""


class GroupConsumer(ABC):
    """The base of `PackConsumer` and `BalancedConsumer`. Every `report_every`th heartbeat reports all held partitions."""

    def __init__(
        self,
        membership: GroupMember,
        partitions: HeldPartitions,
        *,
        heartbeat_s: float,
        report_every: int,
    ) -> None:
        self._home = HomeLoop(f"the consumer of group {membership.group!r}")
        self.held_partitions = partitions
        self._member, self._heartbeat_s, self._report_every = membership, heartbeat_s, report_every
        self._heartbeat_now = asyncio.Event()
        """Set to send the next heartbeat at once."""
        self._permanent_error: ClusterError | None = None
        """The Master's permanent refusal of this member, after which heartbeats have stopped; subclasses raise it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Join the group. Raises ClusterError after five attempts; FATAL errors (missing topic, different filters) at once."""
        member = self._member
        await member.identify()
        await call_with_retries(f"joining group {member.group}", self._join)
        self.held_partitions.start_tasks()
        self._tasks.append(spawn(self._heartbeat_loop(), f"tubemq heartbeats of {member.client_id}"))

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._closed

    async def close(self, timeout: float | None = None) -> None:
        """Release all partitions, committing confirmed packs, and leave the group, within `timeout` seconds (None: no limit)."""
        if self._closed or self._home.is_over():
            return
        self._closed = True
        deadline = None if timeout is None else self._loop.time() + timeout
        self.held_partitions.close_deadline = deadline
        await cancel(*self._tasks)
        await self.held_partitions.close()
        try:
            async with asyncio.timeout_at(deadline):
                await self._member.leave()
        except (ClusterError, ProtocolError, TimeoutError) as error:
            text = "consumer %s could not leave its group, the Master will remove the consumer after a timeout: %s"
            log.log(retry_log_level(error, logging.INFO), text, self._member.client_id, error)

    async def _join(self) -> None:
        """Register with the Master, for the first time or after the Master has forgotten this member.

        `master_seen_at` records each response: without one for too long, partitions are not registered again at their Brokers.
        """
        await self._member.register(self.held_partitions.refs)
        self.held_partitions.master_seen_at = self._loop.time()

    async def _heartbeat_loop(self) -> None:
        """Send heartbeats until the Master refuses this member permanently.

        TOPIC_NOT_DEPLOYED is not permanent here: a restarted Master does not know the topic until a Broker has registered it.
        """
        heartbeats = 0
        while True:
            heartbeats += 1
            try:
                await self._heartbeat_once(is_report=heartbeats % self._report_every == 0)
            except (ClusterError, ProtocolError) as error:
                if isinstance(error, ServerRefused) and error.failure is Failure.FATAL and error.code != codes.TOPIC_NOT_DEPLOYED:
                    self._on_permanent_refusal(error)
                    return
                log.log(
                    retry_log_level(error, logging.WARNING),
                    "a heartbeat of group %s to the Master failed, retrying in %g s: %s",
                    self._member.group,
                    RETRY_S,
                    error,
                )
                await asyncio.sleep(RETRY_S)
            else:
                await self._wait_for_next_heartbeat()

    async def _heartbeat_once(self, *, is_report: bool) -> None:
        """Send one heartbeat; if the Master no longer knows this member, join again instead.

        The heartbeat lists the held partitions if `is_report` is True, or if there are changes that no heartbeat has reported.
        """
        partitions = self.held_partitions
        has_changed, partitions.has_unreported_changes = partitions.has_unreported_changes, False
        try:
            await self._send_heartbeat(partitions.refs if is_report or has_changed else None)
        except (ClusterError, ProtocolError) as error:
            partitions.has_unreported_changes |= has_changed
            if not isinstance(error, ServerRefused) or error.code != codes.NO_NODE:
                raise
            log.info("the Master no longer knows consumer %s, joining its group again", self._member.client_id)
            await self._join()
        else:
            partitions.master_seen_at = self._loop.time()

    @abstractmethod
    async def _send_heartbeat(self, held: list[PartitionRef] | None) -> None:
        """Send one heartbeat, which reports the `held` partitions unless this is None. Raises ClusterError."""

    async def _wait_for_next_heartbeat(self) -> None:
        """Wait for `heartbeat_s` seconds, or until `_heartbeat_now` is set."""
        try:
            async with asyncio.timeout(self._heartbeat_s):
                await self._heartbeat_now.wait()
        except TimeoutError:
            return
        self._heartbeat_now.clear()

    def _on_permanent_refusal(self, error: ClusterError) -> None:
        """Store the error of a permanent refusal, which the consumer raises; the caller stops the heartbeats."""
        log.error("the Master refused the consumer of group %s permanently, so the consumer stops: %s", self._member.group, error)
        self._permanent_error = error
