"""Finds the pending route that will create a missing topic. A route is pending until it is open.

A route stays pending while one of its clusters is unreachable, or refuses a request with a transient failure.
"""

import re
import string
from collections.abc import Iterable, Iterator

from mqbridge.config.options.route import Route
from mqbridge.config.patterns import compile_name_pattern, is_pattern
from mqbridge.errors import ConfigError
from mqbridge.routing.topics import SelectedTopic, render


def creator_of(wanted: str, cluster: str, pending: Iterable[Route]) -> str | None:
    """Return the name of a pending route that may create the wanted topic (a name or a pattern); None if there is none."""
    return next((route.name for route in pending if any(_matches(wanted, name) for name in _created_by(route, cluster))), None)


def _matches(wanted: str, created: str | re.Pattern[str]) -> bool:
    if isinstance(created, str):
        return (compile_name_pattern(wanted).fullmatch(created) is not None) if is_pattern(wanted) else wanted == created
    return is_pattern(wanted) or created.fullmatch(wanted) is not None


def _created_by(route: Route, cluster: str) -> Iterator[str | re.Pattern[str]]:
    """Yield the topics that a route creates in a cluster: names, or patterns of names that depend on unknown source topics."""
    for target in route.targets:
        if target.create and target.cluster == cluster:
            for topic in route.source.wanted:
                yield _any_name(target.topic) if is_pattern(topic) else _name(target.topic, topic)
    letters = route.delivery.dead_letter
    if letters is not None and letters.cluster == cluster:
        yield letters.topic


def _name(template: str, topic: str) -> str:
    try:
        return render(template, SelectedTopic(topic, {"topic": topic}))
    except ConfigError:  # the template uses a pattern's groups, and the topic is given by name: the route cannot create it
        return ""


def _any_name(template: str) -> re.Pattern[str]:
    """Return a pattern that matches all names that the template may give."""
    parts = ((re.escape(literal), word) for literal, word, _, _ in string.Formatter().parse(template))
    return re.compile("".join(text if word is None else text + ".+" for text, word in parts))
