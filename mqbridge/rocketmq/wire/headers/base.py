"""What a header is: typed fields here, text by name on the wire."""

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple, Self, get_type_hints

from mqbridge.errors import RemoteProtocolError

_MIN, _MAX = -(1 << 63), (1 << 63) - 1


def named(name: str, default: Any = MISSING) -> Any:
    """A field that has this name on the wire."""
    return field(default=default, metadata={"name": name})


class _Plan(NamedTuple):
    attribute: str
    name: str
    kind: type
    required: bool


_plans: dict[type[Any], tuple[_Plan, ...]] = {}


def _plan(header: type[Any]) -> tuple[_Plan, ...]:
    try:
        return _plans[header]
    except KeyError:
        _plans[header] = plan = _make_plan(header)
        return plan


def _make_plan(header: type[Any]) -> tuple[_Plan, ...]:
    hints = get_type_hints(header)
    plans = []
    for one in fields(header):
        kind = next(kind for kind in (bool, int, str) if hints[one.name] in (kind, kind | None))
        plans.append(_Plan(one.name, one.metadata.get("name") or camel(one.name), kind, one.default is MISSING))
    return tuple(plans)


def camel(name: str) -> str:
    """The name on the wire of a field that declares no other."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _read(kind: type, text: str) -> Any:
    if kind is str:
        return text
    if kind is bool:
        return text.lower() == "true"  # everything else is false, as in Java
    value = int(text)
    if not _MIN <= value <= _MAX:
        raise ValueError(f"{value} exceeds 64 bits")
    return value


class Header:
    """The base of all headers."""

    __slots__ = ()

    def encode(self) -> dict[str, str]:
        """The extFields of a command."""
        ext = {}
        for attribute, name, kind, _ in _plan(type(self)):
            value = getattr(self, attribute)
            if value is not None:
                ext[name] = value if kind is str else str(value) if kind is int else "true" if value else "false"
        return ext

    @classmethod
    def decode(cls, ext: Mapping[str, str]) -> Self:
        """Read extFields; unknown ones are ignored. Raises RemoteProtocolError when one is missing or no number."""
        said: dict[str, Any] = {}
        folded: dict[str, str] | None = None
        for attribute, name, kind, required in _plan(cls):
            text = ext.get(name)
            if text is None:
                if not required:
                    continue
                if folded is None:
                    folded = {key.lower(): value for key, value in ext.items()}
                text = folded.get(name.lower())
                if text is None:
                    raise RemoteProtocolError(f"{cls.__name__}: {name} is missing among the fields {', '.join(ext) or '(none)'}")
            try:
                said[attribute] = _read(kind, text)
            except ValueError as error:
                if required or text.strip():
                    raise RemoteProtocolError(f"{cls.__name__}: {name} is {text[:40]!r}: {error}") from error
        return cls(**said)
