"""The base of JSON bodies: typed fields here, members by name on the wire.

A field's type says how it is written and read: text, numbers, flags, other bodies, `tuple[X, ...]` as a list, `Mapping[K, V]`
as an object whose keys are texts, numbers or queues. Members are written in the order of their names; None is not written.
Unknown members are ignored; one that is missing or null takes the field's default, and an empty value where there is none.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

import orjson

from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_body, queue_key, queue_of, queue_of_key
from mqbridge.rocketmq.wire.headers.base import camel
from mqbridge.rocketmq.wire.lenient import flag, items, loose_text, members_of, read, text, whole


class Codec(NamedTuple):
    """How a kind of value is written and read; a missing one reads like `empty`.

    `read` raises TypeError, ValueError or OverflowError.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    empty: Any


def member(name: str, default: Any = MISSING, *, absent: Any = MISSING, codec: Codec | None = None, sparse: bool = False) -> Any:
    """A field that has this name on the wire (without: its own in camel case), or another way to be written and read.

    `absent` is what a missing member reads as where that is not the default, `codec` takes the place of the one that the type
    implies. A `sparse` member is not written when it is empty. The default `dict` is an empty map.
    """
    options = {"name": name, "absent": absent, "codec": codec, "sparse": sparse}
    return field(default_factory=dict, metadata=options) if default is dict else field(default=default, metadata=options)


class _Member(NamedTuple):
    """A field as it is written; a body keeps its members in the order of their names."""

    attribute: str
    name: str
    codec: Codec
    absent: Any
    """MISSING: the field has a default."""
    sparse: bool


class Body:
    """The base of all bodies, and of the objects in them."""

    __slots__ = ()

    def encode(self) -> bytes:
        """The body of a command."""
        return orjson.dumps(self.to_json())

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Read a body. Raises RemoteProtocolError when it is no object, or a member is not what its field says."""
        return read(cls.__name__, body, cls.from_json)

    def to_json(self) -> dict[str, Any]:
        """The object that is written."""
        more = self._also_written()
        members = {}
        for attribute, name, (write, _, _), _, sparse in _members(type(self)):
            value = getattr(self, attribute)
            written = None if value is None else write(value)
            if written is not None and (written or not sparse):
                members[name] = written
        return dict(sorted((members | more).items())) if more else members

    def _also_written(self) -> dict[str, Any]:
        """Members that others expect and we do not read: constants, and what follows from the fields."""
        return {}

    @classmethod
    def from_json(cls, members: Any) -> Self:
        """Read an object. Raises TypeError, ValueError or OverflowError, which says where."""
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


_known: dict[type[Any], tuple[_Member, ...]] = {}


def _members(body: type[Any]) -> tuple[_Member, ...]:
    try:
        return _known[body]
    except KeyError:
        _known[body] = members = _make_members(body)
        return members


def _make_members(body: type[Any]) -> tuple[_Member, ...]:
    hints = get_type_hints(body)
    members = []
    for one in fields(body):
        codec = one.metadata.get("codec") or codec_of(hints[one.name])
        absent = one.metadata.get("absent", MISSING)
        if absent is MISSING and one.default is MISSING and one.default_factory is MISSING:
            absent = codec.empty
        name = one.metadata.get("name") or camel(one.name)
        members.append(_Member(one.name, name, codec, absent, one.metadata.get("sparse", False)))
    return tuple(sorted(members, key=lambda one: one.name))


# --- codecs ---------------------------------------------------------------------------------------------------------------


def _same(value: Any) -> Any:
    return value


_SCALARS = {
    str: Codec(_same, text, ""),
    int: Codec(_same, whole, 0),
    bool: Codec(_same, flag, False),
    float: Codec(_same, lambda value: float(value or 0), 0),
    Any: Codec(_same, _same, None),
    Queue: Codec(queue_body, queue_of, {}),
}
_IN_CONTAINERS = _SCALARS | {str: Codec(_same, loose_text, "")}
_KEYS: dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    str: (_same, _same),
    int: (str, int),
    Queue: (queue_key, queue_of_key),
}


def codec_of(kind: Any) -> Codec:
    """How values of a type are written and read."""
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
    """A tuple as a list."""
    write, read, _ = _inner(kind)
    return Codec(lambda values: [write(one) for one in values], lambda value: tuple(read(one) for one in items(value)), [])


def _map_codec(key_kind: Any, kind: Any) -> Codec:
    """A mapping as an object; nulls in it are left out."""
    write, read, _ = _inner(kind)
    write_key, read_key = _KEYS[key_kind]

    def write_map(values: Mapping[Any, Any]) -> dict[str, Any]:
        ordered = sorted(values.items()) if key_kind is int else values.items()
        return {write_key(key): write(one) for key, one in ordered}

    def read_map(value: Any) -> dict[Any, Any]:
        return {read_key(key): read(one) for key, one in members_of(value).items()}

    return Codec(write_map, read_map, {})


def table_codec(kind: type[Body], key: str) -> Codec:
    """A tuple as an object, by the attribute `key` of each."""
    return Codec(
        lambda values: {getattr(one, key): one.to_json() for one in values},
        lambda value: tuple(kind.from_json(one) for one in members_of(value).values()),
        {},
    )
