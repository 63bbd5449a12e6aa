"""The source topics of a route, as its cluster has them now."""

from collections.abc import Collection, Sequence
from difflib import get_close_matches

from mqbridge.adapter.cluster import Cluster
from mqbridge.config.options.route import Route
from mqbridge.config.patterns import is_pattern
from mqbridge.errors import ClusterError, ConfigError
from mqbridge.gateway.late import maker_of
from mqbridge.routing.topics import Selected, select

EXAMPLES = 3
"""Topics that an error names."""


async def select_from(source: Cluster, route: Route, to_come: Sequence[str] = (), late: Collection[Route] = ()) -> list[Selected]:
    """The topics that the route takes; those `to_come` count as there.

    Raises ConfigError when there is none, or more than the system lets one group read; ClusterError when there is none yet, as a
    route that is `late` may make one.
    """
    wanted = route.source.wanted
    existing: list[str] = []
    if any(map(is_pattern, wanted)):
        if not source.capabilities.list_topics:
            raise ConfigError(
                f"route {route.name!r} takes topics by a pattern, but cluster {source.name!r} cannot list its topics",
                hint="Give the cluster its admin_url, or name the topics",
            )
        existing = sorted({*await source.topics(), *to_come})
    chosen = select(wanted, existing)
    if not chosen:
        for pattern in wanted:
            if (maker := maker_of(pattern, source.name, late)) is not None:
                raise not_yet(route, source.name, pattern, maker)
        raise ConfigError(
            f"route {route.name!r}: no topic of cluster {source.name!r} matches {', '.join(wanted)}",
            hint=f"A pattern matches whole names, like {_some(wanted, existing)}" if existing else "It has no topics at all",
        )
    most = source.capabilities.group_topics
    if most is not None and len(chosen) > most:
        half = chosen[len(chosen) // 2].topic
        raise ConfigError(
            f"route {route.name!r} takes {len(chosen):,} topics, but a group of {source.name!r} may read {most:,} at most",
            hint=f"Make several routes of it, each with a part of the topics and a group of its own; half come before {half}",
        )
    return chosen


def not_yet(route: Route, cluster: str, topic: str, maker: str) -> ClusterError:
    """A topic is missing that another route is going to make."""
    return ClusterError(
        f"route {route.name!r}: the topic {topic!r} does not exist in cluster {cluster!r} yet: route {maker!r}, which makes it, "
        "is not open"
    )


def _some(wanted: Sequence[str], existing: Sequence[str]) -> str:
    """Names as the cluster writes them, those first that look most like what is wanted."""
    close = [name for each in wanted for name in get_close_matches(each, existing, EXAMPLES, 0.0)]
    return ", ".join(dict.fromkeys(close[:EXAMPLES]))
