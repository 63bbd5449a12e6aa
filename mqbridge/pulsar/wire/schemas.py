"""Schemas of topics, as the broker's registry stores them. Message bodies stay bytes here.

A schema has a type and a definition; for JSON and Avro the definition is an Avro schema as JSON text. The type "bytes" is never
sent: it is the absence of a schema. The metadata of a message names the version of its schema: opaque bytes, by default a number
from 0 as 8 bytes, big-endian.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from mqbridge.pulsar.wire.frame import encode_command
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand

Types = pb.Schema
"""Namespace of the schema types, such as `Types.Avro`."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema.

    `name` is its name in the registry: `tenant/namespace/topic` in a schema that was fetched, empty in one to register.
    `properties` are pairs of name and value that the registry stores with the schema.
    """

    type: int
    """A value of `Types`."""
    definition: bytes = b""
    """The schema's text; empty for types without one, such as `Types.String`."""
    name: str = ""
    properties: tuple[tuple[str, str], ...] = ()

    def to_wire(self) -> pb.Schema:
        """Return the protobuf form for commands."""
        # The type stubs want the enum's type, but protobuf accepts any int.
        data = pb.Schema(name=self.name, schema_data=self.definition, type=self.type)  # type: ignore[arg-type]
        for key, value in self.properties:
            data.properties.add(key=key, value=value)
        return data

    @classmethod
    def from_wire(cls, data: pb.Schema) -> "Schema":
        """Read the protobuf form of a response."""
        # The type stubs of the protobuf module resolve KeyValue to the enum value of that name.
        properties = tuple((pair.key, pair.value) for pair in data.properties)  # type: ignore[attr-defined]
        return cls(data.type, data.schema_data, data.name, properties)


class RegisteredSchema(NamedTuple):
    """A schema, and its version among the schemas of its topic (bytes that only the broker interprets).

    `registered_ms` is when it was registered, ms since the epoch; None if that is not known.
    """

    schema: Schema
    version: bytes
    registered_ms: int | None = None


STRING = Schema(Types.String)
"""UTF-8 text."""


def avro(definition: str | Mapping[str, Any]) -> Schema:
    """Return an Avro schema; the definition is JSON text or parsed JSON."""
    return Schema(Types.Avro, _text(definition))


def json_record(definition: str | Mapping[str, Any]) -> Schema:
    """Return a schema of JSON bodies; the definition is an Avro record, as JSON text or parsed JSON."""
    return Schema(Types.Json, _text(definition))


def _text(definition: str | Mapping[str, Any]) -> bytes:
    """Return a definition as JSON text in UTF-8."""
    return (definition if isinstance(definition, str) else json.dumps(definition)).encode()


def version_number(version: bytes) -> int | None:
    """Return the version as the number that tools show; None if it is empty (no schema) or not 8 bytes long."""
    return int.from_bytes(version, "big", signed=True) if len(version) == 8 else None


def get_schema(request_id: int, topic: str, version: bytes | None) -> bytes:
    """Encode GET_SCHEMA for this version of the topic's schema, or for the latest if the version is None."""
    command = pb.CommandGetSchema(request_id=request_id, topic=topic, schema_version=version)
    return encode_command(BaseCommand(type=BaseCommand.GET_SCHEMA, getSchema=command))


def get_or_create_schema(request_id: int, topic: str, schema: Schema) -> bytes:
    """Encode GET_OR_CREATE_SCHEMA; it must be sent to the broker that owns the topic."""
    command = pb.CommandGetOrCreateSchema(request_id=request_id, topic=topic, schema=schema.to_wire())
    return encode_command(BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA, getOrCreateSchema=command))
