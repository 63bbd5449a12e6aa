"""Options for editing the messages that are written to a target."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from mqbridge.config.base import Name, Options, checked_by, option_error
from mqbridge.config.patterns import NameOrPattern
from mqbridge.config.templates import MessageTemplate
from mqbridge.errors import ConfigError
from mqbridge.message import RESERVED_PREFIX

ClearableField = Literal["key", "ordering_key", "keys", "msg_type", "event_time", "deliver_at"]
"""The fields of a message that `clear` may name."""


def _check_not_reserved(name: str) -> None:
    """Raise ConfigError if the gateway reserves the name of this property."""
    if name.startswith(RESERVED_PREFIX):
        raise ConfigError(
            f"properties that begin with {RESERVED_PREFIX!r} are reserved for the gateway", hint="Choose another name"
        )


WritableName = Annotated[Name, checked_by(_check_not_reserved)]
"""The name of a property that users may set."""


class EditRules(Options):
    """Edits of the messages that are written to this target: properties are removed, then renamed, then set."""

    remove: tuple[NameOrPattern, ...] = Field(
        default=(), description="Properties to remove, each a name or a `~PATTERN` that matches whole names."
    )
    rename: dict[Name, WritableName] = Field(default={}, description="New names of properties, by their old names.")
    set: dict[WritableName, MessageTemplate] = Field(
        default={},
        description="Values of properties by name, each a template. It may use `{key}`, `{msg_type}`, `{event_time}` (ms), "
        "`{position}` and `{property:NAME}` of the original message, `{cluster}`, `{topic}` and `{partition}` of the source, and "
        "named groups of the source's pattern. If the message has no value for one of them, the property is not set.",
    )
    clear: tuple[ClearableField, ...] = Field(
        default=(),
        description="Fields to clear. A field that also has a template is cleared only if its template has no result.",
    )
    msg_type: MessageTemplate | None = Field(
        default=None,
        description="Template of the message's type. A TubeMQ property `$msgType$` that contains the old type gets the new type.",
    )
    key: MessageTemplate | None = Field(default=None, description="Template of the routing key.", examples=["{property:user}"])
    ordering_key: MessageTemplate | None = Field(default=None, description="Template of the ordering key.")
    keys: tuple[MessageTemplate, ...] = Field(default=(), description="Templates of the index keys.")

    @model_validator(mode="after")
    def _check_not_empty(self) -> Self:
        if not self.model_dump(exclude_defaults=True):
            raise option_error("edit", "changes nothing", "Leave it out, or add `remove`, `rename`, `set` or another edit")
        return self


def templates_in(edit: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the path and text of every template in `edit`, which is not validated yet: values that are not text are skipped."""
    values: list[tuple[tuple[str | int, ...], Any]] = [((key,), edit.get(key)) for key in ("msg_type", "key", "ordering_key")]
    if isinstance(properties := edit.get("set"), dict):
        values += [(("set", name), value) for name, value in properties.items()]
    if isinstance(keys := edit.get("keys"), list):
        values += [(("keys", index), value) for index, value in enumerate(keys)]
    yield from ((path, value) for path, value in values if isinstance(value, str))
