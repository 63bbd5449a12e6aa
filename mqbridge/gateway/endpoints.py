"""The open endpoints of a route: its source topics, and the open targets of each source topic.

The plan finds problems of topics and partitions before anything is created or consumed. `refresh` compares the endpoints with the
clusters later: it grows targets, and reports whether the route must be reopened.
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
from mqbridge.gateway.closing import close_by_deadline, no_deadline
from mqbridge.gateway.plan import Plan, Planner, outbound_spec, raise_problems
from mqbridge.gateway.retention_warnings import TopicUse, group_maker, warnings_about
from mqbridge.gateway.topic_selection import select_from
from mqbridge.message import Partition
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import Partitioner, partitions_needed, partitions_to_create, unassignable, why_unassignable
from mqbridge.routing.topics import SelectedTopic, render

log = logging.getLogger(__name__)

Looped = Callable[[int], None]
"""Callback with a number of dropped looped messages."""
OutboundKey = tuple[str, str, BaseModel | None]
"""Cluster, topic and options; there is one outbound per key."""


async def loop_guard(cluster: Cluster, topic: str, delivery: Delivery, looped: Looped) -> LoopGuard | None:
    """Make the guard that drops messages that came from this topic; None if loops are not prevented. Raises ClusterError."""
    if not delivery.loops_prevented:
        return None
    described = await cluster.describe(topic)
    names = [topic] if described is None else [topic, described.name, *described.aliases]
    return LoopGuard(cluster.name, names, delivery.max_hops, looped)


class OpenTarget:
    """An open target of one source topic, with its configuration and the name of its topic."""

    __slots__ = ("config", "target", "topic")

    def __init__(self, config: TargetConfig, topic: str, target: Target) -> None:
        self.config, self.topic, self.target = config, topic, target


class RouteEndpoints:
    """Source topics and open targets of a route."""

    def __init__(
        self,
        config: RouteConfig,
        clusters: Mapping[str, Cluster],
        looped: Looped,
        pending: Callable[[], Collection[RouteConfig]] = tuple,
    ) -> None:
        self.targets: dict[str, list[Target]] = {}
        """Open targets by source topic."""
        self.source_partitions = 0
        """Number of partitions of all source topics, when they were opened."""
        self.source_names: dict[str, frozenset[str]] = {}
        """Names of the partitions of each source topic, when they were opened."""
        self.dead_letters: DeadLetters | None = None
        self.is_open = False
        self._config, self._clusters, self._looped, self._pending = config, clusters, looped, pending
        self._source = clusters[config.source.cluster]
        self._opened: dict[str, list[OpenTarget]] = {}
        self._outbounds: list[tuple[OutboundKey, Outbound]] = []

    async def open(self, plan: Plan | None = None, close_deadline: Callable[[], float | None] = no_deadline) -> None:
        """Carry out the plan, or a new one if None: create missing target topics, and open every outbound.

        Raises ConfigError or ClusterError after closing everything that was opened; if the plan has problems, nothing was
        created. `close_deadline` is called for the deadline of this closing.
        """
        try:
            if plan is None or plan.is_provisional:
                plan = await Planner(self._clusters, self._pending()).plan(self._config)
            raise_problems([plan])
            for planned in plan.changes.values():
                log.log(logging.WARNING if planned.reason else logging.INFO, "route %s: %s", self._config.name, planned.change)
                await self._create(planned.cluster, planned.topic, planned.planned)
            for (cluster, topic), groups in plan.groups.items():
                await self._create_groups(cluster, topic, groups)
            for source in plan.sources:
                await self._open_topic(source.selected, source.topic)
            letters = self._config.delivery.dead_letter
            if letters is not None:
                outbound = await self._outbound(letters.cluster, letters.topic, None)
                self.dead_letters = DeadLetters(self._config.name, outbound, f"{letters.cluster}/{letters.topic}")
            self.is_open = True
        except BaseException:
            deadline = close_deadline()
            await close_by_deadline(deadline, f"closing the targets of route {self._config.name}", self.close(deadline))
            raise

    async def close(self, deadline: float | None = None) -> None:
        """Close every outbound; a second call does nothing."""
        outbounds, self._outbounds = self._outbounds, []
        await asyncio.gather(*(outbound.close(deadline) for _, outbound in outbounds), return_exceptions=True)

    def why_unassignable(self, partition: Partition) -> str | None:
        """Return why a target has no partition for this source partition; None if every target has one."""
        for opened in self._opened[partition.topic]:
            rule, count = opened.config.partitions, opened.target.outbound.partitions
            if (why := why_unassignable(rule, partition.name, partition.index, count)) is not None:
                return f"{opened.target.label} has no partition for {partition}: {why}"
        return None

    async def warnings(self) -> list[str]:
        """Return the retention warnings about the source topics and the target topics."""
        group, letters = self._config.source.group, self._config.delivery.dead_letter
        uses = [TopicUse(self._source.name, topic, group) for topic in self._opened]
        uses += [TopicUse(one.config.cluster, one.topic) for opened in self._opened.values() for one in opened]
        if letters is not None:
            uses.append(TopicUse(letters.cluster, letters.topic))
        return await warnings_about(uses, self._clusters)

    async def refresh(self) -> bool:
        """Grow targets whose source grew; return True if the route must be reopened. Raises ClusterError."""
        must_reopen = False
        if any(map(is_pattern, self._config.source.wanted)):
            found = {selected.topic for selected in await select_from(self._source, self._config)}
            if must_reopen := found != self.targets.keys():
                added, gone = sorted(found - self.targets.keys()), sorted(self.targets.keys() - found)
                log.info("route %s: its topics changed: added %s, gone %s", self._config.name, added, gone)
        for topic, opened in self._opened.items():
            described = await self._source.describe(topic)
            if described is not None:
                for one in opened:
                    must_reopen |= await self._grow(one, len(described.partitions))
        return must_reopen

    # --- opening ------------------------------------------------------------------------------------------------------

    async def _open_topic(self, selected: SelectedTopic, topic: Topic) -> None:
        name, source = self._config.name, self._source.name
        opened = [await self._open_target(config, selected, topic) for config in self._config.targets]
        self._opened[selected.topic] = opened
        self.source_partitions += len(topic.partitions)
        self.source_names[selected.topic] = frozenset(topic.partitions)
        self.targets[selected.topic] = [one.target for one in opened]
        where = ", ".join(f"{one.target.label} ({one.target.outbound.partitions} partitions)" for one in opened)
        log.info("route %s: %s/%s (%d partitions) to %s", name, source, topic.name, len(topic.partitions), where)

    async def _open_target(self, config: TargetConfig, selected: SelectedTopic, topic: Topic) -> OpenTarget:
        name, rule = render(config.topic, selected), config.partitions
        outbound = await self._outbound(config.cluster, name, config.options)
        label = f"{config.cluster}/{name}"
        if unassignable(rule, topic, outbound.partitions):
            # The plan found enough partitions: the topic has grown, but the outbound cannot send to the new ones yet.
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
        return OpenTarget(config, name, target)

    async def _create(self, cluster: str, topic: str, partitions: int) -> None:
        if self._clusters[cluster].capabilities.create_topics:
            await self._clusters[cluster].create(topic, partitions)

    async def _create_groups(self, cluster: str, topic: str, groups: Collection[str]) -> None:
        """Create the groups of a target topic, before any message is written to it."""
        if (maker := group_maker(self._clusters[cluster], groups)) is not None:
            for group in groups:
                await maker.create_group(topic, group)

    async def _outbound(self, cluster: str, topic: str, options: BaseModel | None) -> Outbound:
        """Return the outbound of a target topic.

        All source topics with this target share it: the options may contain a producer name, which must be unique.
        """
        wanted: OutboundKey = (cluster, topic, options)
        for key, outbound in self._outbounds:
            if key == wanted:
                return outbound
        spec = outbound_spec(self._config.delivery, topic, options)
        outbound = await self._clusters[cluster].outbound(spec)
        self._outbounds.append((wanted, outbound))
        return outbound

    # --- growing ------------------------------------------------------------------------------------------------------

    async def _grow(self, opened: OpenTarget, source_partitions: int) -> bool:
        """Grow a target that is too small; return True if its outbound must be reopened to see the new partitions."""
        config, cluster = opened.config, self._clusters[opened.config.cluster]
        needed = partitions_to_create(config, source_partitions)
        if config.create and opened.target.outbound.partitions < needed:
            await self._create(config.cluster, opened.topic, needed)
            await self._create_groups(config.cluster, opened.topic, config.subscriptions)
        if cluster.capabilities.growing_outbound:
            return False
        described = await cluster.describe(opened.topic)
        return described is not None and len(described.partitions) > opened.target.outbound.partitions
