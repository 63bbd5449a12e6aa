"""Base class of headers: typed fields here, text by name on the wire."""

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple, Self, get_type_hints

from mqbridge.errors import RemoteProtocolError

_MIN, _MAX = -(1 << 63), (1 << 63) - 1


def named(name: str, default: Any = MISSING) -> Any:
    """A field that has this name on the wire."""
    return field(default=default, metadata={"name": name})


class _WireField(NamedTuple):
    attribute: str
    name: str
    kind: type
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
        kind = next(kind for kind in (bool, int, str) if hints[declared.name] in (kind, kind | None))
        wire_fields.append(
            _WireField(declared.name, declared.metadata.get("name") or camel(declared.name), kind, declared.default is MISSING)
        )
    return tuple(wire_fields)


def camel(name: str) -> str:
    """Return the default name on the wire of an attribute."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _parse(kind: type, text: str) -> Any:
    if kind is str:
        return text
    if kind is bool:
        return text.lower() == "true"  # everything else is false, as in Java
    value = int(text)
    if not _MIN <= value <= _MAX:
        raise ValueError(f"{value} exceeds 64 bits")
    return value


class Header:
    """Base class of all headers."""

    __slots__ = ()

    def encode(self) -> dict[str, str]:
        """Return the extFields of a command."""
        ext = {}
        for attribute, name, kind, _ in _wire_fields(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                ext[name] = value if kind is str else str(value) if kind is int else "true" if value else "false"
        return ext

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Parse extFields, ignoring unknown ones. Raises RemoteProtocolError if a field is missing or not a number."""
        values: dict[str, Any] = {}
        by_lower_name: dict[str, str] | None = None
        for attribute, name, kind, required in _wire_fields(cls):
            text = ext.get(name)
            if text is None:
                if not required:
                    continue
                if by_lower_name is None:
                    by_lower_name = {key.lower(): text for key, text in ext.items()}
                text = by_lower_name.get(name.lower())
                if text is None:
                    raise RemoteProtocolError(f"{cls.__name__}: {name} is missing among the fields {', '.join(ext) or '(none)'}")
            try:
                values[attribute] = _parse(kind, text)
            except ValueError as error:
                if required or text.strip():
                    raise RemoteProtocolError(f"{cls.__name__}: {name} is {text[:40]!r}: {error}") from error
        return cls(**values)
