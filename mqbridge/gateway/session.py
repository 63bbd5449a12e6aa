"""A route's membership in its group, from joining to leaving: a delivery for each partition that is assigned meanwhile.

A partition whose source lost data stops alone. One that has no place in a target, by the route's rule, waits until it has: it
is shown as stopped, and `look` asks for what may help. Everything else that goes wrong ends the session.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from mqbridge.adapter import CLOSE_S, Cluster, Inbound, InboundLane, InboundSpec
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import GapError
from mqbridge.gateway.ends import Ends
from mqbridge.gateway.gaps import GapCheck
from mqbridge.message import Partition
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

PLACE_CHECK_S = 0.2
"""How often a partition without a place looks whether its target has grown: reads a number, asks nobody."""

DRAIN_PART = 0.8
"""Of the time there is for stopping; the rest is for committing, giving back and leaving."""


class Session:
    """One membership. `run` once; what it shows stays readable afterwards."""

    def __init__(
        self,
        config: RouteConfig,
        source: Cluster,
        ends: Ends,
        settings: LaneSettings,
        gaps: GapCheck,
        failed: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.changed_at = self._loop.time()
        """When it began, or last was given a partition or lost one."""
        self.deliveries: dict[Partition, LaneDelivery] = {}
        self.stopped: dict[Partition, str] = {}
        """Partitions that are not read, and why."""
        self.look = asyncio.Event()
        """Set when it is worth to look at the targets before it is time."""
        self.settings = settings
        self._config, self._source, self._ends, self._gaps = config, source, ends, gaps
        self._failed = failed
        self._ending = asyncio.Event()
        self._deadline: float | None = None
        self._live: set[LaneDelivery] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> int:
        """How many partitions are its own now, those among them that are stopped."""
        return len(self.deliveries.keys() | self.stopped.keys())

    async def run(self) -> None:
        """Deliver until `stop` or a failure, which is told at once; then drain and leave. Raises when it cannot join."""
        inbound: Inbound | None = None
        acceptor: asyncio.Task[None] | None = None
        try:
            if (inbound := await self._join()) is not None:
                acceptor = spawn(self._accept(inbound), f"lanes of {self._config.name}")
                await self._ending.wait()
        finally:
            self._ending.set()
            await cancel(acceptor)
            now = self._loop.time()
            deadline = now + CLOSE_S if self._deadline is None else self._deadline
            for delivery in self._live:
                delivery.stop(now + (deadline - now) * DRAIN_PART)
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if inbound is not None:
                await inbound.close(deadline)

    def stop(self, deadline: float | None = None) -> None:
        """Take no more; `run` then drains, leaves and returns, by this loop time. The first deadline counts."""
        if self._deadline is None:
            self._deadline = deadline
        self._ending.set()

    async def _join(self) -> Inbound | None:
        """None when the session ends before it is a member: a cluster that does not answer must not hold that up."""
        if self._ending.is_set():
            return None
        joining = spawn(self._source.inbound(self._spec()), f"joining of {self._config.name}", quiet=True)
        ending = spawn(self._ending.wait(), f"end of {self._config.name}")
        try:
            await asyncio.wait([joining, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            await cancel(joining, ending)
        return None if joining.cancelled() else joining.result()

    def _spec(self) -> InboundSpec:
        source = self._config.source
        return InboundSpec(
            topics=tuple(self._ends.targets),
            group=source.group,
            start=source.start,
            msg_types=source.msg_types,
            max_bytes=self._config.delivery.in_flight_bytes,
            options=source.options,
        )

    async def _accept(self, inbound: Inbound) -> None:
        try:
            async for lane in inbound.lanes():
                self.changed_at = self._loop.time()
                partition = lane.partition
                delivery = LaneDelivery(
                    lane, self._ends.targets[partition.topic], self.settings, individual_ack=inbound.individual_ack
                )
                self._live.add(delivery)
                self.deliveries[partition] = delivery
                self.stopped.pop(partition, None)
                task = spawn(self._deliver(lane, delivery), f"{self._config.name} {partition}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception as error:  # noqa: BLE001 - as in `_deliver`
            self._fail(error)

    async def _deliver(self, lane: InboundLane, delivery: LaneDelivery) -> None:
        partition = lane.partition
        try:
            await self._check(partition, delivery)
            await self._place(partition, delivery)
            await delivery.run()
        except GapError as error:
            advice = "" if error.resume is None else ". Set `on_gap: continue` to go on without what was lost"
            self.stopped[partition] = f"{error}{advice}"
            log.error("route %s: %s stopped: %s", self._config.name, partition, self.stopped[partition])  # noqa: TRY400 - expected
        except Exception as error:  # noqa: BLE001 - even a bug must stop the route: a lane that ends unseen looks like an idle one
            self._fail(error)
        finally:
            self._live.discard(delivery)
            if self.deliveries.get(partition) is delivery:
                del self.deliveries[partition]
                self.changed_at = self._loop.time()

    async def _check(self, partition: Partition, delivery: LaneDelivery) -> None:
        """Either the group itself stands behind such a gap already, or the source is going to say the same."""
        try:
            await self._gaps.check(partition)
        except GapError as gap:
            delivery.gaps.pass_by(gap)

    async def _place(self, partition: Partition, delivery: LaneDelivery) -> None:
        """Wait until every target has a place for the partition, or the session ends."""
        problem = self._ends.unplaced(partition)
        if problem is None:
            return
        log.error("route %s: %s waits: %s", self._config.name, partition, problem)
        self.deliveries.pop(partition, None)
        self.stopped[partition] = problem
        self.look.set()
        while self._ends.unplaced(partition) is not None and not self._ending.is_set():
            await self._pause(PLACE_CHECK_S)
        if self._ending.is_set():
            delivery.stop(self._deadline)  # before it begins: there is still no place for what it would read
        else:
            log.info("route %s: %s goes on: its target has grown", self._config.name, partition)
            del self.stopped[partition]
            self.deliveries[partition] = delivery

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)

    def _fail(self, error: Exception) -> None:
        self._failed(error)
        self._ending.set()
