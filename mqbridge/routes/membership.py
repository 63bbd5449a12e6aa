"""A route's membership in its group, from joining to leaving, with one delivery per assigned partition.

The source hands over each assignment of a partition as a lane, the stream of its batches. A partition with a gap (the source no
longer holds messages that were never read) stops, and the others continue. It is not released: the group would assign it to this
member again, and it would stop again. A partition without a target partition (by the route's partition rule) waits until there is
one, and a partition with an unprotected target waits until the target keeps messages: it is shown as stopped, and
`refresh_requested` triggers a check of the targets. Any other failure ends the membership.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import HeldPositions, Inbound, InboundLane, InboundSpec, ReportsPauses
from mqbridge.adapter.tools.deadlines import resolve_deadline
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Partition
from mqbridge.net.tasks import cancel, spawn
from mqbridge.routes.closing import GRACE_S, cancel_by_deadline, close_by_deadline, wait_by_deadline
from mqbridge.routes.endpoints import RouteEndpoints
from mqbridge.routes.gap_check import GapCheck

log = logging.getLogger(__name__)

GROWTH_CHECK_S = 0.2
"""Pause between two checks whether the target of a waiting partition has grown; a check sends no request."""

JOIN_TIMEOUT_S, JOIN_TIMEOUT_PER_PARTITION_S = 120.0, 1.0
"""Timeout of a join, and its increase per source partition; after the timeout, the route starts a new membership.

Each single request times out much earlier. But an adapter may subscribe to the partitions in sequence, each with several requests
over a slow link.
"""

DRAIN_FRACTION = 0.8
"""Fraction of the time until the deadline that draining may take; the rest is for committing, releasing and leaving."""


class GroupMembership:
    """One membership. Call `run` once; its state stays readable afterwards.

    `on_failure` is called with each failure after the join. `initial_partitions` are the names of the partitions, by topic, that
    existed when the route first joined the group: the configured start position applies only to them. `began_ms` is that time (ms
    since the epoch).
    """

    def __init__(
        self,
        config: RouteConfig,
        source: Cluster,
        endpoints: RouteEndpoints,
        settings: LaneSettings,
        gap_check: GapCheck,
        initial_partitions: Mapping[str, frozenset[str]],
        began_ms: int | None,
        positions: HeldPositions,
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.changed_at = self._loop.time()
        """Loop time of the start, of the join, or of the last change of the assigned or stopped partitions."""
        self.has_joined = False
        self.deliveries: dict[Partition, LaneDelivery] = {}
        """The deliveries of the assigned partitions that are read."""
        self.stopped: dict[Partition, str] = {}
        """Assigned partitions that are not read, with the reason."""
        self._stopped_deliveries: dict[Partition, LaneDelivery] = {}
        """The deliveries of the stopped partitions."""
        self.refresh_requested = asyncio.Event()
        """Set to request a check of the targets without waiting for the next interval."""
        self.settings = settings
        self._config, self._source = config, source
        self._endpoints, self._gap_check = endpoints, gap_check
        self._initial_partitions, self._began_ms = initial_partitions, began_ms
        self._positions, self._on_failure = positions, on_failure
        self._inbound: Inbound | None = None
        """The membership at the source, from the join on."""
        self._ending = asyncio.Event()
        """Set when the membership begins to end: after `stop`, a failure, or the cancellation of `run`."""
        self._deadline: float | None = None
        """Loop time by which the membership must have ended; None until `stop` or the end of `run` sets it."""
        self._running_deliveries: set[LaneDelivery] = set()
        """The deliveries whose task has not ended, including those of partitions that wait, are stopped, or were revoked."""
        self._tasks: set[asyncio.Task[None]] = set()
        """The task of each running delivery."""

    @property
    def partition_count(self) -> int:
        """Number of assigned partitions, including stopped ones."""
        return len(self.deliveries.keys() | self.stopped.keys())

    @property
    def pauses(self) -> Mapping[str, str]:
        """Why the source refuses to let this member read now, by topic or partition; see `ReportsPauses`."""
        return self._inbound.pauses if isinstance(self._inbound, ReportsPauses) and not self.is_ending else {}

    @property
    def is_ending(self) -> bool:
        """True if the membership accepts no more partitions."""
        return self._ending.is_set()

    async def run(self) -> None:
        """Deliver until `stop` or a failure, then drain and leave the group. Raises ClusterError if it cannot join.

        A failure while it is a member is not raised, but reported to `on_failure` at once.
        """
        inbound: Inbound | None = None
        acceptor: asyncio.Task[None] | None = None
        try:
            if (inbound := await self._join()) is not None:
                self._inbound = inbound
                self.has_joined, self.changed_at = True, self._loop.time()
                acceptor = spawn(self._accept_lanes(inbound), f"lanes of {self._config.name}")
                await self._ending.wait()
        finally:
            self._ending.set()
            self._deadline = deadline = resolve_deadline(self._deadline)  # None: CLOSE_S (30 s) from now
            now = self._loop.time()
            for delivery in self._running_deliveries:  # `_deliver` stops a lane that is assigned later
                delivery.stop(now + (deadline - now) * DRAIN_FRACTION)
            await cancel_by_deadline(deadline, f"accepting partitions of route {self._config.name}", acceptor)
            # Deliveries end by the deadline themselves; one that still runs GRACE_S later is cancelled.
            await wait_by_deadline(deadline + GRACE_S, f"the lanes of route {self._config.name}", *self._tasks)
            if inbound is not None:
                await close_by_deadline(deadline, f"leaving the group of route {self._config.name}", inbound.close(deadline))

    def stop(self, deadline: float | None = None) -> None:
        """Accept no more partitions; `run` then drains, leaves the group and returns by the deadline.

        Later calls do not change the deadline.
        """
        if self._deadline is None:
            self._deadline = deadline
        self._ending.set()

    async def _join(self) -> Inbound | None:
        """Join the group; return None if the membership is stopped meanwhile: a silent cluster must not delay the stop.

        Raises ClusterError if the join fails or times out.
        """
        if self._ending.is_set():
            return None
        label = f"joining the group of route {self._config.name}"
        timeout_s = JOIN_TIMEOUT_S + JOIN_TIMEOUT_PER_PARTITION_S * self._endpoints.source_partitions
        join_task: asyncio.Task[Inbound] = spawn(self._source.inbound(self._inbound_spec()), label, log_errors=False)
        end_waiter = spawn(self._ending.wait(), f"end of {self._config.name}")
        try:
            await asyncio.wait([join_task, end_waiter], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            is_ending = end_waiter.done()
        finally:
            await cancel_by_deadline(self._deadline, label, join_task, end_waiter)
            if not join_task.done():
                join_task.add_done_callback(self._leave_late_join)
        if join_task.done() and not join_task.cancelled():
            return join_task.result()
        if is_ending:
            return None
        group = self._config.source.group
        raise ClusterError(f"joining group {group!r} in cluster {self._source.name} did not finish within {timeout_s:g} s")

    def _leave_late_join(self, join_task: "asyncio.Task[Inbound]") -> None:
        """Leave a group that was joined after the timeout or the stop: nobody would read the partitions of that membership."""
        if not join_task.cancelled() and join_task.exception() is None:
            spawn(join_task.result().close(), f"leaving the group of route {self._config.name}")

    def _inbound_spec(self) -> InboundSpec:
        source = self._config.source
        return InboundSpec(
            topics=tuple(self._endpoints.targets),
            group=source.group,
            start=source.start,
            msg_types=source.msg_types,
            initial_partitions=self._initial_partitions,
            began_ms=self._began_ms,
            max_bytes=self._config.delivery.read_ahead_bytes,
            options=source.options,
            positions=self._positions,
        )

    async def _accept_lanes(self, inbound: Inbound) -> None:
        """Start a delivery for each assigned partition."""
        try:
            async for lane in inbound.lanes():
                self.changed_at = self._loop.time()
                partition = lane.partition
                delivery = LaneDelivery(
                    lane, self._endpoints.targets[partition.topic], self.settings, individual_ack=inbound.individual_ack
                )
                self._running_deliveries.add(delivery)
                self.deliveries[partition] = delivery
                self.stopped.pop(partition, None)
                self._stopped_deliveries.pop(partition, None)
                task = spawn(self._deliver(lane, delivery), f"{self._config.name} {partition}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception as error:  # noqa: BLE001 - a bug must stop the route too, as in `_deliver`
            self._fail(error)

    async def _deliver(self, lane: InboundLane, delivery: LaneDelivery) -> None:
        """Check for a gap, wait for a target partition, and deliver the lane until it ends.

        After a gap that is not skipped, keep the partition assigned, and show it as stopped.
        """
        partition = lane.partition
        try:
            await self._run_while_assigned(lane, self._check_gap(partition, delivery))
            await self._run_while_assigned(lane, self._wait_for_target(partition, delivery))
            if self._ending.is_set():
                delivery.stop(self._deadline)  # then it receives nothing: there may still be no target partition
            await delivery.run()
        except GapError as error:
            # Without `resume` it is unknown where to continue, so the gap cannot be skipped.
            self._gap_check.record_stop(partition, error)
            advice = "" if error.resume is None else ". Set `on_gap: continue` to continue without the lost messages"
            log.error("route %s: partition %s stopped: %s%s", self._config.name, partition, error, advice)  # noqa: TRY400 - expected
            self._mark_stopped(delivery, f"{error}{advice}")
            await self._run_while_assigned(lane, asyncio.Event().wait())  # until the revocation or the end of the membership
            await lane.release(self._deadline)
        except Exception as error:  # noqa: BLE001 - a bug must stop the route too: a lane that ended would look idle
            self._fail(error)
        finally:
            self._running_deliveries.discard(delivery)
            if self.deliveries.get(partition) is delivery:
                del self.deliveries[partition]
                self.changed_at = self._loop.time()
            if lane.revoked.is_set() and not self._ending.is_set():
                self._clear_stopped(delivery)

    async def _run_while_assigned(self, lane: InboundLane, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine until it ends; cancel it when the membership ends or the partition is revoked.

        Raises the exception of the coroutine.
        """
        tasks = [
            spawn(coroutine, f"{self._config.name} {lane.partition}", log_errors=False),
            spawn(self._ending.wait(), f"end of {self._config.name}"),
            spawn(lane.revoked.wait(), f"revocation of {lane.partition}"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(*tasks)
        if not tasks[0].cancelled():
            tasks[0].result()

    def _mark_stopped(self, delivery: LaneDelivery, why: str) -> None:
        """Move the partition from the deliveries to the stopped ones."""
        partition = delivery.lane.partition
        if self.deliveries.get(partition) is delivery:  # otherwise it was revoked, and may have been assigned again
            del self.deliveries[partition]
            self.stopped[partition] = why
            self._stopped_deliveries[partition] = delivery
            self.changed_at = self._loop.time()

    def _clear_stopped(self, delivery: LaneDelivery) -> None:
        """Remove the partition from the stopped ones, because it continues or was revoked."""
        partition = delivery.lane.partition
        if self._stopped_deliveries.get(partition) is delivery:
            del self.stopped[partition], self._stopped_deliveries[partition]
            self.changed_at = self._loop.time()

    async def _check_gap(self, partition: Partition, delivery: LaneDelivery) -> None:
        """Check for a gap before the first batch. Raises GapError if the route does not skip gaps.

        To skip it, no seek is needed: the source continues after the gap, or reports it again to `LaneDelivery`, which seeks.
        """
        try:
            if not await self._gap_check.check(partition):
                self.settings.counters.possible_gaps += 1
        except GapError as gap:
            delivery.gap_policy.skip(gap)

    async def _wait_for_target(self, partition: Partition, delivery: LaneDelivery) -> None:
        """Wait until every target keeps messages, and has a partition for this source partition."""
        problem = self._endpoints.why_not_readable(partition)
        if problem is None:
            return
        log.error("route %s: partition %s waits for its targets: %s", self._config.name, partition, problem)
        self._mark_stopped(delivery, problem)
        self.refresh_requested.set()
        while self._endpoints.why_not_readable(partition) is not None:  # noqa: ASYNC110 - no event tells when targets change
            await asyncio.sleep(GROWTH_CHECK_S)
        log.info("route %s: partition %s is read now, because its targets are ready for it", self._config.name, partition)
        if self._stopped_deliveries.get(partition) is delivery:  # otherwise it was revoked, and may have been assigned again
            self._clear_stopped(delivery)
            self.deliveries[partition] = delivery

    def _fail(self, error: Exception) -> None:
        """Report a failure, and end the membership."""
        self._on_failure(error)
        self._ending.set()
