"""A running route: one inbound, the outbounds of every source topic, and a delivery per assigned partition.

`prepare` finds everything that can be wrong before anything is consumed. A route that fails stops alone, the rest of the gateway
goes on; a partition whose source lost data stops alone, the rest of its route goes on.
"""

import asyncio
import logging
from collections.abc import Mapping

from pydantic import BaseModel

from mqbridge.adapter import Bounds, Cluster, Inbound, InboundLane, InboundSpec, Outbound, OutboundSpec, Topic
from mqbridge.config.models import Route as RouteConfig
from mqbridge.config.models import Target as TargetConfig
from mqbridge.delivery.budget import Budget, RateLimit
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.delivery.lane import Counters, LaneDelivery, Target, Terms
from mqbridge.errors import ClusterError, ConfigError, Failure, GapError, MqbridgeError
from mqbridge.message import Batch, Partition, format_position
from mqbridge.net.tasks import cancel, spawn
from mqbridge.routing.partitions import Partitioner
from mqbridge.routing.topics import Selected, is_pattern, render, select

log = logging.getLogger(__name__)

ASSIGNMENT_PATIENCE_S = 60.0
"""A route that was given no partition for so long counts as idle: others of its group have them all. Groups settle in a third."""


class Route:
    """One route of the configuration, from `prepare` over `run` to its end."""

    def __init__(
        self, config: RouteConfig, clusters: Mapping[str, Cluster], checkpoints: Checkpoints | None, drain_s: float
    ) -> None:
        self.name = config.name
        self.config = config
        self.counters = Counters()
        self.budget = Budget(config.delivery.in_flight_bytes)
        self.deliveries: dict[Partition, LaneDelivery] = {}
        self.stopped: dict[Partition, str] = {}
        """Partitions that stopped by an error, with its text."""
        self.error: Exception | None = None
        self.started_at = 0.0
        self._clusters = clusters
        self._checkpoints = checkpoints
        self._drain_s = drain_s
        self._targets: dict[str, list[Target]] = {}
        self._outbounds: list[Outbound] = []
        self._dead_letters: DeadLetters | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._assigned = False
        self._bounds: dict[str, asyncio.Task[Mapping[str, Bounds]]] = {}
        """What each source topic held when its first partition was assigned."""

    # --- state, for health, metrics and --until-idle ------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """Batches received and not yet stored."""
        return sum(delivery.in_flight for delivery in self.deliveries.values())

    def head_age(self, now: float) -> float:
        """Seconds for which the oldest batch has been in flight."""
        return max((now - d.oldest_at for d in self.deliveries.values() if d.oldest_at is not None), default=0.0)

    def idle_for(self, now: float) -> float:
        """Seconds since anything came; 0 while something is in flight, not caught up, or not assigned yet."""
        if self.error is not None:
            return float("inf")
        busy = self.in_flight or not all(delivery.lane.caught_up for delivery in self.deliveries.values())
        waiting = not self._assigned and now - self.started_at < ASSIGNMENT_PATIENCE_S
        if busy or waiting:
            return 0.0
        return now - max(self.counters.last_batch_at, self.started_at)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find the topics, create missing targets, open every outbound. Raises ConfigError or ClusterError."""
        source = self._clusters[self.config.source.cluster]
        chosen = await self._select(source)
        for selected in chosen:
            topic = await source.describe(selected.topic)
            if topic is None:
                raise ClusterError(
                    f"route {self.name!r}: the topic {selected.topic!r} does not exist in cluster {source.name!r}", Failure.FATAL
                )
            targets = [await self._open_target(target, selected, topic) for target in self.config.targets]
            self._targets[selected.topic] = targets
            where = ", ".join(f"{target.label} ({target.outbound.partitions} partitions)" for target in targets)
            log.info("route %s: %s/%s (%d partitions) to %s", self.name, source.name, topic.name, len(topic.partitions), where)
        letters = self.config.delivery.dead_letter
        if letters is not None:
            outbound = await self._open(letters.cluster, letters.topic, 1, None)
            self._dead_letters = DeadLetters(self.name, outbound, f"{letters.cluster}/{letters.topic}")

    async def run(self) -> None:
        """Consume and deliver until `stop` or an error, which is kept in `error`; then drain and leave the group."""
        source, inbound = self.config.source, None
        acceptor: asyncio.Task[None] | None = None
        self.started_at = asyncio.get_running_loop().time()
        try:
            spec = InboundSpec(
                topics=tuple(self._targets),
                group=source.group,
                start=source.start,
                msg_types=source.msg_types,
                max_bytes=self.config.delivery.in_flight_bytes,
                options=source.options,
            )
            inbound = await self._clusters[source.cluster].inbound(spec)
            acceptor = spawn(self._accept(inbound), f"lanes of {self.name}")
            await self._ended.wait()
        except Exception as error:  # noqa: BLE001 - as in `_deliver`
            self._fail(error)
        finally:
            await cancel(acceptor)
            await self._drain(inbound)

    def stop(self) -> None:
        """Take no more; `run` then drains and returns."""
        self._ended.set()

    # --- prepare ------------------------------------------------------------------------------------------------------

    async def _select(self, source: Cluster) -> list[Selected]:
        wanted = self.config.source.wanted
        existing: list[str] = []
        if any(map(is_pattern, wanted)):
            if not source.capabilities.list_topics:
                raise ConfigError(
                    f"route {self.name!r} takes topics by a pattern, but the cluster {source.name!r} cannot list its topics",
                    hint="Give the cluster its admin_url, or name the topics",
                )
            existing = await source.topics()
        chosen = select(wanted, existing)
        if not chosen:
            raise ConfigError(f"route {self.name!r}: no topic of cluster {source.name!r} matches {', '.join(wanted)}")
        return chosen

    async def _open_target(self, target: TargetConfig, selected: Selected, topic: Topic) -> Target:
        name = render(target.topic, selected)
        outbound = await self._open(target.cluster, name, len(topic.partitions) if target.create else None, target.options)
        return Target(f"{target.cluster}/{name}", outbound, Partitioner(target.partitions.by, outbound))

    async def _open(self, cluster: str, topic: str, partitions: int | None, options: BaseModel | None) -> Outbound:
        """An outbound into a topic that is first created, or grown, to `partitions` unless that is None."""
        target, delivery = self._clusters[cluster], self.config.delivery
        if partitions is not None and target.capabilities.create_topics:
            await target.create(topic, partitions)
        spec = OutboundSpec(
            topic=topic,
            ordered=delivery.order == "partition",
            stamp_origin=delivery.stamp_origin,
            max_elapsed_s=delivery.retry.max_elapsed,
            options=options,
        )
        outbound = await target.outbound(spec)
        self._outbounds.append(outbound)
        return outbound

    # --- run ----------------------------------------------------------------------------------------------------------

    async def _accept(self, inbound: Inbound) -> None:
        terms = self._terms()
        try:
            async for lane in inbound.lanes():
                self._assigned = True
                delivery = LaneDelivery(lane, self._targets[lane.partition.topic], terms)
                self.deliveries[lane.partition] = delivery
                self.stopped.pop(lane.partition, None)
                task = spawn(self._deliver(lane, delivery), f"{self.name} {lane.partition}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        except Exception as error:  # noqa: BLE001 - as in `_deliver`
            self._fail(error)

    def _terms(self) -> Terms:
        delivery = self.config.delivery
        limits = {"count": delivery.rate, "size": delivery.rate_bytes}
        return Terms(
            msg_types=self.config.source.msg_types,
            budget=self.budget,
            counters=self.counters,
            individual_ack=self._clusters[self.config.source.cluster].capabilities.individual_ack,
            dead_letters=self._dead_letters,
            rates=[(unit, RateLimit(limit)) for unit, limit in limits.items() if limit],
            on_progress=self._note if self._checkpoints is not None else None,
            drain_timeout_s=self._drain_s,
        )

    async def _deliver(self, lane: InboundLane, delivery: LaneDelivery) -> None:
        partition = lane.partition
        try:
            await self._check_gap(partition)
            await delivery.run()
        except GapError as error:
            log.error("route %s: %s stopped: %s", self.name, partition, error)  # noqa: TRY400 - expected, its text says all
            self.stopped[partition] = str(error)
        except Exception as error:  # noqa: BLE001 - even a bug must stop the route: a lane that ends unseen looks like an idle one
            self._fail(error)
        finally:
            if self.deliveries.get(partition) is delivery:
                del self.deliveries[partition]

    async def _check_gap(self, partition: Partition) -> None:
        """Compare where we left off with what the source still holds."""
        left_off = self._checkpoints.load(self.name, partition) if self._checkpoints is not None else None
        if left_off is None or self.config.delivery.on_gap == "continue":
            return
        topic = partition.topic
        if topic not in self._bounds:
            cluster = self._clusters[self.config.source.cluster]
            self._bounds[topic] = spawn(cluster.bounds(topic), f"bounds of {topic}", quiet=True)
        try:
            held = (await asyncio.shield(self._bounds[topic])).get(partition.name)
        except ClusterError as error:
            log.warning("%s cannot be checked for a gap: %s", partition, error)
            return
        if held is None:
            return
        if held.first > left_off:
            raise GapError(
                f"{partition} begins at {format_position(held.first)}, but this route had delivered only up to "
                f"{format_position(left_off)}: what lay between is gone. Set `on_gap: continue` to go on without it"
            )
        if held.next < left_off:
            log.warning(
                "%s ends at %s, before the %s that was delivered: it was made anew, or its broker lost what it had acknowledged",
                partition,
                format_position(held.next),
                format_position(left_off),
            )

    def _note(self, batch: Batch) -> None:
        assert self._checkpoints is not None  # noqa: S101 - only called with checkpoints
        self._checkpoints.note(self.name, batch.partition, batch.next)

    # --- end ----------------------------------------------------------------------------------------------------------

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            self.error = error
            expected = isinstance(error, MqbridgeError)
            log.error("route %s stopped: %s", self.name, error if expected else repr(error), exc_info=None if expected else error)
        self._ended.set()

    async def _drain(self, inbound: Inbound | None) -> None:
        for delivery in self.deliveries.values():
            delivery.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if inbound is not None:
            await inbound.close()

    async def close(self) -> None:
        """Close what `prepare` opened."""
        await asyncio.gather(*(outbound.close() for outbound in self._outbounds), return_exceptions=True)
        self._outbounds.clear()
