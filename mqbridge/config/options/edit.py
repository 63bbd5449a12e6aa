"""Options for editing messages on their way to a target."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mqbridge.config.base import Name, Options, checked_by, invalid
from mqbridge.config.patterns import NameOrPattern
from mqbridge.config.templates import MessageTemplate
from mqbridge.errors import ConfigError
from mqbridge.message import RESERVED_PREFIX

Clearable = Literal["key", "ordering_key", "keys", "msg_type", "event_time", "deliver_at"]


def _check_not_reserved(name: str) -> None:
    if name.startswith(RESERVED_PREFIX):
        raise ConfigError(
            f"properties under {RESERVED_PREFIX!r} are the gateway's own and cannot be written", hint="Choose another name"
        )


WritableName = Annotated[Name, checked_by(_check_not_reserved)]


class EditRules(Options):
    """Edits of messages on their way to this target: properties are removed, then renamed, then set."""

    remove: tuple[NameOrPattern, ...] = Field(
        default=(), description="Properties to remove, each a name or a `~PATTERN` that matches whole names."
    )
    rename: dict[Name, WritableName] = Field(default={}, description="New names of properties, by their old names.")
    set: dict[WritableName, MessageTemplate] = Field(
        default={},
        description="Values of properties by name, each a template that reads the original message: `{key}`, `{msg_type}`, "
        "`{event_time}` (ms), `{position}`, `{property:NAME}`, `{cluster}`, `{topic}` and `{partition}` of the source, named "
        "groups of its pattern. A template with a word without a value in the message changes nothing.",
    )
    clear: tuple[Clearable, ...] = Field(
        default=(), description="Fields to clear; a field that is also set here is cleared only if its template gives nothing."
    )
    msg_type: MessageTemplate | None = Field(
        default=None, description="The message's type: a template. A `$msgType$` property with the old type gets the new one."
    )
    key: MessageTemplate | None = Field(default=None, description="The routing key: a template.", examples=["{property:user}"])
    ordering_key: MessageTemplate | None = Field(default=None, description="The ordering key: a template.")
    keys: tuple[MessageTemplate, ...] = Field(default=(), description="The index keys: a template for each.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.model_dump(exclude_defaults=True):
            raise invalid("edit", "changes nothing", "Leave it out, or say what to `remove`, `rename` or `set`")
        return self


def templates_in(edit: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every template of the edits as written, with its path; values that are not text are skipped."""
    values: list[tuple[tuple[str | int, ...], Any]] = [((key,), edit.get(key)) for key in ("msg_type", "key", "ordering_key")]
    if isinstance(properties := edit.get("set"), dict):
        values += [(("set", name), value) for name, value in properties.items()]
    if isinstance(keys := edit.get("keys"), list):
        values += [(("keys", index), value) for index, value in enumerate(keys)]
    yield from ((path, value) for path, value in values if isinstance(value, str))
