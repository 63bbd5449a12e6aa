"""The grammar of templates in options.

A topic template gives the name of a target topic: `{topic}` is the source topic (if text precedes it, only the last part of a
full name), and `{WORD}` is a named group of the pattern that matched the source topic.
A message template gives a value that is made from a message:

    {key} {msg_type} {event_time} {position}      fields of the message; event time in ms since the epoch
    {property:NAME}                               the first value of a property
    {cluster} {topic} {partition}                 the message's source
    {WORD}                                        a named group of the pattern that matched the source topic
"""

import string
from collections.abc import Mapping
from typing import Annotated

from mqbridge.config.base import checked_by
from mqbridge.errors import ConfigError

MESSAGE_WORDS = frozenset({"key", "msg_type", "event_time", "position", "cluster", "topic", "partition"})
"""The words that every message template may use; `mqbridge.routing.templates` computes their values."""

_PROPERTY = "property"


def topic_template_words(template: str) -> set[str]:
    """Return the words that a topic template uses. Raises ConfigError for a syntax error."""
    try:
        return {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ConfigError(
            f"the topic template {template!r} is not well formed: {error}", hint="Write {{ and }} for braces"
        ) from error


def fill_topic_template(template: str, words: Mapping[str, str]) -> str:
    """Fill a topic template; `words` contains at least the words that the template uses.

    A full topic name (`scheme://…/name`) after other text is shortened to its last part, because a name can have only one prefix.
    """
    text = ""
    for literal, name, _, _ in string.Formatter().parse(template):
        text += literal
        if name is not None:
            value = words[name]
            text += value.rpartition("/")[2] if text and name == "topic" and "://" in value else value
    return text


def parse_message_template(template: str) -> list[tuple[str, str | None, str]]:
    """Split a template into parts: (literal text, the word after the text or None, the name of the property or "").

    Raises ConfigError for a syntax error.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"the template {template!r} is not well formed: {error}", hint="Write {{ and }} for braces") from error
    parts: list[tuple[str, str | None, str]] = []
    for literal, word, name, conversion in parsed:
        if word == _PROPERTY and not name:
            raise ConfigError(f"the template {template!r} does not say which property", hint="Write {property:NAME}")
        # The formatter's syntax is {WORD!CONVERSION:NAME}; only a property has a name.
        if conversion or (name and (word != _PROPERTY or "{" in name)) or word == "":
            raise ConfigError(f"the template {template!r} contains an invalid word", hint="Write {WORD} or {property:NAME}")
        parts.append((literal, word, name or ""))
    return parts


def message_template_words(template: str) -> set[str]:
    """Return the words that a message template uses, except properties. Raises ConfigError for a syntax error."""
    return {word for _, word, name in parse_message_template(template) if word is not None and not name}


MessageTemplate = Annotated[str, checked_by(message_template_words)]
"""The type of an option that is a message template."""
