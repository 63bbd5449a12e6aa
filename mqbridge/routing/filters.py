"""Which messages a route takes.

A rule is a set of conditions that must all hold; a message passes when one `include` rule holds (or there is none) and no
`exclude` rule does. Each condition is about the texts that a message has in one place: its type, its keys, the values of a
property. A message that could not be read has none of these: it is never filtered, since it must reach the dead letters.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mqbridge.errors import ConfigError
from mqbridge.message import Batch, Message, Share

Holds = Callable[[Message], bool]


class Condition(Protocol):
    """What must hold for a text; one of these is given."""

    @property
    def present(self) -> bool | None:
        """Whether there must be any, or none."""

    @property
    def equals(self) -> str | None:
        """The text."""

    @property
    def one_of(self) -> frozenset[str]:
        """The texts that do."""

    @property
    def pattern(self) -> str | None:
        """A regular expression that must match the whole text."""


class Rule(Protocol):
    """Conditions that must all hold."""

    @property
    def msg_type(self) -> Condition | None:
        """About the message's type."""

    @property
    def key(self) -> Condition | None:
        """About its routing key or any of its index keys."""

    @property
    def properties(self) -> Mapping[str, Condition]:
        """About any value under each of these names."""


class Filter:
    """Holds for each message that is to be taken."""

    def __init__(self, msg_types: frozenset[str], include: Sequence[Rule], exclude: Sequence[Rule]) -> None:
        wanted: list[Holds] = []
        if msg_types:
            wanted.append(lambda message: message.msg_type in msg_types)
        if include:
            wanted.append(_any([_rule(rule) for rule in include]))
        if exclude:
            unwanted = _any([_rule(rule) for rule in exclude])
            wanted.append(lambda message: not unwanted(message))
        self._wanted = _all(wanted)

    def keep(self, batch: Batch) -> Share:
        """The messages that pass."""
        wanted, messages = self._wanted, batch.messages
        kept = [index for index, message in enumerate(messages) if message.defect is not None or wanted(message)]
        return Share(batch) if len(kept) == len(messages) else Share(batch, kept)


def make_filter(msg_types: frozenset[str], include: Sequence[Rule], exclude: Sequence[Rule]) -> Filter | None:
    """The filter, None when it would take everything."""
    return Filter(msg_types, include, exclude) if msg_types or include or exclude else None


def check_pattern(pattern: str) -> str:
    """The pattern again. Raises ConfigError with the place of the mistake inside it."""
    try:
        re.compile(pattern)
    except re.error as error:
        where = f" at character {error.pos}" if error.pos is not None else ""
        raise ConfigError(
            f"the pattern {pattern!r} does not compile: {error.msg}{where}",
            hint="Patterns are Python regular expressions and match whole texts, for example eu-.*",
        ) from error
    return pattern


def _rule(rule: Rule) -> Holds:
    conditions: list[Holds] = []
    if rule.msg_type is not None:
        conditions.append(_of(rule.msg_type, lambda message: message.msg_type is not None, _msg_types))
    if rule.key is not None:
        conditions.append(_of(rule.key, lambda message: message.key is not None or bool(message.keys), _keys))
    for name, condition in rule.properties.items():
        conditions.append(_of_property(name, condition))
    return _all(conditions)


def _of_property(name: str, condition: Condition) -> Holds:
    return _of(
        condition,
        lambda message: message.property(name) is not None,
        lambda message: [value for key, value in message.properties if key == name],
    )


def _of(condition: Condition, has: Holds, texts: Callable[[Message], Sequence[str]]) -> Holds:
    if condition.present is not None:
        return has if condition.present else lambda message: not has(message)
    if condition.pattern is not None:
        match = re.compile(condition.pattern).fullmatch
        return lambda message: any(match(text) for text in texts(message))
    wanted = condition.one_of if condition.equals is None else {condition.equals}
    return lambda message: not wanted.isdisjoint(texts(message))


def _msg_types(message: Message) -> Sequence[str]:
    return () if message.msg_type is None else (message.msg_type,)


def _keys(message: Message) -> Sequence[str]:
    """Routing key and index keys; a binary key that is no text counts only as present."""
    key = message.key
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            key = None
    return message.keys if key is None else (key, *message.keys)


def _any(tests: list[Holds]) -> Holds:
    return tests[0] if len(tests) == 1 else lambda message: any(test(message) for test in tests)


def _all(tests: list[Holds]) -> Holds:
    return tests[0] if len(tests) == 1 else lambda message: all(test(message) for test in tests)
