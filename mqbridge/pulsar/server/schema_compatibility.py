"""Which schemas are valid, equal and compatible, by the rules of a broker with its default strategy FULL.

A broker 4.0 showed these rules:

- A schema that is new to a topic must be compatible with the latest one, not with those before it. For a producer it must read
  the data of the latest schema, and the latest schema must read its data (FULL); for a consumer the first is enough (BACKWARD).
- The types must be the same: AVRO and JSON are not compatible, nor are two primitive types. Primitive types have no definition.
- AVRO and JSON are compared as Avro schemas (`avro_schemas`). PROTOBUF only has to be an Avro schema, and PROTOBUF_NATIVE only
  has to keep the name of its root message: fields are not compared.
- KEY_VALUE: the types of key and value must stay; key and value are compared each by itself.
- A schema that differs from an older one only in docs, aliases, spaces, its name or its properties is the same version.

It hangs, or closes the connection, on some invalid schemas; here they are refused. It takes two KEY_VALUE schemas with the same
definitions for one version whatever their types and their encoding are, although their messages cannot be read with each other;
here they are different schemas, see `MEANINGFUL`.
"""

import base64
import binascii
import hashlib
import json
import struct
from collections.abc import Mapping
from functools import lru_cache

from mqbridge.pulsar.server.avro_schemas import AvroType, InvalidAvro, identity, parse_avro, unreadable
from mqbridge.pulsar.wire.schemas import Schema, Types

VERSION_BYTES = 8
CACHED_IDENTITIES = 2_000
"""Number of Avro schemas whose identity is kept: a new schema of a topic is compared with all that it had."""
MEANINGFUL: Mapping[str, str] = {"key.schema.type": "BYTES", "value.schema.type": "BYTES", "kv.encoding.type": "INLINE"}
"""Properties of a KEY_VALUE schema that belong to its definition, with their defaults. No other properties of schemas do."""
TYPE_NAMES: Mapping[int, str] = {
    Types.NoSchema: "NONE",
    Types.String: "STRING",
    Types.Json: "JSON",
    Types.Protobuf: "PROTOBUF",
    Types.Avro: "AVRO",
    Types.Bool: "BOOLEAN",
    Types.Int8: "INT8",
    Types.Int16: "INT16",
    Types.Int32: "INT32",
    Types.Int64: "INT64",
    Types.Float: "FLOAT",
    Types.Double: "DOUBLE",
    Types.Date: "DATE",
    Types.Time: "TIME",
    Types.Timestamp: "TIMESTAMP",
    Types.KeyValue: "KEY_VALUE",
    Types.Instant: "INSTANT",
    Types.LocalDate: "LOCAL_DATE",
    Types.LocalTime: "LOCAL_TIME",
    Types.LocalDateTime: "LOCAL_DATE_TIME",
    Types.ProtobufNative: "PROTOBUF_NATIVE",
    Types.AutoConsume: "AUTO_CONSUME",
    Types.External: "EXTERNAL",
}
"""Names of the types, as texts of brokers and SDKs have them."""

_TYPES: Mapping[str, int] = {name: type_ for type_, name in TYPE_NAMES.items()} | {"BYTES": Types.NoSchema}
_AVRO = frozenset({Types.Avro, Types.Json, Types.Protobuf})
_COMPARED = frozenset({Types.Avro, Types.Json})
_OTHERS = _AVRO | {Types.KeyValue, Types.ProtobufNative}
"""Types that have a definition."""
REFUSED_TYPES = frozenset({Types.AutoConsume, Types.External})
"""Types that no topic can have."""
_LENGTH = struct.Struct(">I")


class InvalidSchema(ValueError):
    """A schema that no topic can have; the text says why."""


def version_of(schema: Schema) -> bytes:
    """Return the version of a schema: 8 bytes of the SHA-256 of its type, its definition and its meaningful properties.

    So a schema has the same version in every gateway. The highest bit of each byte is 0: the Python client reads versions as
    UTF-8, and fails otherwise, and tools show versions as numbers, and take a negative one for an option.
    """
    hashed = hashlib.sha256(f"{schema.type} {' '.join(_meaning(schema))} ".encode())
    hashed.update(schema.definition)
    return bytes(byte & 0x7F for byte in hashed.digest()[:VERSION_BYTES])


def check_valid(schema: Schema) -> None:
    """Raise InvalidSchema if no topic can have this schema."""
    name = TYPE_NAMES.get(schema.type)
    if name is None or schema.type in REFUSED_TYPES:
        raise InvalidSchema(f"a topic cannot have a schema of type {name or schema.type}")
    if schema.type not in _OTHERS:
        if schema.definition:
            raise InvalidSchema(f"a schema of type {name} has no definition, but this one has {len(schema.definition)} bytes")
    elif schema.type in _AVRO:
        if _avro(schema).kind == "union":
            raise InvalidSchema(f"a union is not a schema of type {name}")
    elif schema.type == Types.ProtobufNative:
        _root_message(schema)
    else:
        for part in _key_and_value(schema):
            check_valid(part)


def are_equal(one: Schema, other: Schema) -> bool:
    """Return True if two valid schemas are the same version of a topic's schema."""
    if one.type != other.type:
        return False
    if one.definition == other.definition and _meaning(one) == _meaning(other):
        return True
    if one.type in _AVRO:
        return _identity(one.definition) == _identity(other.definition)
    if one.type == Types.KeyValue:
        pairs = zip(_key_and_value(one), _key_and_value(other), strict=True)
        return _meaning(one) == _meaning(other) and all(are_equal(*pair) for pair in pairs)
    return False


def incompatibility(new: Schema, latest: Schema, *, both_ways: bool) -> str | None:
    """Return why a valid schema is not compatible with the latest one of a topic; None if it is.

    `both_ways` is True for producers: each must read the other's data. Otherwise the new one must read data of the latest one.
    """
    if new.type != latest.type:
        return f"the schema has type {TYPE_NAMES[new.type]}, and that of the topic {TYPE_NAMES.get(latest.type, latest.type)}"
    if new.type in _COMPARED:
        one, other = _avro(new), _avro(latest)
        if (problem := unreadable(one, other)) is not None:
            return f"data of the topic's schema cannot be read with the new one: {problem}"
        if both_ways and (problem := unreadable(other, one)) is not None:
            return f"data of the new schema cannot be read with the topic's: {problem}"
    elif new.type == Types.ProtobufNative:
        root, latest_root = _root_message(new), _root_message(latest)
        if root != latest_root:
            return f"the root message is {root}, and that of the topic's schema {latest_root}"
    elif new.type == Types.KeyValue:
        pairs = zip(("key", "value"), _key_and_value(new), _key_and_value(latest), strict=True)
        for title, part, latest_part in pairs:
            if (problem := incompatibility(part, latest_part, both_ways=both_ways)) is not None:
                return f"{title}: {problem}"
    return None


@lru_cache(maxsize=CACHED_IDENTITIES)
def _identity(definition: bytes) -> bytes:
    return hashlib.sha256(identity(parse_avro(definition)).encode()).digest()


def _avro(schema: Schema) -> AvroType:
    try:
        return parse_avro(schema.definition)
    except InvalidAvro as error:
        raise InvalidSchema(f"invalid definition of a schema of type {TYPE_NAMES[schema.type]}: {error}") from error


def _meaning(schema: Schema) -> list[str]:
    """Return the values of the meaningful properties."""
    if schema.type != Types.KeyValue:
        return []
    properties = dict(schema.properties)
    return [properties.get(name, default) for name, default in MEANINGFUL.items()]


def _key_and_value(schema: Schema) -> tuple[Schema, Schema]:
    """Return the schemas of key and value: each definition is preceded by its length."""
    parts, at, data = list[Schema](), 0, schema.definition
    for name in _meaning(schema)[:2]:
        if len(data) < at + _LENGTH.size:
            raise InvalidSchema("a schema of type KEY_VALUE ends early")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if len(data) < at + length:
            raise InvalidSchema("a schema of type KEY_VALUE ends early")
        if name not in _TYPES or _TYPES[name] == Types.KeyValue:
            raise InvalidSchema(f"a key or value cannot have the type {name[:50]}")
        parts.append(Schema(_TYPES[name], data[at : at + length]))
        at += length
    if at != len(data):
        raise InvalidSchema("a schema of type KEY_VALUE has bytes after its end")
    return parts[0], parts[1]


@lru_cache(maxsize=64)
def _root_message_of(definition: bytes) -> str:
    try:
        parsed = json.loads(definition)
        base64.b64decode(parsed["fileDescriptorSet"], validate=True)
        root = parsed["rootMessageTypeName"]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise InvalidSchema("invalid definition of a schema of type PROTOBUF_NATIVE") from error
    if not isinstance(root, str):
        raise InvalidSchema("the root message of a schema of type PROTOBUF_NATIVE has no name")
    return root


def _root_message(schema: Schema) -> str:
    """Return the full name of the message that a PROTOBUF_NATIVE schema describes."""
    return _root_message_of(schema.definition)
