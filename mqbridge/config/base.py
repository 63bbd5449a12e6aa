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


def invalid(kind: str, problem: str, hint: str = "") -> PydanticCustomError:
    """Make the error of a check. The text is passed as a value: pydantic would read braces in the message as a template."""
    return PydanticCustomError(kind, "{problem}", {"problem": problem, "hint": hint})


def checked_by(check: Callable[[str], Any]) -> AfterValidator:
    """Validate a text with a function that raises ConfigError; the text is not changed."""

    def validate(value: str) -> str:
        try:
            check(value)
        except ConfigError as error:
            raise invalid("text", error.problem, error.hint) from error
        return value

    return AfterValidator(validate)


class _OneOrMore:
    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_as_list, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), ONE_OR_MORE: True}


def _as_list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


OneOrMore = _OneOrMore()
"""Annotates a tuple: a single value is accepted as a list of one."""

Name = Annotated[str, StringConstraints(min_length=1)]
