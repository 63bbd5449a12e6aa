"""Texts made from a message: what edits set.

    {key} {msg_type} {event_time} {position}      what the message says; event time in ms since the epoch
    {property:NAME}                               the first value of a property
    {cluster} {topic} {partition}                 where it came from
    {WORD}                                        a named group of the pattern that matched the source topic

A word that a message has no value for makes the whole template say nothing: what it would have set stays as it is.
"""

import string
from collections.abc import Callable, Mapping

from mqbridge.errors import ConfigError
from mqbridge.message import Message, Partition, format_position

Word = Callable[[Message, Partition], str | None]


def _key(message: Message, _: Partition) -> str | None:
    if isinstance(message.key, bytes):
        return message.key.decode(errors="replace")
    return message.key


_WORDS: dict[str, Word] = {
    "key": _key,
    "msg_type": lambda message, _: message.msg_type,
    "event_time": lambda message, _: None if message.event_time is None else str(message.event_time),
    "position": lambda message, _: format_position(message.position),
    "cluster": lambda _, source: source.cluster,
    "topic": lambda _, source: source.topic,
    "partition": lambda _, source: source.name,
}
WORDS = frozenset(_WORDS)
_PROPERTY = "property"


def words_of(template: str) -> set[str]:
    """The words that a template uses, properties aside. Raises ConfigError when it is none."""
    return {word for _, word, name in _parse(template) if word is not None and not name}


def _parse(template: str) -> list[tuple[str, str | None, str]]:
    """Literal text, the word after it and, for a property, its name."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"the template {template!r} is not well formed: {error}", hint="Write {{ and }} for braces") from error
    found: list[tuple[str, str | None, str]] = []
    for literal, word, name, conversion in parts:
        if word == _PROPERTY and not name:
            raise ConfigError(f"the template {template!r} does not say which property", hint="Write {property:NAME}")
        if conversion or (name and (word != _PROPERTY or "{" in name)) or word == "":
            raise ConfigError(f"the template {template!r} has a word that is none", hint="Write {WORD} or {property:NAME}")
        found.append((literal, word, name or ""))
    return found


class Template:
    """A template with the words that the source topic gave (see `mqbridge.routing.topics`); a message's own come first."""

    def __init__(self, template: str, given: Mapping[str, str]) -> None:
        self._parts: list[str | Word] = []
        for literal, word, name in _parse(template):
            if literal:
                self._parts.append(literal)
            if word is not None:
                self._parts.append(_property(name) if name else _WORDS.get(word) or given[word])

        self._constant = "".join(map(str, self._parts)) if all(isinstance(part, str) for part in self._parts) else None

    def render(self, message: Message, source: Partition) -> str | None:
        """The text, None when a word has no value."""
        if self._constant is not None:
            return self._constant
        texts: list[str] = []
        for part in self._parts:
            text = part if isinstance(part, str) else part(message, source)
            if text is None:
                return None
            texts.append(text)
        return "".join(texts)


def _property(name: str) -> Word:
    return lambda message, _: message.property(name)
