"""The base of every group of options, names, and texts that are checked when they are read."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, StringConstraints
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mqbridge.errors import ConfigError

ONE_OR_MORE = "oneOrMore"
"""Marks an array in the schema of a model for which a single item may stand; `mqbridge.config.schema` replaces it."""


class Options(BaseModel):
    """A group of options: unknown keys are refused, and nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def invalid(kind: str, problem: str, hint: str = "") -> PydanticCustomError:
    """The error that a check raises. The text is a value: braces in it must not be taken for a template."""
    return PydanticCustomError(kind, "{problem}", {"problem": problem, "hint": hint})


def checked_by(check: Callable[[str], Any]) -> AfterValidator:
    """Validate a text by a function that raises ConfigError; the text stays as it is."""

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
"""Annotates a tuple: a single value may stand for a list of one."""

Name = Annotated[str, StringConstraints(min_length=1)]
