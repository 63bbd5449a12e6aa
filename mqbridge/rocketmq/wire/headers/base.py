"""Base class of the headers of commands. A header has typed attributes; on the wire they are texts by name (extFields)."""

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple, Self, get_type_hints

from mqbridge.errors import RemoteProtocolError

_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1


def named(name: str, default: Any = MISSING) -> Any:
    """Declare a field that has this name on the wire."""
    return field(default=default, metadata={"name": name})


class _WireField(NamedTuple):
    """A field of a header: its name in Python, its name on the wire and its type (str, int or bool)."""

    attribute: str
    name: str
    value_type: type
    required: bool


_fields_by_header: dict[type[Any], tuple[_WireField, ...]] = {}


def _wire_fields(header: type[Any]) -> tuple[_WireField, ...]:
    try:
        return _fields_by_header[header]
    except KeyError:
        _fields_by_header[header] = wire_fields = _make_wire_fields(header)
        return wire_fields


def _make_wire_fields(header: type[Any]) -> tuple[_WireField, ...]:
    hints = get_type_hints(header)
    wire_fields = []
    for declared in fields(header):
        hint = hints[declared.name]
        value_type = next(candidate for candidate in (bool, int, str) if hint in (candidate, candidate | None))
        name = declared.metadata.get("name") or camel_case(declared.name)
        wire_fields.append(_WireField(declared.name, name, value_type, required=declared.default is MISSING))
    return tuple(wire_fields)


def camel_case(name: str) -> str:
    """Return the default name on the wire of an attribute: `queueId` for `queue_id`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _parse(value_type: type, text: str) -> Any:
    """Parse the text of a field. Raises ValueError."""
    if value_type is str:
        return text
    if value_type is bool:
        return text.lower() == "true"  # everything else is false, as in Java
    value = int(text)
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise ValueError(f"{value} exceeds 64 bits")
    return value


class Header:
    """Base class of all headers; the fields of a subclass define its encoding."""

    __slots__ = ()

    def encode(self) -> dict[str, str]:
        """Return the extFields of a command, without the fields that are None."""
        ext = {}
        for attribute, name, value_type, _ in _wire_fields(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                ext[name] = value if value_type is str else str(value) if value_type is int else "true" if value else "false"
        return ext

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Parse extFields; unknown names are ignored. A blank text for an optional number counts as missing.

        A required field that is missing is also searched with other capitalization.

        Raises RemoteProtocolError if a required field is missing, or a number is invalid.
        """
        values: dict[str, Any] = {}
        by_lower_name: dict[str, str] | None = None
        for attribute, name, value_type, required in _wire_fields(cls):
            text = ext.get(name)
            if text is None:
                if not required:
                    continue
                if by_lower_name is None:
                    by_lower_name = {key.lower(): text for key, text in ext.items()}
                text = by_lower_name.get(name.lower())
                if text is None:
                    names = ", ".join(ext) or "none"
                    raise RemoteProtocolError(f"{cls.__name__}: the required field {name} is missing; the fields are: {names}")
            try:
                values[attribute] = _parse(value_type, text)
            except ValueError as error:
                if required or text.strip():
                    raise RemoteProtocolError(f"{cls.__name__}: the field {name} is {text[:40]!r}: {error}") from error
        return cls(**values)
