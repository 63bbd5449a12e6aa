"""Selects the source topics of a route, and makes the names of its target topics.

A source topic in the configuration is an exact name, or a regular expression `~PATTERN` that must match a whole name. A target
topic is a template: `{topic}` is the source topic, and `{name}` is a named group of the expression that matched it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mqbridge.config.patterns import compile_name_pattern, is_pattern, topic_words
from mqbridge.config.templates import fill_topic_template, topic_template_words
from mqbridge.errors import ConfigError


@dataclass(frozen=True, slots=True)
class SelectedTopic:
    """A source topic of a route, with the words (name and value) that its target template may use."""

    topic: str
    words: dict[str, str]


def select_topics(names_and_patterns: Iterable[str], existing: Iterable[str]) -> list[SelectedTopic]:
    """Return the topics that the names and patterns select from the `existing` topics, sorted, without duplicates.

    Exact names are selected even if they do not exist. If several patterns match a topic, the first one gives its words; if the
    topic is also an exact name, `topic` is its only word.
    """
    existing_names = sorted(existing)
    selected: dict[str, SelectedTopic] = {}
    for name_or_pattern in names_and_patterns:
        if not is_pattern(name_or_pattern):
            selected[name_or_pattern] = SelectedTopic(name_or_pattern, {"topic": name_or_pattern})
            continue
        compile_name_pattern(name_or_pattern)  # raises for an invalid pattern, also if there are no topics
        for name in existing_names:
            if name not in selected and (words := topic_words(name_or_pattern, name)) is not None:
                selected[name] = SelectedTopic(name, words)
    return [selected[name] for name in sorted(selected)]


def render_target_topic(template: str, selected: SelectedTopic) -> str:
    """Return the target topic for a source topic. Raises ConfigError for an unknown word."""
    unknown = topic_template_words(template) - selected.words.keys()
    if unknown:
        known = ", ".join("{" + word + "}" for word in sorted(selected.words))
        words = ", ".join(sorted(map(repr, unknown)))
        raise ConfigError(
            f"the topic template {template!r} uses {words}, which the topic {selected.topic!r} does not define",
            hint=f"The template may use {known}",
        )
    return fill_topic_template(template, selected.words)
