"""Which messages a route takes.

A rule is a set of conditions that must all hold; a message passes when one `include` rule holds (or there is none) and no
`exclude` rule does. Each condition is about the texts that a message has in one place: its type, its keys, the values of a
property. A message that could not be read has none of these: it is never filtered, since it must reach the dead letters.
"""

from collections.abc import Callable, Sequence

from mqbridge.config.options.filter import Condition, FilterRule, FilterRules
from mqbridge.config.patterns import compile_text_pattern
from mqbridge.message import Batch, Message, Share

Holds = Callable[[Message], bool]


class Filter:
    """Holds for each message that is to be taken. `left_out` is told how many are not, each time."""

    def __init__(self, msg_types: frozenset[str], rules: FilterRules, left_out: Callable[[int], None]) -> None:
        wanted: list[Holds] = []
        if msg_types:
            wanted.append(lambda message: message.msg_type in msg_types)
        if rules.include:
            wanted.append(_any([_rule(rule) for rule in rules.include]))
        if rules.exclude:
            unwanted = _any([_rule(rule) for rule in rules.exclude])
            wanted.append(lambda message: not unwanted(message))
        self._wanted = _all(wanted)
        self._left_out = left_out

    def keep(self, batch: Batch) -> Share:
        """The messages that pass."""
        wanted, messages = self._wanted, batch.messages
        kept = [index for index, message in enumerate(messages) if message.defect is not None or wanted(message)]
        if len(kept) == len(messages):
            return Share(batch)
        self._left_out(len(messages) - len(kept))
        return Share(batch, kept)


def make_filter(msg_types: frozenset[str], rules: FilterRules, left_out: Callable[[int], None]) -> Filter | None:
    """The filter, None when it would take everything."""
    return Filter(msg_types, rules, left_out) if msg_types or rules != FilterRules() else None


def _rule(rule: FilterRule) -> Holds:
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
        lambda message: message.property_values(name),
    )


def _of(condition: Condition, has: Holds, texts: Callable[[Message], Sequence[str]]) -> Holds:
    if condition.present is not None:
        return has if condition.present else lambda message: not has(message)
    if condition.pattern is not None:
        match = compile_text_pattern(condition.pattern).fullmatch
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
