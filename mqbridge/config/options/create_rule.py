"""Options for creating a target topic: a switch, or its partitions and subscriptions."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator

from mqbridge.config.base import Name, OneOrMore, Options

_SWITCH = TypeAdapter(bool)


class CreateRule(Options):
    """How a target topic is created, if `create: true` is not enough."""

    partitions: int | None = Field(
        default=None,
        ge=1,
        description="Number of partitions to create it with, or grow it to; null means as many as the source has.",
    )
    subscriptions: Annotated[tuple[Name, ...], OneOrMore] = Field(
        default=(),
        description="Subscriptions that are created with the topic, before anything is written: they get every message, however "
        "late their consumers come. A missing one is created again at the next start, at the first message that is still there. "
        "Only for systems that keep messages for subscriptions (Pulsar, with `admin_url`).",
    )


def _read(value: Any, handler: ValidatorFunctionWrapHandler) -> bool | CreateRule:
    """Report only the problems of the given form, a mapping or a switch, not of both."""
    if isinstance(value, Mapping):
        return CreateRule.model_validate(value)
    made: bool | CreateRule = handler(value) if isinstance(value, CreateRule) else _SWITCH.validate_python(value)
    return made


Create = Annotated[bool | CreateRule, WrapValidator(_read)]
"""The type of `create`."""
