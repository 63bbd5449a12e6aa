"""What a route would find if it were started now: its source topics, its targets, and whether they fit. Changes nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqbridge.adapter import Cluster, Topic
from mqbridge.config.options.route import Route
from mqbridge.config.options.target import Target
from mqbridge.errors import MqbridgeError
from mqbridge.gateway.cautions import TopicUse, group_maker, warnings_about
from mqbridge.gateway.topic_selection import select_from
from mqbridge.routing.partitions import advice, misplaced, partitions_made, partitions_needed
from mqbridge.routing.topics import Selected, render


@dataclass(slots=True)
class Found:
    """One source topic: its partitions, and its targets by name with what would become of them."""

    topic: str
    partitions: int
    targets: list[str]
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Survey:
    """What was found of one route; `problems` would keep it from starting."""

    topics: list[Found] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What deletes messages before they are consumed."""


async def survey(route: Route, clusters: Mapping[str, Cluster]) -> Survey:
    """Look at a route's topics in those of its clusters that are given, which are connected."""
    result = Survey()
    source = clusters.get(route.source.cluster)
    if source is None:
        result.problems.append("its source cluster cannot be reached")
        return result
    try:
        await _look(route, source, clusters, result)
    except MqbridgeError as error:
        result.problems.append(str(error))
    return result


async def _look(route: Route, source: Cluster, clusters: Mapping[str, Cluster], result: Survey) -> None:
    missing: list[str] = []
    for selected in await select_from(source, route):
        topic = await source.describe(selected.topic)
        if topic is None:
            missing.append(repr(selected.topic))
            continue
        found = Found(selected.topic, len(topic.partitions), [render(target.topic, selected) for target in route.targets])
        result.topics.append(found)
        result.warnings += await warnings_about([TopicUse(source.name, selected.topic, route.source.group)], clusters)
        for target in route.targets:
            if (cluster := clusters.get(target.cluster)) is not None:
                await _look_at_target(target, selected, topic, cluster, found, result)
    if missing:
        result.problems.append(f"cluster {source.name!r} has no topic {', '.join(missing)}")


async def _look_at_target(
    target: Target, selected: Selected, topic: Topic, cluster: Cluster, found: Found, result: Survey
) -> None:
    name, rule = render(target.topic, selected), target.partitions
    described = await cluster.describe(name)
    have = 0 if described is None else len(described.partitions)
    needed = partitions_needed(rule, len(topic.partitions))
    will_create = target.create and cluster.capabilities.create_topics
    count = max(have, partitions_made(target, len(topic.partitions))) if will_create else have
    group_maker(cluster, target.subscriptions)
    use = TopicUse(cluster.name, name, None, target.subscriptions)
    result.warnings += await warnings_about([use], {cluster.name: cluster})
    if not count:
        why = "cannot create it" if target.create else "`create` is off"
        result.problems.append(f"cluster {cluster.name!r} has no topic {name!r}, and {why}")
    elif places := misplaced(rule, topic, count):
        partition, problem = next(iter(places.items()))
        hint = advice(rule, needed, places, create=target.create)
        result.problems.append(
            f"{cluster.name}/{name} has no place for partition {partition!r} of {topic.name}: {problem}. {hint}"
        )
    elif not have:
        found.notes.append(f"{cluster.name}/{name} is created with {count} partitions")
    elif count > have:
        found.notes.append(f"{cluster.name}/{name} grows from {have} to {count} partitions")
