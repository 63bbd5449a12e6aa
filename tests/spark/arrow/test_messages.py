"""Converting record batches back to messages: no field is lost, columns may be missing, errors name wrong columns."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from mqbridge.errors import ConfigError
from mqbridge.message import NO_SOURCE, Batch, Message, Partition
from mqbridge.native import compiled, is_native
from mqbridge.spark.arrow import native_columns
from mqbridge.spark.arrow.columns import check_columns
from mqbridge.spark.arrow.messages import MessageDecoder, read_batches
from mqbridge.spark.arrow.rows import RowBuilder
from mqbridge.spark.property_blob import decode_pairs, encode_pairs
from tests import strategies

SOURCE = Partition("c|1", "orders", "broker-a:3", 7)
LARGEST_MS = ((1 << 63) - 1) // 1000

text = st.text(max_size=8)
"""Texts, with lone surrogates among them."""
times = st.one_of(st.none(), st.integers(-LARGEST_MS, LARGEST_MS))
positions = st.lists(st.integers(0, (1 << 63) - 2), min_size=1, max_size=3).map(tuple)
int32 = st.integers(0, (1 << 31) - 1)
message_lists = st.lists(
    st.builds(
        Message,
        st.one_of(st.none(), st.binary(max_size=20)),
        st.one_of(strategies.properties, st.lists(st.tuples(text, text), max_size=3).map(tuple)),
        st.one_of(st.none(), text, st.binary(max_size=8)),
        st.one_of(st.none(), st.binary(max_size=8)),
        st.lists(text, max_size=3).map(tuple),
        st.one_of(st.none(), text),
        st.one_of(st.none(), st.binary(max_size=8)),
        times,
        times,
        times,
        int32,
        positions,
        st.one_of(st.none(), text),
        int32,
        st.one_of(st.none(), text),
    ),
    min_size=1,
    max_size=5,
)


def fields(message: Message) -> dict[str, Any]:
    return message.as_dict()


def build_rows(messages: list[Message], partition: Partition = SOURCE, **options: bool) -> pa.RecordBatch:
    return RowBuilder(**options).build(Batch.of(messages, partition))


def read_only_batch(rows: pa.RecordBatch) -> Batch:
    (batch,) = read_batches(rows)
    return batch


@given(message_lists, st.booleans())
def test_any_message_is_read_back_exactly(messages: list[Message], binary: bool) -> None:
    batch = read_only_batch(build_rows(messages, binary_properties=binary))
    assert list(map(fields, batch.messages)) == list(map(fields, messages))
    assert batch.partition == SOURCE
    assert batch.first == messages[0].position
    assert batch.next > messages[-1].position


@pytest.mark.skipif(compiled is None, reason="the compiled module is not installed, or is turned off")
@given(message_lists, st.booleans(), st.booleans())
def test_native_messages_have_the_fields_of_plain_ones(messages: list[Message], binary: bool, drop_key_is_text: bool) -> None:
    rows = build_rows(messages, binary_properties=binary)
    if drop_key_is_text:
        rows = rows.drop_columns(["key_is_text"])
    native = read_only_batch(rows).messages
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_columns, "compiled", None)
        plain = read_only_batch(rows).messages
    assert {type(message) for message in plain} == {Message}
    assert list(map(fields, native)) == list(map(fields, plain))


@pytest.mark.skipif(compiled is None, reason="the compiled module is not installed, or is turned off")
@pytest.mark.parametrize(
    ("message", "becomes_native"),
    [
        (
            Message(b"", (("a", "1"), ("a", "ü")), "k", b"o", ("x", ""), "t", b"\xff", 1, 2, 3, 4, (1, 2, 3), "o", 1),
            True,
        ),
        (Message(None, key=b"k", position=(1,)), True),
        (Message(b"", (("", "x" * 300),)), True),
        (Message(b"", (("\ud800", ""),), position=(1,)), False),
        (Message(b"", (("", "\ud800"),), position=(1,)), False),
        (Message(b"", (("", "x" * 300 + "\ud800"),), position=(1,)), False),
        (Message(b"", position=(1, 2, 3, 4)), False),
    ],
    ids=repr,
)
@pytest.mark.parametrize("binary", [False, True])
def test_rows_become_native_messages_if_possible(message: Message, becomes_native: bool, binary: bool) -> None:
    messages = read_only_batch(build_rows([message], binary_properties=binary)).messages
    assert is_native(messages) is becomes_native
    assert fields(messages[0]) == fields(message)


@pytest.mark.skipif(compiled is None, reason="the compiled module is not installed, or is turned off")
@given(pairs=st.lists(st.tuples(strategies.text, strategies.text), min_size=1, max_size=3).map(tuple), data=st.data())
def test_native_code_rejects_the_damaged_blobs_that_python_rejects(
    pairs: tuple[tuple[str, str], ...], data: st.DataObject
) -> None:
    blob = bytearray(encode_pairs(pairs))
    for _ in range(data.draw(st.integers(1, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(blob[: data.draw(st.integers(0, len(blob)))])
    rows = pa.RecordBatch.from_pydict({"payload": [b"x", b"y"], "properties": pa.array([b"", damaged], pa.binary())})
    try:
        expected = decode_pairs(damaged)
    except ValueError:
        with pytest.raises(ConfigError, match="rows cannot be written"):
            read_only_batch(rows)
        return
    assert read_only_batch(rows).messages[1].properties == expected


def test_each_run_of_rows_with_one_source_is_a_batch() -> None:
    other = Partition("d", "payments", "1", 1)
    record_batches = [
        build_rows([Message(b"1", position=(5,)), Message(b"22", position=(9,))]),
        build_rows([Message(b"3", position=(0, 1))], other),
        build_rows([Message(b"4", position=(7,))], is_part=True),
    ]
    rows = pa.concat_batches(record_batches)
    runs = MessageDecoder(rows.schema).read_runs(rows)
    assert [(run.batch.partition, run.batch.count, run.batch.size, run.batch.first, run.batch.next) for run in runs] == [
        (SOURCE, 2, 3, (5,), (10,)),
        (other, 1, 1, (0, 1), (0, 2)),
        (SOURCE, 1, 1, (7,), (8,)),
    ]
    assert [(run.first_row, run.is_part) for run in runs] == [(0, False), (2, False), (3, True)]


def test_a_slice_of_a_record_batch_yields_only_its_own_messages() -> None:
    messages = [Message(bytes([number]), (("n", str(number)),), f"k{number}", position=(number,)) for number in range(9)]
    for binary in (False, True):
        batch = read_only_batch(build_rows(messages, binary_properties=binary).slice(2, 5))
        assert list(map(fields, batch.messages)) == list(map(fields, messages[2:7]))
        assert (batch.count, batch.size, batch.first) == (5, 5, (2,))


def test_no_rows_yield_no_batch() -> None:
    assert read_batches(build_rows([])) == []


def test_rows_without_a_position_have_no_source() -> None:
    rows = build_rows([Message(b"1", position=(5,)), Message(b"2", position=(6,))])
    position_index = rows.schema.get_field_index("position")
    one_null = rows.set_column(position_index, "position", pa.array([None, [6]], pa.list_(pa.int64())))
    assert [(batch.partition, batch.first) for batch in read_batches(one_null)] == [(NO_SOURCE, ()), (SOURCE, (6,))]
    no_column = rows.drop_columns(["position"])
    assert [(batch.partition, batch.count) for batch in read_batches(no_column)] == [(NO_SOURCE, 2)]


def test_value_and_key_of_kafka_rows_become_payload_and_key() -> None:
    rows = pa.record_batch({"key": ["k", None], "value": ["v", None], "timestamp": [1, 2]})
    assert list(map(fields, read_only_batch(rows).messages)) == [fields(Message(b"v", key="k")), fields(Message(None))]
    binary = pa.record_batch({"key": [b"k"], "value": [b"v"]})
    assert [message.key for message in read_only_batch(binary).messages] == [b"k"]


@pytest.mark.parametrize(
    ("keys", "flags", "expected"),
    [
        (["a", "b"], [True, None], ["a", "b"]),
        (["a", "b"], [False, None], [b"a", "b"]),
        ([b"a", b"b", None], [True, None, None], ["a", b"b", None]),
        ([b"a", None], [True, False], ["a", None]),
        ([b"a", None], [None, True], [b"a", None]),
    ],
)
def test_key_is_text_decides_and_else_the_type_of_the_column(keys: Any, flags: Any, expected: Any) -> None:
    rows = pa.record_batch({"payload": [b""] * len(keys), "key": keys, "key_is_text": flags})
    assert [message.key for message in read_only_batch(rows).messages] == expected


def test_nulls_become_the_defaults_of_a_message() -> None:
    schema = RowBuilder().schema
    rows = pa.record_batch([pa.nulls(2, field.type) for field in schema], schema=schema)
    assert list(map(fields, read_only_batch(rows).messages)) == [fields(Message(None))] * 2
    mixed = pa.concat_batches([build_rows([Message(b"1", (("a", "b"),), "k", position=(1,))]), rows])
    assert [fields(message) for batch in read_batches(mixed) for message in batch.messages][1:] == [fields(Message(None))] * 2


def test_nulls_inside_maps_and_lists_are_dropped() -> None:
    rows = pa.record_batch(
        {
            "payload": [b""],
            "properties": pa.array([[("a", None), ("b", "1")]], pa.map_(pa.string(), pa.string())),
            "keys": [["x", None]],
        }
    )
    (message,) = read_only_batch(rows).messages
    assert (message.properties, message.keys) == ((("b", "1"),), ("x",))


def test_columns_of_compatible_types_are_accepted() -> None:
    rows = pa.record_batch(
        {
            "payload": pa.array([b"p"], pa.large_binary()),
            "hops": pa.array([2], pa.int64()),
            "event_time": pa.array([1_500_999], pa.timestamp("us")),
            "position": pa.array([[1]], pa.list_(pa.int32())),
            "properties": pa.array([encode_pairs((("a", "1"),))], pa.large_binary()),
            "defect": pa.nulls(1),
        }
    )
    (message,) = read_only_batch(rows).messages
    assert (message.payload, message.hops, message.event_time, message.position) == (b"p", 2, 1500, (1,))
    assert message.properties == (("a", "1"),)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"body": [b""], "key": [b""]}, "there is no column 'payload' to write; the columns are: body, key"),
        ({"payload": [b""], "value": [b""]}, "both 'payload' and 'value' are columns"),
        ({"payload": [1]}, "column 'payload' is BIGINT, but BINARY or STRING is needed"),
        ({"value": [1.5]}, "column 'value' is DOUBLE, but BINARY or STRING is needed"),
        ({"payload": pa.nulls(1)}, "column 'payload' has no type"),
        ({"payload": [b""], "keys": ["a"]}, "column 'keys' is STRING, but ARRAY<STRING> is needed"),
        (
            {"payload": [b""], "properties": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))},
            "column 'properties' is MAP<STRING,BIGINT>, but MAP<STRING, STRING> or BINARY is needed",
        ),
        ({"payload": [b""], "event_time": [1]}, "column 'event_time' is BIGINT, but TIMESTAMP is needed"),
        ({"payload": [b""], "position": [1]}, "column 'position' is BIGINT, but ARRAY<BIGINT> is needed"),
        ({"payload": [b""], "partition": ["1"]}, "column 'partition' is STRING, but INT is needed"),
        (
            {"payload": [b""], "properties": [b"\x07"]},
            "rows cannot be written: not a value of a column of binary properties",
        ),
        (
            {"payload": [b""], "source": ["x"], "position": [[1]]},
            "rows cannot be written: 'x' is not a value of column source",
        ),
    ],
)
def test_the_error_names_the_column_that_cannot_be_read(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_batches(pa.record_batch(columns))
    assert problem in str(raised.value)


def test_a_schema_is_checked_without_rows() -> None:
    check_columns(StructType([StructField("value", StringType()), StructField("count", IntegerType())]))
    with pytest.raises(ConfigError, match="column 'key' is INT, but BINARY or STRING is needed"):
        check_columns(StructType([StructField("value", StringType()), StructField("key", IntegerType())]))
