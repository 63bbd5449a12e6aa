"""Filters of a route.

A message meets a rule if it meets all conditions of the rule. A message passes if it meets an `include` rule (or there is none),
and no `exclude` rule. Each condition tests texts of the message: its type, its keys, or the values of a property. A message that
could not be decoded has none of these and always passes, because it must be written to the dead-letter topic. A message also
passes if a condition's pattern cannot be tried on its text, which is too long (see `BoundedPattern`); this is logged.

If all `include` rules have conditions on the type only, they are tested first; the same applies to the `exclude` rules. In a
batch that the compiled module decoded, this tests each distinct type once, and no message becomes a Python object. All other
rules are tested on the remaining messages.
"""

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from mqbridge.config.options.filter import Condition, FilterRule, FilterRules
from mqbridge.config.patterns import BoundedPattern, compile_text_pattern
from mqbridge.message import Batch, Message, Share
from mqbridge.native import is_native

log = logging.getLogger(__name__)

T = TypeVar("T")
Test = Callable[[T], bool]
"""Function that tests a message, or a message type."""


class TextTooLong(Exception):
    """A pattern is not tried on a text of a message, because that could take too long."""

    def __init__(self, pattern: BoundedPattern, text: str) -> None:
        super().__init__(
            f"the filter's pattern {pattern.compiled.pattern} is not tried on a text of {len(text)} characters, because that "
            f"could take too long (at most {pattern.max_chars}): the message passes"
        )


class Filter:
    """Selects the messages that pass. For each batch with messages that do not pass, calls `on_filtered` with their number.

    `msg_types` are the message types that the route reads; empty means all.
    """

    def __init__(self, msg_types: frozenset[str], rules: FilterRules, on_filtered: Callable[[int], None]) -> None:
        type_tests: list[Test[str | None]] = [msg_types.__contains__] if msg_types else []
        message_tests: list[Test[Message]] = []
        for kind_rules, include in ((rules.include, True), (rules.exclude, False)):
            has_only_type_conditions = all(rule.key is None and not rule.properties for rule in kind_rules)
            if kind_rules and has_only_type_conditions:  # such rules are tested per distinct type, without the messages
                type_tests.append(
                    _any_of([_type_test(rule.msg_type) for rule in kind_rules if rule.msg_type is not None], negate=not include)
                )
            elif kind_rules:
                message_tests.append(_any_of([_rule_test(rule) for rule in kind_rules], negate=not include))
        self._type_passes = _unless_too_long(_all_of(type_tests)) if type_tests else None
        self._message_passes = _unless_too_long(_all_of(message_tests)) if message_tests else None
        self._on_filtered = on_filtered

    def keep(self, batch: Batch) -> Share:
        """Return a share with the messages of the batch that pass."""
        messages = batch.messages
        kept = self._indexes_by_type(messages)
        if (passes := self._message_passes) is not None:
            kept = [index for index in kept if (message := messages[index]).defect is not None or passes(message)]
        if len(kept) == len(messages):
            return Share(batch)
        self._on_filtered(len(messages) - len(kept))
        return Share(batch, kept)

    def _indexes_by_type(self, messages: Sequence[Message]) -> Sequence[int]:
        """Return the indexes of the messages whose type passes, and of the messages that could not be decoded."""
        passes = self._type_passes
        if passes is None:
            return range(len(messages))
        if not is_native(messages):
            return [index for index, message in enumerate(messages) if message.defect is not None or passes(message.msg_type)]
        types: list[str | None] = messages.msg_types()  # type: ignore[attr-defined]
        passing_types = set(filter(passes, set(types)))
        kept = [index for index, msg_type in enumerate(types) if msg_type in passing_types]
        undecoded: list[int] = messages.damaged()  # type: ignore[attr-defined]  # indexes of messages with a defect
        return sorted({*kept, *undecoded}) if undecoded else kept


def make_filter(msg_types: frozenset[str], rules: FilterRules, on_filtered: Callable[[int], None]) -> Filter | None:
    """Make the filter of a route; None if all messages pass."""
    return Filter(msg_types, rules, on_filtered) if msg_types or rules != FilterRules() else None


def _rule_test(rule: FilterRule) -> Test[Message]:
    """Make a test that is true for messages that meet all conditions of the rule."""
    conditions: list[Test[Message]] = []
    if rule.msg_type is not None:
        type_passes = _type_test(rule.msg_type)
        conditions.append(lambda message: type_passes(message.msg_type))
    if rule.key is not None:
        conditions.append(_condition_test(rule.key, lambda message: message.key is not None or bool(message.keys), _keys))
    for name, condition in rule.properties.items():
        conditions.append(_property_test(name, condition))
    return _all_of(conditions)


def _type_test(condition: Condition) -> Test[str | None]:
    """Make the test of a condition on the message type."""
    return _condition_test(
        condition, lambda msg_type: msg_type is not None, lambda msg_type: () if msg_type is None else (msg_type,)
    )


def _property_test(name: str, condition: Condition) -> Test[Message]:
    """Make the test of a condition on the values of a property."""
    return _condition_test(
        condition,
        lambda message: message.property(name) is not None,
        lambda message: message.property_values(name),
    )


def _condition_test(condition: Condition, has: Test[T], texts: Callable[[T], Sequence[str]]) -> Test[T]:
    """Make the test of a condition. `has` tells whether the value is present, and `texts` returns the texts to compare."""
    if condition.present is not None:
        return has if condition.present else lambda subject: not has(subject)
    if condition.pattern is not None:
        return _pattern_test(compile_text_pattern(condition.pattern), texts)
    allowed_texts = condition.one_of if condition.equals is None else {condition.equals}
    return lambda subject: not allowed_texts.isdisjoint(texts(subject))


def _pattern_test(pattern: BoundedPattern, texts: Callable[[T], Sequence[str]]) -> Test[T]:
    """Make the test whether a pattern matches one of the texts. Raises TextTooLong for one that cannot be tried."""
    match = pattern.compiled.fullmatch
    if pattern.max_chars is None:
        return lambda subject: any(match(text) for text in texts(subject))

    def test(subject: T) -> bool:
        subjects = texts(subject)
        for text in subjects:
            if pattern.is_too_long(text):
                raise TextTooLong(pattern, text)
        return any(match(text) for text in subjects)

    return test


def _unless_too_long(test: Test[T]) -> Test[T]:
    """Make a test that is true if the test cannot be made because a text is too long: what is not known is not left out."""

    def passes(subject: T) -> bool:
        try:
            return test(subject)
        except TextTooLong as error:
            log.warning("%s", error)
            return True

    return passes


def _keys(message: Message) -> Sequence[str]:
    """Return the routing key and the index keys as texts, without a binary routing key that is not UTF-8."""
    key = message.key
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            key = None
    return message.keys if key is None else (key, *message.keys)


def _any_of(tests: list[Test[T]], *, negate: bool) -> Test[T]:
    """Make a test that is true if any of the tests is true; with `negate`, a test that is true if none of them is."""
    any_of = tests[0] if len(tests) == 1 else lambda subject: any(test(subject) for test in tests)
    return (lambda subject: not any_of(subject)) if negate else any_of


def _all_of(tests: list[Test[T]]) -> Test[T]:
    """Make a test that is true if all of the tests are true."""
    return tests[0] if len(tests) == 1 else lambda subject: all(test(subject) for test in tests)
