"""The base class of option groups, and types for names and checked texts."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, StringConstraints
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mqbridge.errors import ConfigError

ONE_OR_MORE = "oneOrMore"
"""Marks an array in the JSON Schema for which a single item is valid too; `mqbridge.config.schema` replaces the mark."""


class Options(BaseModel):
    """A group of options: rejects unknown keys, and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def option_error(error_type: str, problem: str, hint: str = "") -> PydanticCustomError:
    """Make the error that a check of an option raises.

    `error_type` is the error's name for pydantic, `hint` tells how to correct the option.
    The problem is passed as a value, because pydantic would read braces in the message as a template.
    """
    return PydanticCustomError(error_type, "{problem}", {"problem": problem, "hint": hint})


def checked_by(check: Callable[[str], Any]) -> AfterValidator:
    """Return a validator that calls `check`, which raises ConfigError for an invalid text. The text is not changed."""

    def validate(value: str) -> str:
        try:
            check(value)
        except ConfigError as error:
            raise option_error("text", error.problem, error.hint) from error
        return value

    return AfterValidator(validate)


class _OneOrMore:
    """An annotation that wraps a single value in a list before validation, and sets the mark ONE_OR_MORE in the JSON Schema."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_as_list, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), ONE_OR_MORE: True}


def _as_list(value: Any) -> Any:
    """Return the value, in a list unless it is a list or a tuple."""
    return value if isinstance(value, (list, tuple)) else [value]


OneOrMore = _OneOrMore()
"""Annotates a tuple option: the file may have a single value in place of a list with one item."""

Name = Annotated[str, StringConstraints(min_length=1)]
"""A text that is not empty."""
