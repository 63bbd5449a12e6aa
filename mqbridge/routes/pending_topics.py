"""Finds the pending route that will create a missing topic. A route is pending until it has opened its targets.

A route stays pending while one of its clusters is unreachable, or refuses a request with a transient failure.
"""

import re
import string
from collections.abc import Iterable, Iterator

from mqbridge.config.options.route import Route as RouteConfig
from mqbridge.config.patterns import BoundedPattern, compile_name_pattern, is_pattern
from mqbridge.errors import ClusterError, ConfigError
from mqbridge.routing.topics import SelectedTopic, render_target_topic


def creator_of(wanted: str, cluster: str, pending_routes: Iterable[RouteConfig]) -> str | None:
    """Return the name of the first pending route that may create the wanted topic (a name or a pattern); None if none may."""
    for route in pending_routes:
        if any(_matches(wanted, created) for created in _topics_created_by(route, cluster)):
            return route.name
    return None


def not_created_yet_error(route: RouteConfig, cluster: str, topic: str, creator: str) -> ClusterError:
    """Make the error for a missing topic (a name, or a pattern without a match) that another route will create."""
    if is_pattern(topic):
        missing, creation = f"no topic of cluster {cluster!r} matches {topic!r} yet", "may create one"
    else:
        missing, creation = f"the topic {topic!r} does not exist in cluster {cluster!r} yet", "creates it"
    return ClusterError(f"route {route.name!r}: {missing}: route {creator!r}, which {creation}, is not open yet")


def _matches(wanted: str, created: str | BoundedPattern) -> bool:
    """Return True if the created topic may be the wanted one. Two patterns are not compared: any two may match the same name."""
    if isinstance(created, str):
        return (compile_name_pattern(wanted).fullmatch(created) is not None) if is_pattern(wanted) else wanted == created
    return is_pattern(wanted) or created.fullmatch(wanted) is not None


def _topics_created_by(route: RouteConfig, cluster: str) -> Iterator[str | BoundedPattern]:
    """Yield the topics that a route creates in a cluster: names, or patterns of names that depend on unknown source topics."""
    for target in route.targets:
        if target.create and target.cluster == cluster:
            for topic in route.source.configured_topics:
                yield _pattern_of_names(target.topic) if is_pattern(topic) else _rendered_name(target.topic, topic)
    letters = route.delivery.dead_letter
    if letters is not None and letters.cluster == cluster:  # it has no option `create`: a missing one is always created
        yield letters.topic


def _rendered_name(template: str, topic: str) -> str:
    """Return the target topic for a source topic that the route names exactly; "", which is no topic's name, if there is none."""
    try:
        return render_target_topic(template, SelectedTopic(topic, {"topic": topic}))
    except ConfigError:  # the template needs a pattern's groups: the route will fail with this error, and creates no topic
        return ""


def _pattern_of_names(template: str) -> BoundedPattern:
    """Return a pattern that matches all names that the template may give."""
    parts = ((re.escape(literal), word) for literal, word, _, _ in string.Formatter().parse(template))
    return BoundedPattern("".join(text if word is None else text + ".+" for text, word in parts))
