"""Base class of JSON bodies: typed fields of a data class here, members of a JSON object on the wire.

The type of a field selects its codec: text, numbers, booleans and other bodies; `tuple[X, ...]` for a list; `Mapping[K, V]` for
an object whose keys are texts, numbers or queues. Members are written in the order of their names; a field that is None is not
written. Unknown members are ignored; for a missing or null member, the field has its default, or an empty value if it has none.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields
from typing import Any, NamedTuple, Self, get_args, get_origin, get_type_hints

import orjson

from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_body, queue_key, queue_of, queue_of_key
from mqbridge.rocketmq.wire.fastjson import as_bool, as_int64, as_list, as_loose_text, as_members, as_text, decode_object
from mqbridge.rocketmq.wire.headers.base import camel_case


class Codec(NamedTuple):
    """Converts one type of value: `write` to its JSON value, `read` back from it.

    A missing member of a field without a default reads like `empty`, a JSON value. `read` raises TypeError, ValueError or
    OverflowError.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    empty: Any


def member(name: str, default: Any = MISSING, *, absent: Any = MISSING, codec: Codec | None = None, sparse: bool = False) -> Any:
    """Declare a field with this name on the wire.

    `default` is the default of the constructor; `dict` stands for a new empty dict. `absent` is the JSON value to read instead of
    a missing member, if not the default. `codec` replaces the codec of the field's type. A `sparse` member is not written if it
    is empty.
    """
    options = {"name": name, "absent": absent, "codec": codec, "sparse": sparse}
    return field(default_factory=dict, metadata=options) if default is dict else field(default=default, metadata=options)


class _Member(NamedTuple):
    """A field of a body and its member on the wire."""

    attribute: str
    name: str
    codec: Codec
    absent: Any
    """The JSON value to read instead of a missing member; MISSING if the default of the field applies."""
    sparse: bool
    """True if an empty value is not written."""


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
        write_only = self._write_only_members()
        members = {}
        for attribute, name, (write, _, _), _, sparse in _members(type(self)):
            value = getattr(self, attribute)
            written = None if value is None else write(value)
            if written is not None and (written or not sparse):
                members[name] = written
        return dict(sorted((members | write_only).items())) if write_only else members

    def _write_only_members(self) -> dict[str, Any]:
        """Return members that peers expect but mqbridge does not read: constants, and values that follow from the fields."""
        return {}

    @classmethod
    def from_json(cls, members: Any) -> Self:
        """Build a body from a JSON object. Raises TypeError or ValueError; for an invalid member, the text names it."""
        if not isinstance(members, dict):
            raise TypeError(f"{str(members)[:80]} is not the JSON object of a {cls.__name__}")
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
    """Return the members of a body in the order of their names, from a cache."""
    try:
        return _members_by_class[body]
    except KeyError:
        _members_by_class[body] = members = _build_members(body)
        return members


def _build_members(body: type[Any]) -> tuple[_Member, ...]:
    hints = get_type_hints(body)
    members = []
    for declared in fields(body):
        codec = declared.metadata.get("codec") or codec_of(hints[declared.name])
        absent = declared.metadata.get("absent", MISSING)
        if absent is MISSING and declared.default is MISSING and declared.default_factory is MISSING:
            absent = codec.empty
        name = declared.metadata.get("name") or camel_case(declared.name)
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
_SCALARS_IN_CONTAINERS = _SCALARS | {str: Codec(_identity, as_loose_text, "")}
"""The codecs of scalars in lists and maps, where a text may be a number or boolean in the JSON."""
_KEY_CODECS: dict[Any, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    str: (_identity, _identity),
    int: (str, int),
    Queue: (queue_key, queue_of_key),
}
"""For each type of a mapping's keys, the functions that write a key and read it back."""


def codec_of(value_type: Any) -> Codec:
    """Return the codec of a field with this type annotation."""
    if value_type in _SCALARS:
        return _SCALARS[value_type]
    origin, args = get_origin(value_type), get_args(value_type)
    if origin is types.UnionType:  # X | None
        return codec_of(args[0])
    if origin is tuple:
        return list_codec(args[0])
    if origin is Mapping:
        return _map_codec(*args)
    return Codec(Body.to_json, value_type.from_json, {})  # any other type is a subclass of Body


def _element_codec(element_type: Any) -> Codec:
    """Return the codec of the elements of a list, or of the values of a map."""
    return _SCALARS_IN_CONTAINERS.get(element_type) or codec_of(element_type)


def list_codec(element_type: Any) -> Codec:
    """Return the codec of a tuple of these elements, which is written as a list."""
    write, read, _ = _element_codec(element_type)
    return Codec(lambda values: [write(item) for item in values], lambda value: tuple(read(item) for item in as_list(value)), [])


def _map_codec(key_type: Any, value_type: Any) -> Codec:
    """Return the codec of a mapping, which is written as an object; members that are null are skipped."""
    write, read, _ = _element_codec(value_type)
    write_key, read_key = _KEY_CODECS[key_type]

    def write_map(values: Mapping[Any, Any]) -> dict[str, Any]:
        ordered = sorted(values.items()) if key_type is int else values.items()
        return {write_key(key): write(value) for key, value in ordered}

    def read_map(value: Any) -> dict[Any, Any]:
        return {read_key(key): read(item) for key, item in as_members(value).items()}

    return Codec(write_map, read_map, {})


def table_codec(body: type[Body], key: str) -> Codec:
    """Return the codec of a tuple of bodies, written as an object: the attribute `key` of a body names its member."""
    return Codec(
        lambda values: {getattr(item, key): item.to_json() for item in values},
        lambda value: tuple(body.from_json(item) for item in as_members(value).values()),
        {},
    )
