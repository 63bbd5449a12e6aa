"""A route's membership in its group, from joining to leaving: one delivery for each partition that is assigned.

A partition whose source lost data stops alone, and is kept during the membership: if released, it would come straight back and
stop again. A partition that by the route's rule has no target partition waits until it has one: it is shown as stopped, and
`refresh_requested` triggers a check of the targets. Any other failure ends the membership.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.deadlines import resolve_deadline
from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import ClusterError, GapError
from mqbridge.gateway.closing import GRACE_S, cancel_by, close_by, settle_by
from mqbridge.gateway.endpoints import RouteEndpoints
from mqbridge.gateway.gaps import GapCheck
from mqbridge.message import Partition
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

GROWTH_CHECK_S = 0.2
"""How often a waiting partition checks whether its target has grown: reads a number, sends no request."""

JOIN_S, JOIN_PARTITION_S = 120.0, 1.0
"""Join timeout, and the addition per partition; then the join is retried. Every request of a client ends long before. An adapter
may subscribe to one partition after the other, each with several requests over a slow link."""

DRAIN_SHARE = 0.8
"""Share of the time for stopping that draining may take; the rest is for committing, releasing and leaving."""


class GroupMembership:
    """One membership. Call `run` once; its state stays readable afterwards."""

    def __init__(
        self,
        config: RouteConfig,
        source: Cluster,
        endpoints: RouteEndpoints,
        settings: LaneSettings,
        gaps: GapCheck,
        initial_partitions: Mapping[str, frozenset[str]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.changed_at = self._loop.time()
        """When it started or joined, or last was assigned a partition or lost one."""
        self.joined = False
        self.deliveries: dict[Partition, LaneDelivery] = {}
        self.stopped: dict[Partition, str] = {}
        """Partitions that are not read, with the reason."""
        self._stopped: dict[Partition, LaneDelivery] = {}
        """The lanes of the stopped partitions."""
        self.refresh_requested = asyncio.Event()
        """Set to request a check of the targets before the next interval."""
        self.settings = settings
        self._config, self._source, self._endpoints, self._gaps = config, source, endpoints, gaps
        self._initial_partitions, self._failed = initial_partitions, failed
        self._ending = asyncio.Event()
        self._deadline: float | None = None
        self._live: set[LaneDelivery] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> int:
        """Number of partitions that it holds now, including stopped ones."""
        return len(self.deliveries.keys() | self.stopped.keys())

    @property
    def is_ending(self) -> bool:
        """True if it accepts no more partitions."""
        return self._ending.is_set()

    async def run(self) -> None:
        """Deliver until `stop` or a failure, which is reported at once; then drain and leave. Raises if it cannot join."""
        inbound: Inbound | None = None
        acceptor: asyncio.Task[None] | None = None
        try:
            if (inbound := await self._join()) is not None:
                self.joined, self.changed_at = True, self._loop.time()
                acceptor = spawn(self._accept(inbound), f"lanes of {self._config.name}")
                await self._ending.wait()
        finally:
            self._ending.set()
            self._deadline = deadline = resolve_deadline(self._deadline)
            now = self._loop.time()
            for delivery in self._live:  # a lane that is assigned from here on stops before it starts
                delivery.stop(now + (deadline - now) * DRAIN_SHARE)
            await cancel_by(deadline, f"taking partitions of route {self._config.name}", acceptor)
            await settle_by(deadline + GRACE_S, f"the lanes of route {self._config.name}", *self._tasks)
            if inbound is not None:
                await close_by(deadline, f"leaving the group of route {self._config.name}", inbound.close(deadline))

    def stop(self, deadline: float | None = None) -> None:
        """Accept no more; `run` then drains, leaves and returns by this loop time. The first deadline counts."""
        if self._deadline is None:
            self._deadline = deadline
        self._ending.set()

    async def _join(self) -> Inbound | None:
        """Join the group; None if the membership ends before: a cluster that does not respond must not delay that.

        Raises ClusterError if there is no response at all.
        """
        if self._ending.is_set():
            return None
        what, timeout = f"joining of {self._config.name}", JOIN_S + JOIN_PARTITION_S * self._endpoints.source_partitions
        joining: asyncio.Task[Inbound] = spawn(self._source.inbound(self._spec()), what, quiet=True)
        ending = spawn(self._ending.wait(), f"end of {self._config.name}")
        try:
            await asyncio.wait([joining, ending], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            is_ending = ending.done()
        finally:
            await cancel_by(self._deadline, what, joining, ending)
            if not joining.done():
                joining.add_done_callback(self._leave_late_join)
        if joining.done() and not joining.cancelled():
            return joining.result()
        if is_ending:
            return None
        group = self._config.source.group
        raise ClusterError(f"cluster {self._source.name} did not complete the join of group {group!r} within {timeout:g} s")

    def _leave_late_join(self, joining: "asyncio.Task[Inbound]") -> None:
        """Leave a group that was joined after the timeout: the member would hold partitions that nothing reads."""
        if not joining.cancelled() and joining.exception() is None:
            spawn(joining.result().close(), f"leaving the group of route {self._config.name}")

    def _spec(self) -> InboundSpec:
        source = self._config.source
        return InboundSpec(
            topics=tuple(self._endpoints.targets),
            group=source.group,
            start=source.start,
            msg_types=source.msg_types,
            initial_partitions=self._initial_partitions,
            max_bytes=self._config.delivery.read_ahead_bytes,
            options=source.options,
        )

    async def _accept(self, inbound: Inbound) -> None:
        try:
            async for lane in inbound.lanes():
                self.changed_at = self._loop.time()
                partition = lane.partition
                delivery = LaneDelivery(
                    lane, self._endpoints.targets[partition.topic], self.settings, individual_ack=inbound.individual_ack
                )
                self._live.add(delivery)
                self.deliveries[partition] = delivery
                self.stopped.pop(partition, None)
                self._stopped.pop(partition, None)
                task = spawn(self._deliver(lane, delivery), f"{self._config.name} {partition}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception as error:  # noqa: BLE001 - as in `_deliver`
            self._fail(error)

    async def _deliver(self, lane: InboundLane, delivery: LaneDelivery) -> None:
        partition = lane.partition
        try:
            await self._while_held(lane, self._check_gap(partition, delivery))
            await self._while_held(lane, self._wait_for_target(partition, delivery))
            if self._ending.is_set():
                delivery.stop(self._deadline)  # before it starts: there may be no target partition for its messages
            await delivery.run()
        except GapError as error:
            advice = "" if error.resume is None else ". Set `on_gap: continue` to go on without the lost messages"
            log.error("route %s: %s stopped: %s%s", self._config.name, partition, error, advice)  # noqa: TRY400 - expected
            self._show_stopped(delivery, f"{error}{advice}")
            await self._while_held(lane, asyncio.Event().wait())
            await lane.release(self._deadline)
        except Exception as error:  # noqa: BLE001 - a bug must stop the route too: a lane that ends unnoticed looks idle
            self._fail(error)
        finally:
            self._live.discard(delivery)
            if self.deliveries.get(partition) is delivery:
                del self.deliveries[partition]
                self.changed_at = self._loop.time()
            if lane.revoked.is_set() and not self._ending.is_set():
                self._clear_stopped(delivery)

    async def _while_held(self, lane: InboundLane, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine until it is done, the membership ends, or the partition is revoked."""
        tasks = [
            spawn(coroutine, f"{self._config.name} {lane.partition}", quiet=True),
            spawn(self._ending.wait(), f"end of {self._config.name}"),
            spawn(lane.revoked.wait(), f"revocation of {lane.partition}"),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(*tasks)
        if not tasks[0].cancelled():
            tasks[0].result()

    def _show_stopped(self, delivery: LaneDelivery, why: str) -> None:
        partition = delivery.lane.partition
        if self.deliveries.get(partition) is delivery:  # else it was revoked and has been assigned again
            del self.deliveries[partition]
            self.stopped[partition] = why
            self._stopped[partition] = delivery
            self.changed_at = self._loop.time()

    def _clear_stopped(self, delivery: LaneDelivery) -> None:
        """Show the partition as stopped no more: it continues, or another consumer holds it."""
        partition = delivery.lane.partition
        if self._stopped.get(partition) is delivery:
            del self.stopped[partition], self._stopped[partition]
            self.changed_at = self._loop.time()

    async def _check_gap(self, partition: Partition, delivery: LaneDelivery) -> None:
        """Check for a gap. No seek: the group's position is after the gap already, or the source will report the same gap."""
        try:
            await self._gaps.check(partition)
        except GapError as gap:
            delivery.gaps.skip(gap)

    async def _wait_for_target(self, partition: Partition, delivery: LaneDelivery) -> None:
        """Wait until every target has a partition for the source partition."""
        problem = self._endpoints.why_unassignable(partition)
        if problem is None:
            return
        log.error("route %s: %s waits: %s", self._config.name, partition, problem)
        self._show_stopped(delivery, problem)
        self.refresh_requested.set()
        while self._endpoints.why_unassignable(partition) is not None:  # noqa: ASYNC110 - no event tells when the number grows
            await asyncio.sleep(GROWTH_CHECK_S)
        log.info("route %s: %s continues: its target has grown", self._config.name, partition)
        if self._stopped.get(partition) is delivery:  # else it was revoked meanwhile, and may have been assigned again
            self._clear_stopped(delivery)
            self.deliveries[partition] = delivery

    def _fail(self, error: Exception) -> None:
        self._failed(error)
        self._ending.set()
