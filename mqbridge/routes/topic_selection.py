"""Selects the source topics of a route from the topics that exist in its cluster."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.known_brokers import HasBrokers
from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.config.patterns import is_pattern
from mqbridge.config.topic_graph import Refusal, TopicGraph
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.routes.pending_topics import creator_of, not_created_yet_error
from mqbridge.routing.topics import SelectedTopic, select_topics

MAX_EXAMPLES = 3
"""Maximum number of topics that an error names as examples."""


@dataclass(frozen=True, slots=True)
class SourceSelection:
    """The source topics of a route, and the topics that it must not read; see `mqbridge.config.topic_graph`."""

    topics: list[SelectedTopic]
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Topics that match a pattern and are left out, with the reasons."""
    refused: Mapping[str, Refusal] = field(default_factory=dict)
    """Topics that are left out, and whose selection is a mistake in the configuration."""

    @property
    def names(self) -> frozenset[str]:
        """Names of the selected topics."""
        return frozenset(selected.topic for selected in self.topics)


async def select_source_topics(
    source: Cluster,
    route: RouteConfig,
    graph: TopicGraph,
    planned_topics: Sequence[str] = (),
    pending_routes: Collection[RouteConfig] = (),
) -> SourceSelection:
    """Return the topics that the route names, even if they do not exist, and the existing ones that match its patterns.

    `planned_topics`, which earlier routes will create, count as existing. `pending_routes` are the routes that are not open
    yet. Raises ConfigError if no topic matches, if more topics match than one group may read, or if there is a pattern and the
    cluster cannot list its topics. Raises ClusterError (RETRY) if no topic matches yet and a pending route may create one, or a
    broker that is down may have one.
    """
    names_and_patterns = route.source.configured_topics
    existing: list[str] = []
    if any(map(is_pattern, names_and_patterns)):
        if not source.capabilities.list_topics:
            raise ConfigError(
                f"route {route.name!r} selects topics by a pattern, but cluster {source.name!r} cannot list its topics",
                hint="Give the cluster its admin_url, or name the topics",
            )
        existing = sorted({*await source.topics(), *planned_topics})
    matching = select_topics(names_and_patterns, existing)
    judgement = graph.judge(route, [selected.topic for selected in matching])
    left_out = judgement.excluded.keys() | judgement.refused.keys()
    selected = [each for each in matching if each.topic not in left_out]
    if not selected and not judgement.refused:
        for pattern in names_and_patterns:
            if (creator := creator_of(pattern, source.name, pending_routes)) is not None:
                raise not_created_yet_error(route, source.name, pattern, creator)
        if isinstance(source, HasBrokers) and (why := await source.why_maybe_there(None)) is not None:
            text = f"route {route.name!r}: no topic of cluster {source.name!r} matches {', '.join(names_and_patterns)} now: {why}"
            raise ClusterError(text, Failure.RETRY)
        if judgement.excluded:
            topic, reason = next(iter(judgement.excluded.items()))
            raise ConfigError(
                f"route {route.name!r}: cluster {source.name!r} has no topic that it may read and that matches "
                f"{', '.join(names_and_patterns)}",
                hint=f"It does not read topic {topic!r}: {reason}",
            )
        raise ConfigError(
            f"route {route.name!r}: no topic of cluster {source.name!r} matches {', '.join(names_and_patterns)}",
            hint="A pattern must match a whole topic name; existing topics are, for example, "
            + _similar_names(names_and_patterns, existing)
            if existing
            else "The cluster has no topics at all",
        )
    max_topics = source.capabilities.group_topics
    if max_topics is not None and len(selected) > max_topics:
        middle_topic = selected[len(selected) // 2].topic
        raise ConfigError(
            f"route {route.name!r} selects {len(selected):,} topics, "
            f"but a group of {source.name!r} may read at most {max_topics:,}",
            hint="Split it into several routes, each with a part of the topics and its own group; "
            f"half of them sort before {middle_topic}",
        )
    return SourceSelection(selected, judgement.excluded, judgement.refused)


def _similar_names(names_and_patterns: Sequence[str], existing: Sequence[str]) -> str:
    """Return examples of existing names: those most similar to the names and patterns, however distant."""
    close = [
        name
        for name_or_pattern in names_and_patterns
        for name in get_close_matches(name_or_pattern, existing, n=MAX_EXAMPLES, cutoff=0.0)
    ]
    return ", ".join(dict.fromkeys(close[:MAX_EXAMPLES]))
