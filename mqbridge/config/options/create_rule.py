"""Options for creating a target topic: true or false, or its partitions and subscriptions."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator

from mqbridge.config.base import Name, OneOrMore, Options

_BOOLEAN = TypeAdapter(bool)


class CreateRule(Options):
    """Creates a target topic with these partitions and subscriptions; `create: true` is the same with all defaults."""

    partitions: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Number of partitions. A new topic is created with it, and a smaller topic is grown to it; null means as "
        "many as the source has (for a dead-letter topic: one).",
    )
    subscriptions: Annotated[tuple[Name, ...], OneOrMore] = Field(
        default=(),
        description="Subscriptions that are created with the topic, before the first message is written, so they get every "
        "message even if their consumers connect later. A missing subscription is created again at the next start, at the first "
        "message that is still stored. Only for systems that store messages for subscriptions (Pulsar, with `admin_url`).",
    )


def _validate(value: Any, handler: ValidatorFunctionWrapHandler) -> bool | CreateRule:
    """Validate a mapping as CreateRule, accept a CreateRule, and validate any other value as a boolean.

    So errors mention only one of the two forms.
    """
    if isinstance(value, Mapping):
        return CreateRule.model_validate(value)
    create: bool | CreateRule = handler(value) if isinstance(value, CreateRule) else _BOOLEAN.validate_python(value)
    return create


Create = Annotated[bool | CreateRule, WrapValidator(_validate)]
"""The type of a target's option `create`."""
