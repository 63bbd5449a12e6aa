"""Which schemas are valid, equal and compatible, beside the rules of Avro (`test_avro_schemas.py`)."""

import base64
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.pulsar.server.schema_compatibility import (
    TYPE_NAMES,
    InvalidSchema,
    are_equal,
    check_valid,
    incompatibility,
    version_of,
)
from mqbridge.pulsar.wire.schemas import STRING, Schema, Types, avro, json_record
from tests.pulsar.server.avro_pairs import PAIRS, field, record

ROW = record(field("a", "string"))
PRIMITIVES = sorted(
    set(TYPE_NAMES)
    - {Types.Avro, Types.Json, Types.Protobuf, Types.ProtobufNative, Types.KeyValue, Types.AutoConsume, Types.External}
)


def native(root: object, file: str = "AAAA") -> Schema:
    return Schema(
        Types.ProtobufNative,
        json.dumps({"fileDescriptorSet": file, "rootMessageTypeName": root, "rootFileDescriptorName": "f.proto"}).encode(),
    )


def part(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


@pytest.mark.parametrize("type_", PRIMITIVES)
def test_primitive_types_have_no_definition(type_: int) -> None:
    check_valid(Schema(type_, b"", "any", (("a", "b"),)))
    with pytest.raises(InvalidSchema):
        check_valid(Schema(type_, b"x"))
    for other in PRIMITIVES:
        assert (incompatibility(Schema(type_), Schema(other), both_ways=True) is None) == (type_ == other)
        assert are_equal(Schema(type_), Schema(other)) == (type_ == other)


@pytest.mark.parametrize(
    "schema",
    [
        Schema(Types.AutoConsume),
        Schema(Types.External),
        Schema(1234),
        avro(""),
        avro("{nope"),
        json_record('{"type":"record","name":"R","fields":[{"name":"a","type":"unknown"}]}'),
        avro('["null","string"]'),
        Schema(Types.Protobuf, b"{x"),
        Schema(Types.ProtobufNative, b""),
        Schema(Types.ProtobufNative, b"{}"),
        Schema(Types.ProtobufNative, b"[]"),
        Schema(Types.ProtobufNative, b'{"fileDescriptorSet": "A", "rootMessageTypeName": "M"}'),
        native(5),
        Schema(Types.KeyValue, b""),
        Schema(Types.KeyValue, b"garbage!"),
        Schema(Types.KeyValue, part(b"")),
        Schema(Types.KeyValue, part(b"") + part(b"") + b"more"),
        Schema(Types.KeyValue, part(b"") + part(b""), "", (("key.schema.type", "UNKNOWN"),)),
        Schema(Types.KeyValue, part(b"") + part(b""), "", (("key.schema.type", "KEY_VALUE"),)),
        Schema(Types.KeyValue, part(b"") + part(b"{nope"), "", (("value.schema.type", "AVRO"),)),
        Schema(Types.KeyValue, part(b"x") + part(b""), "", (("key.schema.type", "STRING"),)),
    ],
    ids=str,
)
def test_invalid_schemas_are_refused(schema: Schema) -> None:
    with pytest.raises(InvalidSchema):
        check_valid(schema)


def test_fields_of_protobuf_are_not_compared() -> None:
    one, other = Schema(Types.Protobuf, avro(ROW).definition), Schema(Types.Protobuf, avro(record(field("a", "int"))).definition)
    check_valid(one)
    assert incompatibility(one, other, both_ways=True) is None
    assert not are_equal(one, other)


def test_the_root_message_stays() -> None:
    check_valid(native("p.M"))
    assert incompatibility(native("p.M", "BBBB"), native("p.M"), both_ways=True) is None
    for both_ways in (True, False):
        assert "p.N" in str(incompatibility(native("p.N"), native("p.M"), both_ways=both_ways))


@pytest.mark.parametrize(("old", "new", "answer"), [pair[1:] for pair in PAIRS[::7]])
def test_producers_need_both_directions_and_consumers_one(old: object, new: object, answer: str) -> None:
    for type_ in (Types.Avro, Types.Json):
        one, other = Schema(type_, json.dumps(old).encode()), Schema(type_, json.dumps(new).encode())
        assert are_equal(one, other) == (answer == "same")
        assert (incompatibility(other, one, both_ways=True) is None) == (answer in {"same", "both"})
        assert (incompatibility(other, one, both_ways=False) is None) == (answer in {"same", "both", "new"})


def test_versions_never_change() -> None:
    """They are in messages: a later release must compute the same ones."""
    assert version_of(STRING).hex() == "4b1b5203422d7250"
    assert version_of(avro(ROW)).hex() == "5822265354180a2e"
    pair = Schema(Types.KeyValue, part(b"") + part(b""), "", (("key.schema.type", "STRING"), ("value.schema.type", "INT32")))
    assert version_of(pair).hex() == "450e004e4e085f53"


@given(st.integers(0, 22), st.binary(max_size=50), st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3))).map(tuple))
def test_versions_are_positive_numbers_that_properties_do_not_change(
    type_: int, data: bytes, properties: tuple[tuple[str, str], ...]
) -> None:
    version = version_of(Schema(type_, data, "", properties))
    assert version == version_of(Schema(type_, data, "another name"))
    assert len(version) == 8
    assert int.from_bytes(version, "big", signed=True) >= 0


@given(st.sampled_from([Types.Avro, Types.Json, Types.KeyValue, Types.ProtobufNative]), st.binary(max_size=60))
def test_any_bytes_are_a_schema_or_refused(type_: int, data: bytes) -> None:
    for definition in (data, base64.b64encode(data), part(data) + part(data)):
        try:
            check_valid(Schema(type_, definition))
        except InvalidSchema:
            continue
        assert are_equal(Schema(type_, definition), Schema(type_, definition))


def test_versions_are_text_for_clients_that_read_them_as_text() -> None:
    """The Python client decodes the version of a message as UTF-8."""
    versions = [version_of(Schema(Types.Json, b'{"type":"record","name":"r%d","fields":[]}' % number)) for number in range(50)]
    assert all(version.isascii() and len(version) == 8 for version in versions)
    assert len(set(versions)) == 50
