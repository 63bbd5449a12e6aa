"""What the configuration's models are made of: their base, names, and texts that are checked when they are read."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, StringConstraints
from pydantic_core import PydanticCustomError

from mqbridge.errors import ConfigError
from mqbridge.message import RESERVED_PREFIX
from mqbridge.routing.filters import check_pattern
from mqbridge.routing.keys import check_key
from mqbridge.routing.templates import words_of
from mqbridge.routing.topics import compile_pattern, is_pattern, template_fields


class Part(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def wrong(kind: str, problem: str, hint: str = "") -> PydanticCustomError:
    """What a validator raises. The text is a value: braces in what the person wrote must not be taken for a template."""
    return PydanticCustomError(kind, "{problem}", {"problem": problem, "hint": hint})


def checked_by(check: Callable[[str], Any]) -> AfterValidator:
    """Turns a ConfigError of a check into a problem with a place."""

    def validate(value: str) -> str:
        try:
            check(value)
        except ConfigError as error:
            raise wrong("text", error.problem, error.hint) from error
        return value

    return AfterValidator(validate)


def _one_is_a_list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


OneOrMore = BeforeValidator(_one_is_a_list)
"""A single value may stand for a list of one."""


def _not_reserved(name: str) -> None:
    if name.startswith(RESERVED_PREFIX):
        raise ConfigError(
            f"properties under {RESERVED_PREFIX!r} are the gateway's own and cannot be written", hint="Choose another name"
        )


def _name_or_pattern(name: str) -> None:
    if is_pattern(name):
        compile_pattern(name)


Name = Annotated[str, StringConstraints(min_length=1)]
SourceTopic = Annotated[Name, checked_by(_name_or_pattern)]
TargetTopic = Annotated[Name, checked_by(template_fields)]
Pattern = Annotated[Name, checked_by(check_pattern)]
NameOrPattern = Annotated[Name, checked_by(_name_or_pattern)]
KeyName = Annotated[Name, checked_by(check_key)]
MessageTemplate = Annotated[str, checked_by(words_of)]
WritableName = Annotated[Name, checked_by(_not_reserved)]
