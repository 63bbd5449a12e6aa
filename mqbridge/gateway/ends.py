"""The two ends of a route, opened: its source topics, and for each the targets with what is done on the way to them.

What can be wrong about topics and partitions is found by the plan, before anything is created or consumed. `look`
compares them with what the clusters have later on: it grows targets, and says when the route has to begin anew.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.topics import Topic
from mqbridge.config.options.delivery import Delivery
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.config.options.target import Target as TargetConfig
from mqbridge.config.patterns import is_pattern
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.delivery.target import Target
from mqbridge.errors import ClusterError, Failure
from mqbridge.gateway.cautions import TopicUse, group_maker, warnings_about
from mqbridge.gateway.closing import close_by, no_deadline
from mqbridge.gateway.plan import Plan, Planner, outbound_spec, refuse
from mqbridge.gateway.topic_selection import select_from
from mqbridge.message import Partition
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner, misplaced, partitions_made, partitions_needed, unplaced
from mqbridge.routing.topics import Selected, render

log = logging.getLogger(__name__)

Looped = Callable[[int], None]
Place = tuple[str, str, BaseModel | None]
"""Cluster, topic and options: what has one outbound."""


async def loop_guard(cluster: Cluster, topic: str, delivery: Delivery, looped: Looped) -> LoopGuard | None:
    """What keeps messages from being written back to this topic; None where that is off. Raises ClusterError."""
    if not delivery.loops_prevented:
        return None
    described = await cluster.describe(topic)
    spellings = [topic] if described is None else [topic, described.name, *described.aliases]
    return LoopGuard(cluster.name, spellings, delivery.max_hops, looped)


class Opened:
    """A target of one source topic, and which topic of which cluster it is."""

    __slots__ = ("config", "target", "topic")

    def __init__(self, config: TargetConfig, topic: str, target: Target) -> None:
        self.config, self.topic, self.target = config, topic, target


class Ends:
    """Opened by `open`, closed once."""

    def __init__(
        self,
        config: RouteConfig,
        clusters: Mapping[str, Cluster],
        looped: Looped,
        late: Callable[[], Collection[RouteConfig]] = tuple,
    ) -> None:
        self.targets: dict[str, list[Target]] = {}
        """By source topic."""
        self.source_partitions = 0
        """Of all source topics together, as they were found."""
        self.source_names: dict[str, frozenset[str]] = {}
        """The partitions of each source topic, likewise."""
        self.dead_letters: DeadLetters | None = None
        self.is_open = False
        self._config, self._clusters, self._looped, self._late = config, clusters, looped, late
        self._source = clusters[config.source.cluster]
        self._opened: dict[str, list[Opened]] = {}
        self._outbounds: list[tuple[Place, Outbound]] = []

    async def open(self, plan: Plan | None = None, closed_by: Callable[[], float | None] = no_deadline) -> None:
        """Carry out the plan, made now if it is not given: create missing targets, open every outbound.

        Raises ConfigError or ClusterError: nothing is open then, and nothing was created when the plan was refused. `closed_by`
        is asked when what is open has to be closed for that.
        """
        try:
            if plan is None or plan.provisional:
                plan = await Planner(self._clusters, self._late()).plan(self._config)
            refuse([plan])
            for planned in plan.changes.values():
                log.log(logging.WARNING if planned.why else logging.INFO, "route %s: %s", self._config.name, planned.change)
                await self._create(planned.cluster, planned.topic, planned.count)
            for (cluster, topic), groups in plan.groups.items():
                await self._make_groups(cluster, topic, groups)
            for source in plan.sources:
                await self._open_topic(source.selected, source.topic)
            letters = self._config.delivery.dead_letter
            if letters is not None:
                outbound = await self._outbound(letters.cluster, letters.topic, None)
                self.dead_letters = DeadLetters(self._config.name, outbound, f"{letters.cluster}/{letters.topic}")
            self.is_open = True
        except BaseException:
            deadline = closed_by()
            await close_by(deadline, f"closing the targets of route {self._config.name}", self.close(deadline))
            raise

    async def close(self, deadline: float | None = None) -> None:
        """Close every outbound; nothing happens when that was done."""
        outbounds, self._outbounds = self._outbounds, []
        await asyncio.gather(*(outbound.close(deadline) for _, outbound in outbounds), return_exceptions=True)

    def unplaced(self, partition: Partition) -> str | None:
        """Why a source partition cannot be delivered: a target has no place for it."""
        for opened in self._opened[partition.topic]:
            rule, count = opened.config.partitions, opened.target.outbound.partitions
            if (why := unplaced(rule, partition.name, partition.index, count)) is not None:
                return f"{opened.target.label} has no place for {partition}: {why}"
        return None

    async def warnings(self) -> list[str]:
        """What deletes messages of the source before the group reads them, or of the targets before anybody does."""
        group, letters = self._config.source.group, self._config.delivery.dead_letter
        uses = [TopicUse(self._source.name, topic, group) for topic in self._opened]
        uses += [TopicUse(one.config.cluster, one.topic) for opened in self._opened.values() for one in opened]
        if letters is not None:
            uses.append(TopicUse(letters.cluster, letters.topic))
        return await warnings_about(uses, self._clusters)

    async def look(self) -> bool:
        """Grow targets whose source grew; whether the route has to begin anew to use what there is now. Raises ClusterError."""
        anew = False
        if any(map(is_pattern, self._config.source.wanted)):
            found = {selected.topic for selected in await select_from(self._source, self._config)}
            if anew := found != self.targets.keys():
                added, gone = sorted(found - self.targets.keys()), sorted(self.targets.keys() - found)
                log.info("route %s: its topics changed: added %s, gone %s", self._config.name, added, gone)
        for topic, opened in self._opened.items():
            described = await self._source.describe(topic)
            if described is not None:
                for one in opened:
                    anew |= await self._grown(one, len(described.partitions))
        return anew

    # --- opening ------------------------------------------------------------------------------------------------------

    async def _open_topic(self, selected: Selected, topic: Topic) -> None:
        name, source = self._config.name, self._source.name
        opened = [await self._open_target(config, selected, topic) for config in self._config.targets]
        self._opened[selected.topic] = opened
        self.source_partitions += len(topic.partitions)
        self.source_names[selected.topic] = frozenset(topic.partitions)
        self.targets[selected.topic] = [one.target for one in opened]
        where = ", ".join(f"{one.target.label} ({one.target.outbound.partitions} partitions)" for one in opened)
        log.info("route %s: %s/%s (%d partitions) to %s", name, source, topic.name, len(topic.partitions), where)

    async def _open_target(self, config: TargetConfig, selected: Selected, topic: Topic) -> Opened:
        name, rule = render(config.topic, selected), config.partitions
        outbound = await self._outbound(config.cluster, name, config.options)
        label = f"{config.cluster}/{name}"
        if misplaced(rule, topic, outbound.partitions):  # the plan found a place for all: it has grown, and is not open yet
            needed = partitions_needed(rule, len(topic.partitions))
            problem = f"route {self._config.name!r}: {label} takes messages in {outbound.partitions} of its partitions so far"
            raise ClusterError(f"{problem}, and {needed} are needed", Failure.RETRY)
        target = Target(
            label,
            outbound,
            Partitioner(rule, outbound),
            guard=await loop_guard(self._clusters[config.cluster], name, self._config.delivery, self._looped),
            edit=None if config.edit is None else Edit(config.edit, selected.words),
        )
        return Opened(config, name, target)

    async def _create(self, cluster: str, topic: str, partitions: int) -> None:
        if self._clusters[cluster].capabilities.create_topics:
            await self._clusters[cluster].create(topic, partitions)

    async def _make_groups(self, cluster: str, topic: str, groups: Collection[str]) -> None:
        """Make the groups of a target before anything is written there."""
        if (maker := group_maker(self._clusters[cluster], groups)) is not None:
            for group in groups:
                await maker.create_group(topic, group)

    async def _outbound(self, cluster: str, topic: str, options: BaseModel | None) -> Outbound:
        """The outbound into a topic: one for all source topics that go there, so that its options can name a producer."""
        place: Place = (cluster, topic, options)
        for known, outbound in self._outbounds:
            if known == place:
                return outbound
        spec = outbound_spec(self._config.delivery, topic, options)
        outbound = await self._clusters[cluster].outbound(spec)
        self._outbounds.append((place, outbound))
        return outbound

    # --- growing ------------------------------------------------------------------------------------------------------

    async def _grown(self, opened: Opened, source_partitions: int) -> bool:
        """Grow a target that has become too small; whether its outbound has to be opened anew to see what there is."""
        config, cluster = opened.config, self._clusters[opened.config.cluster]
        needed = partitions_made(config, source_partitions)
        if config.create and opened.target.outbound.partitions < needed:
            await self._create(config.cluster, opened.topic, needed)
            await self._make_groups(config.cluster, opened.topic, config.subscriptions)
        if cluster.capabilities.growing_outbound:
            return False
        described = await cluster.describe(opened.topic)
        return described is not None and len(described.partitions) > opened.target.outbound.partitions
