"""Topics that are missing because the route that makes them is not open yet: its cluster is away, or refuses it for now."""

import re
import string
from collections.abc import Iterable, Iterator

from mqbridge.config.options.route import Route
from mqbridge.config.patterns import compile_name_pattern, is_pattern
from mqbridge.errors import ConfigError
from mqbridge.routing.topics import Selected, render


def maker_of(wanted: str, cluster: str, late: Iterable[Route]) -> str | None:
    """The name of a route, among those that are late, which may make a topic that is wanted: by name, or by a pattern."""
    return next((route.name for route in late if any(_fits(wanted, made) for made in _made_by(route, cluster))), None)


def _fits(wanted: str, made: str | re.Pattern[str]) -> bool:
    if isinstance(made, str):
        return (compile_name_pattern(wanted).fullmatch(made) is not None) if is_pattern(wanted) else wanted == made
    return is_pattern(wanted) or made.fullmatch(wanted) is not None


def _made_by(route: Route, cluster: str) -> Iterator[str | re.Pattern[str]]:
    """What a route makes in a cluster: names, or patterns of names where it depends on topics that are not known."""
    for target in route.targets:
        if target.create and target.cluster == cluster:
            for topic in route.source.wanted:
                yield _any_name(target.topic) if is_pattern(topic) else _name(target.topic, topic)
    letters = route.delivery.dead_letter
    if letters is not None and letters.cluster == cluster:
        yield letters.topic


def _name(template: str, topic: str) -> str:
    try:
        return render(template, Selected(topic, {"topic": topic}))
    except ConfigError:  # it has words of a pattern that other topics of the route match: this one is refused
        return ""


def _any_name(template: str) -> re.Pattern[str]:
    """Matches all names that the template may give."""
    parts = ((re.escape(literal), word) for literal, word, _, _ in string.Formatter().parse(template))
    return re.compile("".join(text if word is None else text + ".+" for text, word in parts))
