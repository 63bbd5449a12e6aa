"""The open endpoints of a route: its source topics, and the open targets of each source topic.

The plan finds problems of topics and partitions before anything is created or consumed. `refresh` compares the endpoints with the
clusters later: it grows targets, and reports whether the route must be reopened.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster, IdentifiedCluster, ReportsConnectivity
from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.topics import Topic
from mqbridge.config.options.delivery import Delivery
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.config.options.target import Target as TargetConfig
from mqbridge.config.patterns import is_pattern
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.delivery.target import Target
from mqbridge.errors import ClusterError, Failure, MqbridgeError, is_transient
from mqbridge.message import NO_INDEX, Partition
from mqbridge.routes.closing import close_by_deadline, no_deadline
from mqbridge.routes.plan import (
    Plan,
    PlannedSource,
    Planner,
    TopicKey,
    group_maker,
    is_named,
    outbound_spec,
    raise_problems,
)
from mqbridge.routes.retention_warnings import TopicUse, warnings_about
from mqbridge.routes.source_indexes import record_partitions, why_no_index
from mqbridge.routes.topic_selection import select_source_topics
from mqbridge.routes.unprotected import describe, unprotected_targets
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.routing.partitions import (
    Partitioner,
    configured_or_needed_partitions,
    index_count,
    partitions_needed,
    unassignable_partitions,
    unassignable_reason,
)
from mqbridge.routing.topics import SelectedTopic, render_target_topic

log = logging.getLogger(__name__)

OnLooped = Callable[[int], None]
"""Called with the number of messages that were dropped because they came from their target, or made too many hops."""
OutboundKey = tuple[str, str, BaseModel | None]
"""Cluster, topic and options; there is one outbound per key."""


async def loop_guard(
    cluster: Cluster, topic: str, delivery: Delivery, on_looped: OnLooped, other_names: Collection[str] = ()
) -> LoopGuard | None:
    """Make the guard that drops messages that came from this topic; None if loops are not prevented. Raises ClusterError.

    `other_names` are further names of the cluster in the configuration.
    """
    if not delivery.loops_prevented:
        return None
    described = await cluster.describe(topic)
    names = [topic] if described is None else [topic, described.name, *described.aliases]
    identity = cluster.identity if isinstance(cluster, IdentifiedCluster) else None
    return LoopGuard(cluster.name, names, delivery.max_hops, on_looped, identity, other_names)


class Refreshed(NamedTuple):
    """What `RouteEndpoints.refresh` found.

    `must_reopen` is True if the route must be reopened, because source topics were added or removed, or an outbound cannot see
    new partitions. `failures` are the errors of topics that could not be compared or grown.
    """

    must_reopen: bool
    failures: list[MqbridgeError]


class Comparisons:
    """Comparisons of topics with their clusters, one after the other: one that fails does not keep the others from being made."""

    def __init__(self) -> None:
        self.failures: list[MqbridgeError] = []
        self._failed_clusters: set[str] = set()

    @contextmanager
    def collect_failure(self, cluster: Cluster) -> Iterator[None]:
        """Add an error of the block, which asks this cluster, to `failures`."""
        try:
            yield
        except MqbridgeError as error:
            self.failures.append(error)
            self._failed_clusters.add(cluster.name)

    def is_useless(self, cluster: Cluster) -> bool:
        """Return True if a comparison has failed and the whole cluster is unreachable: each further one would take a timeout."""
        has_outage = isinstance(cluster, ReportsConnectivity) and cluster.connectivity.unreachable_s is not None
        return cluster.name in self._failed_clusters and has_outage


class OpenTarget:
    """An open target of one source topic, with its configuration and the name of its topic."""

    __slots__ = ("config", "target", "topic")

    def __init__(self, config: TargetConfig, topic: str, target: Target) -> None:
        self.config, self.topic, self.target = config, topic, target


class RouteEndpoints:
    """Source topics and open targets of a route; after `close`, an object is not used again.

    `graph` returns the graph of the running configuration's topics, `pending_routes` the configurations of the routes that may
    still create a missing source topic.
    """

    def __init__(
        self,
        config: RouteConfig,
        clusters: Mapping[str, Cluster],
        on_looped: OnLooped,
        graph: Callable[[], TopicGraph],
        pending_routes: Callable[[], Collection[RouteConfig]] = tuple,
    ) -> None:
        self.targets: dict[str, list[Target]] = {}
        """Open targets by source topic."""
        self.source_partitions = 0
        """Number of partitions of all source topics, when they were opened."""
        self.source_partition_names: dict[str, frozenset[str]] = {}
        """Names of the partitions of each source topic, when they were opened."""
        self.dead_letters: DeadLetters | None = None
        """The open dead-letter topic; None if the route has none, or is not open yet."""
        self.unprotected: Mapping[str, str] = {}
        """Why targets are unprotected, by `CLUSTER/TOPIC`, at the last check; see `mqbridge.routes.unprotected`."""
        self.excluded: Mapping[str, str] = {}
        """Topics that match a pattern and are not read, with the reasons; see `mqbridge.config.topic_graph`."""
        self.failed_topics: dict[str, MqbridgeError] = {}
        """Topics that only a pattern selects and that cannot be read or copied, with the reasons; the others are."""
        self.is_open = False
        """True after `open` has succeeded."""
        self._config, self._clusters = config, clusters
        self._on_looped, self._graph, self._pending_routes = on_looped, graph, pending_routes
        self._source = clusters[config.source.cluster]
        self._open_targets: dict[str, list[OpenTarget]] = {}
        """Open targets by source topic, as in `targets`, each with its configuration."""
        self._outbounds: list[tuple[OutboundKey, Outbound]] = []
        """The open outbounds, one per key."""
        self._created: set[TopicKey] = set()
        """Topics that exist as planned, with their groups."""
        self._refused: set[str] = set()
        """Topics among `failed_topics` whose plan has no problem, but whose targets could not be created or opened."""

    async def open(self, plan: Plan | None = None, close_deadline: Callable[[], float | None] = no_deadline) -> None:
        """Carry out the plan: create missing target topics, grow others, and open every outbound.

        A new plan is made if the given one is None, or provisional (made before other routes created or grew its source topics).

        Raises ConfigError or ClusterError after closing everything that was opened; if the plan has problems, nothing was
        created. `close_deadline` returns the deadline (loop time) for closing after a failure.
        """
        try:
            if plan is None or plan.is_provisional:
                plan = await Planner(self._clusters, self._pending_routes(), self._graph()).plan(self._config)
            raise_problems([plan])
            self._exclude(plan.excluded)
            self.failed_topics = dict(plan.failed)
            letters = self._config.delivery.dead_letter
            if letters is not None:
                await self._create_written(plan, (letters.cluster, letters.topic))
            for source in plan.sources:
                await self._open_source(plan, source)
            if letters is not None:
                outbound = await self._get_outbound(letters.cluster, letters.topic, None)
                self.dead_letters = DeadLetters(self._config.name, outbound, f"{letters.cluster}/{letters.topic}")
            await self.check_unprotected()
            self.is_open = True
        except BaseException:
            deadline = close_deadline()
            await close_by_deadline(deadline, f"closing the targets of route {self._config.name}", self.close(deadline))
            raise

    async def close(self, deadline: float | None = None) -> None:
        """Close every outbound, and ignore errors; a second call does nothing."""
        outbounds, self._outbounds = self._outbounds, []
        await asyncio.gather(*(outbound.close(deadline) for _, outbound in outbounds), return_exceptions=True)

    def why_not_readable(self, partition: Partition) -> str | None:
        """Return why this source partition is not read: a target is unprotected, or has no partition for it; else None."""
        open_targets, letters = self._open_targets[partition.topic], self.dead_letters
        labels = [*(open_target.target.label for open_target in open_targets), *([] if letters is None else [letters.label])]
        if unprotected := {label: self.unprotected[label] for label in labels if label in self.unprotected}:
            return describe(unprotected)
        for open_target in open_targets:
            rule = open_target.config.partitions
            count = index_count(rule, open_target.target.outbound)
            if (reason := unassignable_reason(rule, partition.name, partition.index, count)) is not None:
                why = why_no_index(self._source, partition.topic, partition.name) if partition.index == NO_INDEX else ""
                return f"target {open_target.target.label} has no partition for source partition {partition}: {reason}{why}"
        return None

    async def warnings(self) -> list[str]:
        """Return the retention warnings about the source topics and the target topics."""
        group = self._config.source.group
        sources = [TopicUse(self._source.name, topic, group) for topic in self._open_targets]
        return await warnings_about([*sources, *self._target_uses()], self._clusters)

    async def check_unprotected(self) -> None:
        """Update `unprotected`. Raises ClusterError if a cluster does not answer; then it stays as it was."""
        before, self.unprotected = self.unprotected, await unprotected_targets(self._target_uses(), self._clusters)
        for label, reason in self.unprotected.items():
            if label not in before:
                text = "route %s: target %s would lose messages, so the partitions that are written there are not read: %s"
                log.error(text, self._config.name, label, reason)
        for label in before.keys() - self.unprotected.keys():
            log.info("route %s: target %s keeps its messages now", self._config.name, label)

    def _target_uses(self) -> list[TopicUse]:
        """Return the topics that the open route writes. A topic may have several targets; it is kept if one of them wants it."""
        open_targets = itertools.chain.from_iterable(self._open_targets.values())
        topics = [(each.config.cluster, each.topic, each.config.unread) for each in open_targets]
        if (letters := self._config.delivery.dead_letter) is not None:
            topics.append((letters.cluster, letters.topic, letters.unread))
        kept = {(cluster, topic) for cluster, topic, unread in topics if unread == "kept"}
        return [TopicUse(*key, may_be_deleted=key not in kept) for key in dict.fromkeys(topic[:2] for topic in topics)]

    async def refresh(self) -> Refreshed:
        """Compare the open topics with those of the clusters. Grow targets with the option `create` whose source topic grew.

        A topic that fails does not keep the others from growing.
        """
        must_reopen, comparisons = False, Comparisons()
        if any(map(is_pattern, self._config.source.configured_topics)):
            with comparisons.collect_failure(self._source):
                must_reopen = await self._selects_other_topics()
        for topic, open_targets in self._open_targets.items():
            described: Topic | None = None
            if not comparisons.is_useless(self._source):
                with comparisons.collect_failure(self._source):
                    described = await self._source.describe(topic)
            if described is None:
                continue
            record_partitions(self._source, described, ())
            for open_target in open_targets:
                cluster = self._clusters[open_target.config.cluster]
                if not comparisons.is_useless(cluster):
                    with comparisons.collect_failure(cluster):
                        must_reopen |= await self._grow(open_target, described)
        return Refreshed(must_reopen, comparisons.failures)

    async def _selects_other_topics(self) -> bool:
        """Return True if the patterns select other topics than the open ones, and those that were added could be opened."""
        selection = await select_source_topics(self._source, self._config, self._graph())
        self._exclude(selection.excluded)
        added = await self._openable((selection.names | selection.refused.keys()) - self.targets.keys())
        removed = self.targets.keys() - selection.names
        if not added and not removed:
            return False
        changes = (", ".join(sorted(topics)) or "none" for topics in (added, removed))
        log.info("route %s: the matching source topics changed: added: %s; removed: %s", self._config.name, *changes)
        return True

    def _exclude(self, excluded: Mapping[str, str]) -> None:
        """Update `excluded`, and log each topic that was not excluded before."""
        for topic, reason in excluded.items():
            if topic not in self.excluded:
                log.info("route %s: topic %s/%s is not read: %s", self._config.name, self._source.name, topic, reason)
        self.excluded = excluded

    async def _openable(self, topics: Collection[str]) -> set[str]:
        """Return which of these topics, which are not open, could be opened now; update `failed_topics` with the others.

        So a topic that cannot be copied does not reopen the route, and one that failed earlier is tried again.
        """
        if not topics:
            self.failed_topics = {}
            return set()
        plan = await Planner(self._clusters, self._pending_routes(), self._graph()).plan(self._config, only=topics)
        raise_problems([plan])
        failed = dict(plan.failed)
        for source in plan.sources:
            topic = source.selected.topic
            if topic in self._refused:
                try:
                    await self._try_targets(plan, source)
                except MqbridgeError as error:
                    if is_transient(error):
                        raise
                    failed[topic] = error
        self.failed_topics = failed
        return {source.selected.topic for source in plan.sources} - failed.keys()

    async def _try_targets(self, plan: Plan, source: PlannedSource) -> None:
        """Create the targets of a source topic, open each once, and close it again. Raises ConfigError or ClusterError."""
        for config, planned in zip(self._config.targets, source.targets, strict=True):
            await self._create_written(plan, (planned.cluster, planned.topic))
            spec = outbound_spec(self._config.delivery, planned.topic, config.options)
            await (await self._clusters[planned.cluster].outbound(spec)).close()

    # --- opening ------------------------------------------------------------------------------------------------------

    async def _open_source(self, plan: Plan, source: PlannedSource) -> None:
        """Create and open the targets of a source topic. A topic that only a pattern selects fails alone.

        Raises a transient failure, and any failure of a topic that the file names, or of the last topic if all fail.
        """
        topic = source.selected.topic
        try:
            for planned in source.targets:
                await self._create_written(plan, (planned.cluster, planned.topic))
            await self._open_topic(source.selected, source.topic)
        except MqbridgeError as error:
            is_last = source is plan.sources[-1] and not self._open_targets
            if is_transient(error) or is_named(self._config, topic) or is_last:
                raise
            self.failed_topics[topic] = error
            self._refused.add(topic)

    async def _create_written(self, plan: Plan, key: TopicKey) -> None:
        """Create or grow a topic that the route writes, and create its groups, as planned; do nothing the second time."""
        if key in self._created:
            return
        if (planned := plan.changes.get(key)) is not None:
            # More partitions than in the source may be a mistake in the partition table of the target.
            level = logging.WARNING if planned.reason_for_more else logging.INFO
            log.log(level, "route %s prepares its targets: %s", self._config.name, planned.change)
            await self._create_or_grow(planned.cluster, planned.topic, planned.planned_partitions)
        await self._create_groups(*key, plan.groups.get(key, ()))
        self._created.add(key)

    async def _open_topic(self, selected: SelectedTopic, topic: Topic) -> None:
        """Open every target of a source topic."""
        name, source = self._config.name, self._source.name
        open_targets = [await self._open_target(config, selected, topic) for config in self._config.targets]
        targets = [open_target.target for open_target in open_targets]
        record_partitions(self._source, topic, (config.partitions for config in self._config.targets))
        self._open_targets[selected.topic] = open_targets
        self.source_partition_names[selected.topic] = frozenset(topic.index_by_partition)
        self.source_partitions += len(topic.index_by_partition)
        self.targets[selected.topic] = targets
        labels = ", ".join(f"{target.label} ({target.outbound.partitions} partitions)" for target in targets)
        text = "route %s: opened the targets of source topic %s/%s (%d partitions): %s"
        log.info(text, name, source, topic.name, len(topic.partitions), labels)

    async def _open_target(self, config: TargetConfig, selected: SelectedTopic, topic: Topic) -> OpenTarget:
        """Open one target of a source topic. Raises ClusterError (RETRY) while it accepts messages in too few partitions."""
        name, rule = render_target_topic(config.topic, selected), config.partitions
        outbound = await self._get_outbound(config.cluster, name, config.options)
        label = f"{config.cluster}/{name}"
        if unassignable_partitions(rule, topic, count := index_count(rule, outbound)):
            # `open` has grown the target topic as planned, but the outbound cannot send to the new partitions yet.
            needed = partitions_needed(rule, topic)
            problem = f"route {self._config.name!r}: target {label} accepts messages in only {count} partitions so far"
            raise ClusterError(f"{problem}, but the route needs {needed}", Failure.RETRY)
        target = Target(
            label,
            outbound,
            Partitioner(rule, outbound),
            guard=await loop_guard(
                self._clusters[config.cluster],
                name,
                self._config.delivery,
                self._on_looped,
                self._graph().cluster_names(config.cluster),
            ),
            edit=None if config.edit is None else Edit(config.edit, selected.words),
        )
        return OpenTarget(config, name, target)

    async def _create_or_grow(self, cluster: str, topic: str, partitions: int) -> None:
        """Create a target topic, or grow it to this number of partitions; do nothing if the cluster cannot create topics."""
        if self._clusters[cluster].capabilities.create_topics:
            await self._clusters[cluster].create(topic, partitions)

    async def _create_groups(self, cluster: str, topic: str, groups: Collection[str]) -> None:
        """Create the `subscriptions` of a target, before any message is written. Raises ConfigError if the cluster cannot."""
        if (maker := group_maker(self._clusters[cluster], groups)) is not None:  # None: `groups` is empty
            for group in groups:
                await maker.create_group(topic, group)

    async def _get_outbound(self, cluster: str, topic: str, options: BaseModel | None) -> Outbound:
        """Return the outbound of a target topic, opened on first use.

        All source topics with this target share it: the options may contain a producer name, which must be unique.
        """
        outbound_key: OutboundKey = (cluster, topic, options)
        for key, outbound in self._outbounds:  # not a dict: the options cannot be hashed
            if key == outbound_key:
                return outbound
        spec = outbound_spec(self._config.delivery, topic, options)
        outbound = await self._clusters[cluster].outbound(spec)
        self._outbounds.append((outbound_key, outbound))
        return outbound

    # --- growing ------------------------------------------------------------------------------------------------------

    async def _grow(self, open_target: OpenTarget, source: Topic) -> bool:
        """Grow a target with the option `create` that has too few partitions.

        Returns True if the route must be reopened, because only a new outbound sees the target's new partitions.
        """
        config, cluster = open_target.config, self._clusters[open_target.config.cluster]
        wanted_partitions = configured_or_needed_partitions(config, source)
        if config.create and open_target.target.outbound.partitions < wanted_partitions:
            await self._create_or_grow(config.cluster, open_target.topic, wanted_partitions)
            await self._create_groups(config.cluster, open_target.topic, config.subscriptions)
        if cluster.capabilities.growing_outbound:
            return False
        described = await cluster.describe(open_target.topic)
        return described is not None and len(described.partitions) > open_target.target.outbound.partitions
