"""Options of a route's filter."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from mqbridge.config.base import Name, OneOrMore, Options, option_error
from mqbridge.config.patterns import TextPattern


class Condition(Options):
    """A condition on a text. It has exactly one of these keys."""

    present: bool | None = Field(default=None, description="`true`: there is a value; `false`: there is no value.")
    equals: str | None = Field(default=None, description="The value is this text.")
    one_of: frozenset[str] = Field(default=frozenset(), description="The value is one of these texts.")
    pattern: TextPattern | None = Field(
        default=None, description="This Python regular expression matches the whole value.", examples=["eu-.*"]
    )

    @model_validator(mode="after")
    def _check_exactly_one_key(self) -> Self:
        given = (self.present is not None, self.equals is not None, bool(self.one_of), self.pattern is not None)
        if sum(given) != 1:
            raise option_error("condition", "needs exactly one of `present`, `equals`, `one_of` and `pattern`")
        return self


class FilterRule(Options):
    """Conditions that a message must all meet."""

    msg_type: Condition | None = Field(
        default=None, description="Condition on the message's type (TubeMQ's `$msgType$`, RocketMQ's tag)."
    )
    key: Condition | None = Field(
        default=None,
        description="Condition that the routing key or any of the index keys must meet. `present: false`: the message has no key "
        "at all. A binary routing key that is not UTF-8 counts as present, and meets no other condition.",
    )
    properties: dict[Name, Condition] = Field(
        default={},
        description="Conditions by property name. A property can have several values; one that meets the condition is enough. "
        "`present: false`: the message has no property of this name.",
    )

    @model_validator(mode="after")
    def _check_has_condition(self) -> Self:
        if self.msg_type is None and self.key is None and not self.properties:
            raise option_error("filter", "has no condition: it needs `msg_type`, `key` or `properties`")
        return self


class FilterRules(Options):
    """Selects the messages of a route; others are only acknowledged. A message that cannot be decoded is always selected."""

    # A message that cannot be decoded must not be lost silently: it is stored as a dead letter, or stops the route.

    # `OneOrMore`: the file may give one rule in place of a list; the default, no rule, is valid too.
    include: Annotated[tuple[FilterRule, ...], OneOrMore] = Field(
        default=(),
        description="One rule or a list of rules: a message is selected if it meets one of them. Without rules, all are.",
    )
    exclude: Annotated[tuple[FilterRule, ...], OneOrMore] = Field(
        default=(), description="One rule or a list of rules: a message is not selected if it meets one of them."
    )
