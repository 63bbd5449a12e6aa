"""Filters of a route.

A message meets a rule if it meets all conditions of the rule. A message passes if it meets an `include` rule (or there is none),
and no `exclude` rule. Each condition tests texts of the message: its type, its keys, or the values of a property. A message that
could not be decoded has none of these and always passes, because it must be written to the dead-letter topic.

Rules with conditions on the type only are tested first. In a batch that the compiled module decoded, they are tested once per
distinct type, and no message becomes a Python object. The other rules are tested on the remaining messages.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from mqbridge.config.options.filter import Condition, FilterRule, FilterRules
from mqbridge.config.patterns import compile_text_pattern
from mqbridge.message import Batch, Message, Share
from mqbridge.native import is_native

T = TypeVar("T")
Test = Callable[[T], bool]


class Filter:
    """Selects the messages that pass. For each batch with messages that do not pass, calls `left_out` with their number."""

    def __init__(self, msg_types: frozenset[str], rules: FilterRules, left_out: Callable[[int], None]) -> None:
        of_type: list[Test[str | None]] = [msg_types.__contains__] if msg_types else []
        of_message: list[Test[Message]] = []
        for group, are_wanted in ((rules.include, True), (rules.exclude, False)):
            if group and all(rule.key is None and not rule.properties for rule in group):
                of_type.append(_wanted([_of_type(rule.msg_type) for rule in group if rule.msg_type is not None], are_wanted))
            elif group:
                of_message.append(_wanted([_rule(rule) for rule in group], are_wanted))
        self._type_passes = _all(of_type) if of_type else None
        self._message_passes = _all(of_message) if of_message else None
        self._left_out = left_out

    def keep(self, batch: Batch) -> Share:
        """Return the messages of the batch that pass."""
        messages = batch.messages
        kept = self._of_wanted_types(messages)
        if (passes := self._message_passes) is not None:
            kept = [index for index in kept if (message := messages[index]).defect is not None or passes(message)]
        if len(kept) == len(messages):
            return Share(batch)
        self._left_out(len(messages) - len(kept))
        return Share(batch, kept)

    def _of_wanted_types(self, messages: Sequence[Message]) -> Sequence[int]:
        """Return the indexes of the messages whose type passes, and of the messages that could not be decoded."""
        passes = self._type_passes
        if passes is None:
            return range(len(messages))
        if not is_native(messages):
            return [index for index, m in enumerate(messages) if m.defect is not None or passes(m.msg_type)]
        types: list[str | None] = messages.msg_types()  # type: ignore[attr-defined]
        wanted = set(filter(passes, set(types)))
        kept = [index for index, msg_type in enumerate(types) if msg_type in wanted]
        damaged: list[int] = messages.damaged()  # type: ignore[attr-defined]
        return sorted({*kept, *damaged}) if damaged else kept


def make_filter(msg_types: frozenset[str], rules: FilterRules, left_out: Callable[[int], None]) -> Filter | None:
    """Make the filter of a route; None if all messages pass."""
    return Filter(msg_types, rules, left_out) if msg_types or rules != FilterRules() else None


def _rule(rule: FilterRule) -> Test[Message]:
    conditions: list[Test[Message]] = []
    if rule.msg_type is not None:
        type_passes = _of_type(rule.msg_type)
        conditions.append(lambda message: type_passes(message.msg_type))
    if rule.key is not None:
        conditions.append(_of(rule.key, lambda message: message.key is not None or bool(message.keys), _keys))
    for name, condition in rule.properties.items():
        conditions.append(_of_property(name, condition))
    return _all(conditions)


def _of_type(condition: Condition) -> Test[str | None]:
    return _of(condition, lambda msg_type: msg_type is not None, lambda msg_type: () if msg_type is None else (msg_type,))


def _of_property(name: str, condition: Condition) -> Test[Message]:
    return _of(
        condition,
        lambda message: message.property(name) is not None,
        lambda message: message.property_values(name),
    )


def _of(condition: Condition, has: Test[T], texts: Callable[[T], Sequence[str]]) -> Test[T]:
    if condition.present is not None:
        return has if condition.present else lambda subject: not has(subject)
    if condition.pattern is not None:
        match = compile_text_pattern(condition.pattern).fullmatch
        return lambda subject: any(match(text) for text in texts(subject))
    wanted = condition.one_of if condition.equals is None else {condition.equals}
    return lambda subject: not wanted.isdisjoint(texts(subject))


def _keys(message: Message) -> Sequence[str]:
    """Return the routing key and the index keys as texts, without a binary routing key that is not UTF-8."""
    key = message.key
    if isinstance(key, bytes):
        try:
            key = key.decode()
        except UnicodeDecodeError:
            key = None
    return message.keys if key is None else (key, *message.keys)


def _wanted(tests: list[Test[T]], are_wanted: bool) -> Test[T]:
    """Make a test that is true if any of the tests is true; if not `are_wanted`, a test that is true if none of them is."""
    any_of = tests[0] if len(tests) == 1 else lambda subject: any(test(subject) for test in tests)
    return any_of if are_wanted else lambda subject: not any_of(subject)


def _all(tests: list[Test[T]]) -> Test[T]:
    return tests[0] if len(tests) == 1 else lambda subject: all(test(subject) for test in tests)
