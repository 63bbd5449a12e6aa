"""Base class of JSON bodies: typed fields here, members by name on the wire.

A field's type selects its codec: text, numbers, flags, other bodies, `tuple[X, ...]` as a list, `Mapping[K, V]` as an object with
texts, numbers or queues as keys. Members are written in the order of their names; None is not written. Unknown members are
ignored; a missing or null member takes the field's default, or an empty value if it has none.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

import orjson

from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_body, queue_key, queue_of, queue_of_key
from mqbridge.rocketmq.wire.fastjson import as_bool, as_int64, as_list, as_loose_text, as_members, as_text, decode_object
from mqbridge.rocketmq.wire.headers.base import camel


class Codec(NamedTuple):
    """Writes and reads one type of value; a missing value reads like `empty`.

    `read` raises TypeError, ValueError or OverflowError.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    empty: Any


def member(name: str, default: Any = MISSING, *, absent: Any = MISSING, codec: Codec | None = None, sparse: bool = False) -> Any:
    """Declare a field with this name on the wire, and optionally how it is written and read.

    `absent` replaces the default for a missing member, `codec` the codec of the type. A `sparse` member is not written if it is
    empty. The default `dict` is an empty map.
    """
    options = {"name": name, "absent": absent, "codec": codec, "sparse": sparse}
    return field(default_factory=dict, metadata=options) if default is dict else field(default=default, metadata=options)


class _Member(NamedTuple):
    """A field on the wire; a body keeps its members in the order of their names."""

    attribute: str
    name: str
    codec: Codec
    absent: Any
    """MISSING: the field has a default."""
    sparse: bool


class Body:
    """Base class of all bodies, and of the objects in them."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Encode to the body of a command."""
        return orjson.dumps(self.to_json())

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Decode a body. Raises RemoteProtocolError if it is not an object, or a member has the wrong type."""
        return decode_object(cls.__name__, body, cls.from_json)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        constants = self._also_written()
        members = {}
        for attribute, name, (write, _, _), _, sparse in _members(type(self)):
            value = getattr(self, attribute)
            written = None if value is None else write(value)
            if written is not None and (written or not sparse):
                members[name] = written
        return dict(sorted((members | constants).items())) if constants else members

    def _also_written(self) -> dict[str, Any]:
        """Members that others expect and we do not read: constants, and values derived from the fields."""
        return {}

    @classmethod
    def from_json(cls, members: Any) -> Self:
        """Read a JSON object. Raises TypeError, ValueError or OverflowError, which names the member."""
        if not isinstance(members, dict):
            raise TypeError(f"{str(members)[:80]} is no {cls.__name__}")
        values = {}
        for attribute, name, codec, absent, _ in _members(cls):
            value = members.get(name)
            if value is None:
                if absent is MISSING:
                    continue
                value = absent
            try:
                values[attribute] = codec.read(value)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"{name}: {error}") from error
        return cls(**values)


_members_by_class: dict[type[Any], tuple[_Member, ...]] = {}


def _members(body: type[Any]) -> tuple[_Member, ...]:
    try:
        return _members_by_class[body]
    except KeyError:
        _members_by_class[body] = members = _make_members(body)
        return members


def _make_members(body: type[Any]) -> tuple[_Member, ...]:
    hints = get_type_hints(body)
    members = []
    for declared in fields(body):
        codec = declared.metadata.get("codec") or codec_of(hints[declared.name])
        absent = declared.metadata.get("absent", MISSING)
        if absent is MISSING and declared.default is MISSING and declared.default_factory is MISSING:
            absent = codec.empty
        name = declared.metadata.get("name") or camel(declared.name)
        members.append(_Member(declared.name, name, codec, absent, declared.metadata.get("sparse", False)))
    return tuple(sorted(members, key=lambda member: member.name))


# --- codecs ---------------------------------------------------------------------------------------------------------------


def _identity(value: Any) -> Any:
    return value


_SCALARS = {
    str: Codec(_identity, as_text, ""),
    int: Codec(_identity, as_int64, 0),
    bool: Codec(_identity, as_bool, False),
    float: Codec(_identity, lambda value: float(value or 0), 0),
    Any: Codec(_identity, _identity, None),
    Queue: Codec(queue_body, queue_of, {}),
}
_IN_CONTAINERS = _SCALARS | {str: Codec(_identity, as_loose_text, "")}
_KEYS: dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    str: (_identity, _identity),
    int: (str, int),
    Queue: (queue_key, queue_of_key),
}


def codec_of(kind: Any) -> Codec:
    """Return the codec of a type."""
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin is types.UnionType:  # X | None
        return codec_of(args[0])
    if origin is tuple:
        return list_codec(args[0])
    if origin is Mapping:
        return _map_codec(*args)
    return Codec(Body.to_json, kind.from_json, {})


def _inner(kind: Any) -> Codec:
    return _IN_CONTAINERS.get(kind) or codec_of(kind)


def list_codec(kind: Any) -> Codec:
    """Return the codec of a tuple, written as a list."""
    write, read, _ = _inner(kind)
    return Codec(lambda values: [write(item) for item in values], lambda value: tuple(read(item) for item in as_list(value)), [])


def _map_codec(key_kind: Any, kind: Any) -> Codec:
    """Return the codec of a mapping, written as an object; nulls in it are skipped."""
    write, read, _ = _inner(kind)
    write_key, read_key = _KEYS[key_kind]

    def write_map(values: Mapping[Any, Any]) -> dict[str, Any]:
        ordered = sorted(values.items()) if key_kind is int else values.items()
        return {write_key(key): write(value) for key, value in ordered}

    def read_map(value: Any) -> dict[Any, Any]:
        return {read_key(key): read(item) for key, item in as_members(value).items()}

    return Codec(write_map, read_map, {})


def table_codec(kind: type[Body], key: str) -> Codec:
    """Return the codec of a tuple, written as an object keyed by the attribute `key` of each item."""
    return Codec(
        lambda values: {getattr(item, key): item.to_json() for item in values},
        lambda value: tuple(kind.from_json(item) for item in as_members(value).values()),
        {},
    )
