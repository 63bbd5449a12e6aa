"""Options of a route's filter."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from mqbridge.config.base import Name, OneOrMore, Options, invalid
from mqbridge.config.patterns import TextPattern


class Condition(Options):
    """A condition on a text. Exactly one of these."""

    present: bool | None = Field(default=None, description="`true`: there is a value; `false`: there is none.")
    equals: str | None = Field(default=None, description="The value is this text.")
    one_of: frozenset[str] = Field(default=frozenset(), description="The value is one of these texts.")
    pattern: TextPattern | None = Field(
        default=None, description="This Python regular expression matches the whole text.", examples=["eu-.*"]
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        given = (self.present is not None, self.equals is not None, bool(self.one_of), self.pattern is not None)
        if sum(given) != 1:
            raise invalid("condition", "needs one of `present`, `equals`, `one_of` and `pattern`, and no two of them")
        return self


class FilterRule(Options):
    """Conditions that must all hold for a message."""

    msg_type: Condition | None = Field(default=None, description="Condition on its type (TubeMQ's `$msgType$`, RocketMQ's tag).")
    key: Condition | None = Field(
        default=None,
        description="Condition on its routing key or any of its index keys. A binary key that is not UTF-8 is only `present`.",
    )
    properties: dict[Name, Condition] = Field(default={}, description="Conditions on any value of these properties.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.msg_type is None and self.key is None and not self.properties:
            raise invalid("filter", "says nothing: it needs `msg_type`, `key` or `properties`")
        return self


class FilterRules(Options):
    """Selects the messages of a route. The others are acknowledged; a message that cannot be decoded is never left out."""

    include: Annotated[tuple[FilterRule, ...], OneOrMore] = Field(
        default=(), description="One rule or a list: a message is selected if one of them holds; without rules, all are."
    )
    exclude: Annotated[tuple[FilterRule, ...], OneOrMore] = Field(
        default=(), description="One rule or a list: a message is left out if one of them holds."
    )
