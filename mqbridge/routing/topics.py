"""Which source topics a route takes, and how its target topics are called.

A source topic is an exact name, or a regular expression written `~PATTERN` that must match a whole name. A target topic is a
template: `{topic}` is the source topic, `{name}` a named group of the expression that matched it.
"""

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass

from mqbridge.errors import ConfigError

REGEX_MARK = "~"


def is_pattern(topic: str) -> bool:
    """Whether this is a regular expression rather than a name."""
    return topic.startswith(REGEX_MARK)


def compile_pattern(topic: str) -> re.Pattern[str]:
    """The expression behind the mark. Raises ConfigError with the place of the mistake inside it."""
    try:
        return re.compile(topic.removeprefix(REGEX_MARK))
    except re.error as error:
        raise ConfigError(
            f"the pattern {topic!r} does not compile: {error.msg}"
            + (f" at character {error.pos}" if error.pos is not None else ""),
            hint="Patterns are Python regular expressions and match whole names, for example ~orders_(?P<region>.+)",
        ) from error


@dataclass(frozen=True, slots=True)
class Selected:
    """A source topic that a route takes, with the words that its target template may use."""

    topic: str
    words: dict[str, str]


def select(wanted: Iterable[str], existing: Iterable[str]) -> list[Selected]:
    """The topics that a route takes, sorted by name, each once; exact names are taken as they are, existing or not."""
    names = sorted(existing)
    chosen: dict[str, Selected] = {}
    for topic in wanted:
        if not is_pattern(topic):
            chosen[topic] = Selected(topic, {"topic": topic})
            continue
        pattern = compile_pattern(topic)
        for name in names:
            if name not in chosen and (match := pattern.fullmatch(name)):
                groups = {key: value or "" for key, value in match.groupdict().items()}
                chosen[name] = Selected(name, groups | {"topic": name})
    return [chosen[name] for name in sorted(chosen)]


def template_fields(template: str) -> set[str]:
    """The words that a template uses. Raises ConfigError when it is none."""
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ConfigError(
            f"the topic template {template!r} is not well formed: {error}", hint="Write {{ and }} for braces"
        ) from error


def render(template: str, selected: Selected) -> str:
    """The target topic for a source topic. Raises ConfigError for an unknown word."""
    unknown = template_fields(template) - selected.words.keys()
    if unknown:
        known = ", ".join("{" + word + "}" for word in sorted(selected.words))
        words = ", ".join(sorted(map(repr, unknown)))
        raise ConfigError(
            f"the topic template {template!r} uses {words}, which the topic {selected.topic!r} does not give",
            hint=f"It may use {known}",
        )
    return template.format(**selected.words)
