"""Plans of routes: the topics and groups that a start now would create or grow, and the problems that prevent the start.

Planning changes nothing in the clusters. `run` checks the plans of all routes before it creates anything, and `check --connect`
shows the same plans, so both report the same problems.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import BaseModel

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.known_brokers import HasBrokers
from mqbridge.adapter.operations import GroupMaker
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.topics import Topic
from mqbridge.config.options.delivery import DeadLetter, Delivery
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.config.options.target import Target as TargetConfig
from mqbridge.config.problems import ConfigErrors
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.errors import ClusterError, ConfigError, Failure, MqbridgeError, NotPermitted, can_be_permitted, is_transient
from mqbridge.routes.pending_topics import creator_of, not_created_yet_error
from mqbridge.routes.retention_warnings import TopicUse
from mqbridge.routes.source_indexes import index_problem
from mqbridge.routes.topic_selection import select_source_topics
from mqbridge.routing.partitions import (
    configured_or_needed_partitions,
    partitions_needed,
    target_partitions_hint,
    unassignable_partitions,
)
from mqbridge.routing.topics import SelectedTopic, render_target_topic

TopicKey = tuple[str, str]
"""Cluster and topic."""
MAX_SHOWN_FAILURES = 10
"""Maximum number of failed topics that an error shows, if all topics of a route fail."""


@dataclass(slots=True)
class PlannedTopic:
    """A topic that the route writes, with its numbers of partitions now and as planned."""

    cluster: str
    topic: str
    existing_partitions: int
    """Number of existing partitions; 0 if the topic does not exist."""
    planned_partitions: int
    """Planned number of partitions; 0 if the topic does not exist and is not created."""
    reason_for_more: str = ""
    """Appended to `change`: why the topic gets more partitions than its source topic has; empty if it does not."""

    @property
    def change(self) -> str:
        """The planned change as a text; empty if there is none."""
        if self.planned_partitions == self.existing_partitions:
            return ""
        verb = f"grows from {self.existing_partitions} to" if self.existing_partitions else "is created with"
        return f"topic {self.cluster}/{self.topic} {verb} {self.planned_partitions} partitions{self.reason_for_more}"


@dataclass(slots=True)
class PlannedSource:
    """A source topic: its name and template words (`selected`), its partitions (`topic`), and its targets in configured order."""

    selected: SelectedTopic
    topic: Topic
    targets: list[PlannedTopic] = field(default_factory=list)


@dataclass(slots=True)
class Plan:
    """The plan of one route; it cannot start while there are `problems`."""

    route: RouteConfig
    sources: list[PlannedSource] = field(default_factory=list)
    changes: dict[TopicKey, PlannedTopic] = field(default_factory=dict)
    """Topics to create or grow, without those for which the plan of an earlier route already suffices."""
    groups: dict[TopicKey, tuple[str, ...]] = field(default_factory=dict)
    """Groups that each target topic must have; missing ones are created."""
    kept: set[TopicKey] = field(default_factory=set)
    """Target topics whose unread messages must not be deleted: those with a target without `unread: may_be_deleted`."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Source topics that match a pattern and are left out, with the reasons; see `mqbridge.config.topic_graph`."""
    failed: dict[str, MqbridgeError] = field(default_factory=dict)
    """Topics that only a pattern selects and that cannot be read or copied until a person changes something; the others can."""
    problems: list[MqbridgeError] = field(default_factory=list)
    is_provisional: bool = False
    """True if the plan depends on topics that an earlier route creates or grows: it must be made again after that."""

    @property
    def change_notes(self) -> list[str]:
        """Texts about the topics to create or grow."""
        return [planned.change for planned in self.changes.values()]

    @property
    def topic_uses(self) -> list[TopicUse]:
        """The topics that the route reads and writes, for the checks of their retention."""
        source = self.route.source
        return [TopicUse(source.cluster, planned.selected.topic, source.group) for planned in self.sources] + self.target_uses

    @property
    def target_uses(self) -> list[TopicUse]:
        """The topics that the route writes."""
        dead_letter = self.route.delivery.dead_letter
        written = dict.fromkeys((target.cluster, target.topic) for planned in self.sources for target in planned.targets)
        if dead_letter is not None:
            written[dead_letter.cluster, dead_letter.topic] = None
        return [TopicUse(*key, None, self.groups.get(key, ()), key not in self.kept) for key in written]


def raise_problems(plans: Sequence[Plan]) -> None:
    """Raise the problems of these plans, if any, as one ConfigError or ClusterError whose text has all of them.

    If some problems need a change by a person, the transient ones are left out. The error is NotPermitted if all problems are.
    """
    problems = [problem for plan in plans for problem in plan.problems]
    if permanent := [problem for problem in problems if not is_transient(problem)]:
        problems = permanent
    if len(problems) == 1:
        raise problems[0]
    if problems and all(isinstance(problem, ConfigError) for problem in problems):
        raise ConfigErrors([problem for problem in problems if isinstance(problem, ConfigError)])
    text = "\n".join(map(str, problems))
    if permanent and isinstance(first := permanent[0], NotPermitted) and all(map(can_be_permitted, permanent)):
        raise NotPermitted(text, first.code, first.failure)
    if problems:
        raise ClusterError(text, Failure.FATAL if permanent else Failure.RETRY)


def is_named(route: RouteConfig, topic: str) -> bool:
    """Return True if the file names this source topic of the route; False if only a pattern selects it."""
    return topic in route.source.configured_topics


def outbound_spec(delivery: Delivery, topic: str, options: BaseModel | None) -> OutboundSpec:
    """Return the specification of an outbound for these delivery options."""
    return OutboundSpec(
        topic=topic,
        ordered=delivery.order == "partition",
        stamp_origin=delivery.stamp_origin,
        max_elapsed_s=delivery.retry.max_elapsed,
        options=options,
    )


def group_maker(cluster: Cluster, groups: Collection[str]) -> GroupMaker | None:
    """Return the operations by which `cluster` creates groups, for which it then keeps messages; None if `groups` is empty.

    Raises ConfigError or ClusterError if the cluster cannot create groups.
    """
    if not groups:
        return None
    operations = cluster.operations
    if isinstance(operations, GroupMaker):
        operations.check_create_group()
        return operations
    raise ConfigError(
        f"cluster {cluster.name!r} keeps messages with or without subscriptions: `create.subscriptions` has no effect there",
        hint="Remove `subscriptions` from `create`; how long messages are kept is a setting of the cluster",
    )


class Planner:
    """Plans routes in sequence; each plan takes account of the topics that earlier routes create.

    `clusters` are the connected ones; any other cluster is a transient problem of the routes that use it. `pending_routes` have
    not opened their targets yet: they may still create a missing topic. `graph` contains all routes of the configuration, so that
    no route reads what it writes; None: each route is planned as if it were the only one.
    """

    def __init__(
        self,
        clusters: Mapping[str, Cluster],
        pending_routes: Iterable[RouteConfig] = (),
        graph: TopicGraph | None = None,
    ) -> None:
        self._clusters, self._graph = clusters, graph
        self._pending_routes = list(pending_routes)
        self._written_topics: dict[TopicKey, PlannedTopic] = {}
        """All topics that the routes planned so far write."""

    async def plan(self, route: RouteConfig, only: Collection[str] | None = None) -> Plan:
        """Make the plan of a route, or of these source topics only. Expected failures are not raised but listed in `problems`.

        If all topics of the route fail one by one, they are `problems` too.
        """
        plan = Plan(route)
        topics_before = {key: replace(planned) for key, planned in self._written_topics.items()}  # copies: planning changes them
        await self._plan_route(plan, route, only)
        if only is None and plan.failed and not plan.sources and not plan.problems:
            plan.problems, plan.failed = list(plan.failed.values())[:MAX_SHOWN_FAILURES], {}
        if plan.problems and all(map(can_be_permitted, plan.problems)):
            self._pending_routes.append(route)
            for key, planned in plan.changes.items():  # the route does not start now: later routes must not rely on its topics
                self._written_topics[key] = topics_before.get(
                    key, PlannedTopic(*key, planned.existing_partitions, planned.existing_partitions)
                )
        return plan

    async def _plan_route(self, plan: Plan, route: RouteConfig, only: Collection[str] | None) -> None:
        """Plan the sources, the targets and the dead-letter topic of a route, and check its group."""
        for name in sorted(route.clusters - self._clusters.keys()):
            # Transient (the default of ClusterError): a later attempt may reach the cluster.
            plan.problems.append(ClusterError(f"route {route.name!r}: cluster {name!r} cannot be reached"))
        source = self._clusters.get(route.source.cluster)
        if source is None:  # already in `problems`
            return
        try:
            await self._plan_sources(plan, source, only)
            dead_letter = route.delivery.dead_letter
            if dead_letter is not None and dead_letter.cluster in self._clusters:
                required = PlannedTopic(dead_letter.cluster, dead_letter.topic, 0, planned_partitions=dead_letter.partitions)
                self._plan_groups(plan, required, dead_letter)
                await self._plan_written_topic(plan, required, options=None, create=bool(dead_letter.create))
            await self._check_group(plan, source)
        except MqbridgeError as error:
            plan.problems.append(error)

    # --- sources ------------------------------------------------------------------------------------------------------

    async def _plan_sources(self, plan: Plan, source: Cluster, only: Collection[str] | None) -> None:
        """Select the source topics, and plan the targets of each."""
        missing: list[str] = []
        planned_topics = [topic for cluster, topic in self._written_topics if cluster == source.name]
        graph = TopicGraph([plan.route], {}) if self._graph is None else self._graph
        selection = await select_source_topics(source, plan.route, graph, planned_topics, self._pending_routes)
        plan.excluded = selection.excluded
        for topic, refusal in selection.refused.items():
            self._fail(plan, topic, ConfigError(refusal.problem, hint=refusal.hint))
        for selected in selection.topics:
            if only is not None and selected.topic not in only:
                continue
            try:
                await self._plan_source(plan, source, selected, missing)
            except MqbridgeError as error:
                if is_transient(error):
                    raise
                self._fail(plan, selected.topic, error)
        if missing:
            is_single = len(missing) == 1
            plan.problems.append(
                ClusterError(
                    f"route {plan.route.name!r}: the topic{'' if is_single else 's'} {', '.join(map(repr, missing))} "
                    f"do{'es' if is_single else ''} not exist in cluster {source.name!r}",
                    Failure.FATAL,
                )
            )

    async def _plan_source(self, plan: Plan, source: Cluster, selected: SelectedTopic, missing: list[str]) -> None:
        """Plan the targets of a source topic; a topic that the file names is added to `missing` if it does not exist.

        Raises ClusterError or ConfigError.
        """
        topic = await self._find_source(plan, source, selected, missing)
        if topic is None:
            return
        part = Plan(plan.route, is_provisional=plan.is_provisional)
        planned = PlannedSource(selected, topic)
        before: dict[TopicKey, PlannedTopic | None] = {}
        try:
            for target in plan.route.targets:
                if target.cluster in self._clusters:
                    key = target.cluster, render_target_topic(target.topic, selected)
                    before.setdefault(key, replace(self._written_topics[key]) if key in self._written_topics else None)
                    planned.targets.append(await self._plan_target(part, target, planned))
            permanent = next((problem for problem in part.problems if not is_transient(problem)), None)
            if permanent is not None and not is_named(plan.route, selected.topic):
                raise permanent
        except MqbridgeError:
            for key, written in before.items():  # nothing is written there because of this topic
                if written is None:
                    self._written_topics.pop(key, None)
                else:
                    planned_now = self._written_topics[key]  # may also be in `changes`
                    planned_now.planned_partitions = written.planned_partitions
                    planned_now.reason_for_more = written.reason_for_more
            raise
        plan.sources.append(planned)
        plan.changes |= part.changes
        plan.groups |= part.groups
        plan.kept |= part.kept
        plan.problems += part.problems

    async def _find_source(self, plan: Plan, source: Cluster, selected: SelectedTopic, missing: list[str]) -> Topic | None:
        """Return a source topic; None if it is in `missing` now, or if `plan.problems` says why it cannot be read yet.

        Raises ClusterError or ConfigError.
        """
        topic = await self._describe_source(plan, source, selected.topic)
        if topic is None and (creator := creator_of(selected.topic, source.name, self._pending_routes)) is not None:
            plan.problems.append(not_created_yet_error(plan.route, source.name, selected.topic, creator))
            return None
        if topic is None and (reason := await _why_maybe_there(source, selected.topic)) is not None:
            text = f"route {plan.route.name!r}: the topic {selected.topic!r} is not in cluster {source.name!r} now: {reason}"
            plan.problems.append(ClusterError(text, Failure.RETRY))
            return None
        if topic is None:
            if is_named(plan.route, selected.topic):
                missing.append(selected.topic)
                return None
            text = f"route {plan.route.name!r}: the topic {selected.topic!r} of cluster {source.name!r} is listed, but not found"
            raise ClusterError(text, Failure.FATAL)
        if topic.unreadable is not None:  # by an operator's decision, which may change
            text = f"route {plan.route.name!r}: the source topic of cluster {source.name!r} cannot be read: {topic.unreadable}"
            plan.problems.append(ClusterError(text, Failure.RETRY))
            return None
        if not topic.partitions:
            problem = (
                f"the topic {selected.topic!r} of cluster {source.name!r} has no partition that its brokers let consumers read"
            )
            raise NotPermitted(f"route {plan.route.name!r}: {problem}: permit reading", 0, Failure.FATAL)
        return topic

    def _fail(self, plan: Plan, topic: str, error: MqbridgeError) -> None:
        """Record a permanent failure of one source topic. It is a problem of the route if the file names the topic."""
        if is_named(plan.route, topic):
            plan.problems.append(error)
        else:
            plan.failed[topic] = error

    async def _describe_source(self, plan: Plan, source: Cluster, name: str) -> Topic | None:
        """Return a source topic, as planned if an earlier route will create it; None if it does not exist.

        If an earlier route will create or grow it, the plan becomes provisional.
        """
        topic = await source.describe(name)
        planned = self._written_topics.get((source.name, name))
        if planned is None or not planned.change:
            return topic
        plan.is_provisional = True
        if topic is not None:
            return topic
        return Topic(name, tuple(map(str, range(planned.planned_partitions))))  # the numbers stand for the future names

    async def _check_group(self, plan: Plan, source: Cluster) -> None:
        """Check that the group can be joined, if the plan has no problems so far and waits for no other route.

        If it cannot, topics that only a pattern selects are checked one by one.
        """
        topics = [planned.selected.topic for planned in plan.sources]
        if not topics or plan.is_provisional or plan.problems:
            return
        try:
            await self._check_inbound(plan.route, source, topics)
        except MqbridgeError as error:
            if is_transient(error) or all(is_named(plan.route, topic) for topic in topics):
                raise
            for topic in topics:
                try:
                    await self._check_inbound(plan.route, source, [topic])
                except MqbridgeError as failure:
                    if is_transient(failure) or is_named(plan.route, topic):
                        raise
                    plan.failed[topic] = failure
            if len(topics) > 1 and not plan.failed.keys() & set(topics):  # it is not about single topics
                raise
            plan.sources = [planned for planned in plan.sources if planned.selected.topic not in plan.failed]
            written = {(target.cluster, target.topic) for planned in plan.sources for target in planned.targets}
            if (letters := plan.route.delivery.dead_letter) is not None:
                written.add((letters.cluster, letters.topic))
            plan.changes = {key: change for key, change in plan.changes.items() if key in written}

    async def _check_inbound(self, route: RouteConfig, source: Cluster, topics: Sequence[str]) -> None:
        config = route.source
        await source.check_inbound(
            InboundSpec(tuple(topics), config.group, start=config.start, msg_types=config.msg_types, options=config.options)
        )

    # --- targets ------------------------------------------------------------------------------------------------------

    async def _plan_target(self, plan: Plan, target: TargetConfig, source: PlannedSource) -> PlannedTopic:
        """Plan the target topic of a source topic."""
        rule, partitions = target.partitions, len(source.topic.partitions)
        needed = partitions_needed(rule, source.topic)  # `to_create` may be fewer: `create.partitions` overrides it
        to_create = configured_or_needed_partitions(target, source.topic)
        cluster = self._clusters[plan.route.source.cluster]
        problem = None if plan.is_provisional else index_problem(plan.route.name, cluster, source.topic, rule)
        if problem is not None:
            plan.problems.append(problem)
        # With `create.partitions` the number was chosen on purpose, so no reason is needed.
        reason = f", {_reason_for_more(to_create, partitions)}" if to_create > partitions and target.create is True else ""
        required = PlannedTopic(
            cluster=target.cluster,
            topic=render_target_topic(target.topic, source.selected),
            existing_partitions=0,
            planned_partitions=to_create,
            reason_for_more=reason,
        )
        self._plan_groups(plan, required, target)
        before = len(plan.problems)
        planned = await self._plan_written_topic(plan, required, target.options, create=bool(target.create), source=source)
        # While it cannot be written, its number of partitions may be too low for that reason: a broker is down.
        count = 0 if any(map(is_transient, plan.problems[before:])) else planned.planned_partitions
        if count and problem is None and (reasons := unassignable_partitions(rule, source.topic, count)):
            plan.problems.append(no_partition_error(plan.route, target, planned.topic, source.selected.topic, reasons, needed))
        return planned

    def _plan_groups(self, plan: Plan, required: PlannedTopic, written: TargetConfig | DeadLetter) -> None:
        """Plan the groups of a topic that the route writes. Raises ConfigError or ClusterError if they cannot be created."""
        key = (required.cluster, required.topic)
        group_maker(self._clusters[required.cluster], written.subscriptions)
        if written.subscriptions:
            plan.groups[key] = written.subscriptions
        if written.unread == "kept":
            plan.kept.add(key)

    async def _plan_written_topic(
        self,
        plan: Plan,
        required: PlannedTopic,
        options: BaseModel | None,
        *,
        create: bool,
        source: PlannedSource | None = None,
    ) -> PlannedTopic:
        """Plan a topic that the route writes, and return what is planned for it so far, by this route and earlier ones.

        `required` is the topic as this route needs it, for messages of `source`, or for dead letters. Failures to create or
        write it become problems of the plan.
        """
        cluster = self._clusters[required.cluster]
        key = (required.cluster, required.topic)
        needed = required.planned_partitions
        planned = self._written_topics.get(key)
        if planned is None:
            described = await cluster.describe(required.topic)
            existing_partitions = 0 if described is None else len(described.partitions)
            planned = self._written_topics[key] = PlannedTopic(*key, existing_partitions, existing_partitions)
        try:
            # A cluster that cannot create topics cannot grow them either; for a missing topic, its `check_create` raises.
            can_create = cluster.capabilities.create_topics or not planned.planned_partitions
            if not planned.planned_partitions:
                await self._check_absence(plan, cluster, required.topic, source, create=create)
            if planned.planned_partitions < needed and create and can_create:
                await cluster.check_create(required.topic, needed)
                planned.planned_partitions, planned.reason_for_more = needed, required.reason_for_more
                plan.changes[key] = planned
            elif not planned.planned_partitions:
                raise ClusterError(f"`create` is off; switch it on, or create topic {required.topic!r}", Failure.FATAL)
            if planned.existing_partitions:
                await cluster.check_outbound(outbound_spec(plan.route.delivery, required.topic, options))
        except MqbridgeError as error:
            plan.problems.append(_unwritable_error(plan.route, planned, error))
        return planned

    async def _check_absence(
        self, plan: Plan, cluster: Cluster, topic: str, source: PlannedSource | None, *, create: bool
    ) -> None:
        """Raise ClusterError (RETRY) if a target topic that the servers do not list may exist at a broker that is down.

        With `create` and known brokers, `check_create` finds that out. If nothing is known about them, the topic is created:
        otherwise nothing could begin. But a group that has positions has written to a target before.
        """
        if not isinstance(cluster, HasBrokers):
            return
        if create and (
            cluster.known_brokers.is_known_from_before() or source is None or not await self._has_positions(plan, source)
        ):
            return
        if (reason := await cluster.why_maybe_there(topic)) is not None:
            before = f"group {plan.route.source.group!r} has read messages before, so the topic may exist: " if create else ""
            raise ClusterError(f"{before}{reason}", Failure.RETRY)

    async def _has_positions(self, plan: Plan, source: PlannedSource) -> bool:
        """Return True if the group has positions in the source topic, False also if this cluster can never tell.

        Raises ClusterError (RETRY) if it cannot tell now, for example because a broker is down.
        """
        try:
            return bool(await self._clusters[plan.route.source.cluster].committed(source.selected.topic, plan.route.source.group))
        except MqbridgeError as error:
            if is_transient(error):
                raise
            return False


async def _why_maybe_there(cluster: Cluster, topic: str) -> str | None:
    """Return why a topic that the cluster does not list may exist; None if it does not."""
    return await cluster.why_maybe_there(topic) if isinstance(cluster, HasBrokers) else None


def _reason_for_more(to_create: int, partitions: int) -> str:
    """Return the reason why a target topic gets more partitions than its source topic has."""
    return f"because the table of `partitions` contains partition {to_create - 1} (the source topic has {partitions} partitions)"


def _unwritable_error(route: RouteConfig, planned: PlannedTopic, error: MqbridgeError) -> MqbridgeError:
    label = f"{planned.cluster}/{planned.topic}"
    problem = (
        f"the topic {label} cannot be written"
        if planned.existing_partitions
        else f"the topic {label} does not exist and cannot be created"
    )
    text = f"route {route.name!r}: {problem}: {error}"
    if isinstance(error, NotPermitted):
        return NotPermitted(text, error.code, error.failure)
    return ClusterError(text, error.failure) if isinstance(error, ClusterError) else ConfigError(text)


def no_partition_error(
    route: RouteConfig, target: TargetConfig, topic: str, source: str, reasons: Mapping[str, str], needed: int
) -> ConfigError:
    """Make the error for a target that has no partition for some source partitions; `reasons` are by source partition name."""
    rule: PartitionRule = target.partitions
    partition, why = next(iter(reasons.items()))
    return ConfigError(
        f"route {route.name!r}: target {target.cluster}/{topic} has no partition for partition {partition!r} of source "
        f"{route.source.cluster}/{source}: {why}",
        hint=target_partitions_hint(rule, needed, reasons, create=target.create),
    )
