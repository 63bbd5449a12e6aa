"""Options of creating a target topic: on or off, or what is made with it."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator

from mqbridge.config.base import Name, OneOrMore, Options

_SWITCH = TypeAdapter(bool)


class CreateRule(Options):
    """How a target topic is created, where more than `create: true` is to be said."""

    partitions: int | None = Field(
        default=None,
        ge=1,
        description="Create it with so many partitions, or grow it to them, whatever the source has; null is as many as that.",
    )
    subscriptions: Annotated[tuple[Name, ...], OneOrMore] = Field(
        default=(),
        description="Subscriptions that are made with the topic, before anything is written: they get every message, however late"
        " their consumers come. Where one is missing at a start it is made again, at the first message that is still there. Only"
        " for systems that keep messages for subscriptions (Pulsar, with `admin_url`).",
    )


def _read(value: Any, handler: ValidatorFunctionWrapHandler) -> bool | CreateRule:
    """Problems are those of what was written, a mapping or a switch, and not of both."""
    if isinstance(value, Mapping):
        return CreateRule.model_validate(value)
    made: bool | CreateRule = handler(value) if isinstance(value, CreateRule) else _SWITCH.validate_python(value)
    return made


Create = Annotated[bool | CreateRule, WrapValidator(_read)]
"""What `create` may be."""
