"""A route's membership in its group, from joining to leaving: a delivery for each partition that is assigned meanwhile.

A partition whose source lost data stops alone, and stays ours while the session lasts: given back it would come straight again,
to stop again. One that has no place in a target, by the route's rule, waits until it has: it is shown as stopped, and `look` asks
for what may help. Everything else that goes wrong ends the session.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.deadlines import deadline_of
from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import ClusterError, GapError
from mqbridge.gateway.closing import GRACE_S, cancel_by, close_by, settle_by
from mqbridge.gateway.ends import Ends
from mqbridge.gateway.gaps import GapCheck
from mqbridge.message import Partition
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

PLACE_CHECK_S = 0.2
"""How often a partition without a place looks whether its target has grown: reads a number, asks nobody."""

JOIN_S, JOIN_PARTITION_S = 120.0, 1.0
"""A group that has not let us in by then is asked anew: every request of a client ends long before. The second is for each
partition: an adapter may subscribe to one after the other, each with several requests over a link that may be long."""

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
        known: Mapping[str, frozenset[str]],
        failed: Callable[[Exception], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.changed_at = self._loop.time()
        """When it began or joined, or last was given a partition or lost one."""
        self.joined = False
        self.deliveries: dict[Partition, LaneDelivery] = {}
        self.stopped: dict[Partition, str] = {}
        """Partitions that are not read, and why."""
        self._stopped: dict[Partition, LaneDelivery] = {}
        """Whose lanes these are."""
        self.look = asyncio.Event()
        """Set when it is worth to look at the targets before it is time."""
        self.settings = settings
        self._config, self._source, self._ends, self._gaps = config, source, ends, gaps
        self._known, self._failed = known, failed
        self._ending = asyncio.Event()
        self._deadline: float | None = None
        self._live: set[LaneDelivery] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> int:
        """How many partitions are its own now, those among them that are stopped."""
        return len(self.deliveries.keys() | self.stopped.keys())

    @property
    def is_ending(self) -> bool:
        """It takes no more."""
        return self._ending.is_set()

    async def run(self) -> None:
        """Deliver until `stop` or a failure, which is told at once; then drain and leave. Raises when it cannot join."""
        inbound: Inbound | None = None
        acceptor: asyncio.Task[None] | None = None
        try:
            if (inbound := await self._join()) is not None:
                self.joined, self.changed_at = True, self._loop.time()
                acceptor = spawn(self._accept(inbound), f"lanes of {self._config.name}")
                await self._ending.wait()
        finally:
            self._ending.set()
            self._deadline = deadline = deadline_of(self._deadline)
            now = self._loop.time()
            for delivery in self._live:  # one that is taken from here on stops before it begins
                delivery.stop(now + (deadline - now) * DRAIN_PART)
            await cancel_by(deadline, f"taking partitions of route {self._config.name}", acceptor)
            await settle_by(deadline + GRACE_S, f"the lanes of route {self._config.name}", *self._tasks)
            if inbound is not None:
                await close_by(deadline, f"leaving the group of route {self._config.name}", inbound.close(deadline))

    def stop(self, deadline: float | None = None) -> None:
        """Take no more; `run` then drains, leaves and returns, by this loop time. The first deadline counts."""
        if self._deadline is None:
            self._deadline = deadline
        self._ending.set()

    async def _join(self) -> Inbound | None:
        """None when the session ends before it is a member: a cluster that does not answer must not hold that up.

        Raises ClusterError when it does not answer at all.
        """
        if self._ending.is_set():
            return None
        what, patience = f"joining of {self._config.name}", JOIN_S + JOIN_PARTITION_S * self._ends.source_partitions
        joining: asyncio.Task[Inbound] = spawn(self._source.inbound(self._spec()), what, quiet=True)
        ending = spawn(self._ending.wait(), f"end of {self._config.name}")
        try:
            await asyncio.wait([joining, ending], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            is_ending = ending.done()
        finally:
            await cancel_by(self._deadline, what, joining, ending)
            if not joining.done():
                joining.add_done_callback(self._let_in_late)
        if joining.done() and not joining.cancelled():
            return joining.result()
        if is_ending:
            return None
        group = self._config.source.group
        raise ClusterError(f"cluster {self._source.name} has not let us into group {group!r} for {patience:g} s")

    def _let_in_late(self, joining: "asyncio.Task[Inbound]") -> None:
        """Nobody waited for it any longer: it would keep partitions that nobody reads."""
        if not joining.cancelled() and joining.exception() is None:
            spawn(joining.result().close(), f"leaving the group of route {self._config.name}")

    def _spec(self) -> InboundSpec:
        source = self._config.source
        return InboundSpec(
            topics=tuple(self._ends.targets),
            group=source.group,
            start=source.start,
            msg_types=source.msg_types,
            known=self._known,
            max_bytes=self._config.delivery.read_ahead_bytes,
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
                self._stopped.pop(partition, None)
                task = spawn(self._deliver(lane, delivery), f"{self._config.name} {partition}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception as error:  # noqa: BLE001 - as in `_deliver`
            self._fail(error)

    async def _deliver(self, lane: InboundLane, delivery: LaneDelivery) -> None:
        partition = lane.partition
        try:
            await self._while_ours(lane, self._check(partition, delivery))
            await self._while_ours(lane, self._place(partition, delivery))
            if self._ending.is_set():
                delivery.stop(self._deadline)  # before it begins: there may be no place for what it would read
            await delivery.run()
        except GapError as error:
            advice = "" if error.resume is None else ". Set `on_gap: continue` to go on without what was lost"
            log.error("route %s: %s stopped: %s%s", self._config.name, partition, error, advice)  # noqa: TRY400 - expected
            self._show_stopped(delivery, f"{error}{advice}")
            await self._while_ours(lane, asyncio.Event().wait())
            await lane.release(self._deadline)
        except Exception as error:  # noqa: BLE001 - even a bug must stop the route: a lane that ends unseen looks like an idle one
            self._fail(error)
        finally:
            self._live.discard(delivery)
            if self.deliveries.get(partition) is delivery:
                del self.deliveries[partition]
                self.changed_at = self._loop.time()
            if lane.revoked.is_set() and not self._ending.is_set():
                self._show_moving(delivery)

    async def _while_ours(self, lane: InboundLane, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run it until it is done, the session ends, or the partition is taken away."""
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
        if self.deliveries.get(partition) is delivery:  # else it was taken away, and is ours again by now
            del self.deliveries[partition]
            self.stopped[partition] = why
            self._stopped[partition] = delivery
            self.changed_at = self._loop.time()

    def _show_moving(self, delivery: LaneDelivery) -> None:
        """It is stopped no more: it goes on, or it is somebody else's."""
        partition = delivery.lane.partition
        if self._stopped.get(partition) is delivery:
            del self.stopped[partition], self._stopped[partition]
            self.changed_at = self._loop.time()

    async def _check(self, partition: Partition, delivery: LaneDelivery) -> None:
        """Either the group itself stands behind such a gap already, or the source is going to say the same."""
        try:
            await self._gaps.check(partition)
        except GapError as gap:
            delivery.gaps.pass_by(gap)

    async def _place(self, partition: Partition, delivery: LaneDelivery) -> None:
        """Wait until every target has a place for the partition."""
        problem = self._ends.unplaced(partition)
        if problem is None:
            return
        log.error("route %s: %s waits: %s", self._config.name, partition, problem)
        self._show_stopped(delivery, problem)
        self.look.set()
        while self._ends.unplaced(partition) is not None:  # noqa: ASYNC110 - nobody tells of a number that has grown
            await asyncio.sleep(PLACE_CHECK_S)
        log.info("route %s: %s goes on: its target has grown", self._config.name, partition)
        if self._stopped.get(partition) is delivery:  # else it was taken away meanwhile, and may be ours again by now
            self._show_moving(delivery)
            self.deliveries[partition] = delivery

    def _fail(self, error: Exception) -> None:
        self._failed(error)
        self._ending.set()
