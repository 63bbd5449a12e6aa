"""Converting batches to record batches: exactly the schema that Spark demands, and one row per message."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from mqbridge.message import Batch, Message, Partition
from mqbridge.native import compiled
from mqbridge.rocketmq.mapping import stored
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.record import Record
from mqbridge.spark.arrow import rows
from mqbridge.spark.arrow.rows import RowBuilder
from mqbridge.spark.property_blob import encode_pairs
from mqbridge.spark.schema import message_schema
from tests.strategies import any_messages

SOURCE = Partition("c|1", "orders", "broker-a:3", 7)


def batch(messages: Sequence[Message], partition: Partition = SOURCE) -> Batch:
    return Batch.of(messages, partition)


def numbered(count: int, size: int = 10) -> list[Message]:
    return [Message(b"x" * size, position=(number,)) for number in range(count)]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("messages", [[], [Message(None)], [Message(b"", (("a", "b"),), position=(1, 2))]])
def test_the_schema_is_the_one_that_spark_demands(binary: bool, messages: list[Message]) -> None:
    record_batch = RowBuilder(binary_properties=binary).build(batch(messages))
    assert record_batch.schema.equals(to_arrow_schema(message_schema(binary_properties=binary), timezone="UTC"))
    record_batch.validate(full=True)


def test_every_field_has_its_column() -> None:
    message = Message(
        b"body",
        (("a", "1"), ("a", "2")),
        "key",
        b"order",
        ("k1", "k2"),
        "tag",
        b"x=\xff",
        1_795_219_034_805,
        0,
        -1,
        3,
        (4, 5, 6),
        "c|t|p|1",
        2,
        "damaged",
    )
    record_batch = RowBuilder(is_part=True).build(batch([message]))
    assert record_batch.to_pylist() == [
        {
            "payload": b"body",
            "key": b"key",
            "key_is_text": True,
            "ordering_key": b"order",
            "keys": ["k1", "k2"],
            "msg_type": "tag",
            "attributes": b"x=\xff",
            "properties": [("a", "1"), ("a", "2")],
            "event_time": datetime(2026, 11, 20, 23, 57, 14, 805000, tzinfo=UTC),
            "publish_time": datetime(1970, 1, 1, tzinfo=UTC),
            "deliver_at": datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC),
            "delivery_count": 3,
            "topic": "orders",
            "partition": 7,
            "position": [4, 5, 6],
            "source": "c%7C1|orders|broker-a:3|7|part",
            "origin": "c|t|p|1",
            "hops": 2,
            "defect": "damaged",
        }
    ]


def test_properties_that_are_not_decoded_yet_make_the_same_rows() -> None:
    def record(number: int, pairs: list[tuple[str, str]]) -> Record:
        return Record("orders", b"body", properties.encode(pairs), queue_offset=number, store_timestamp=5)

    records = [
        record(0, [("a", "1"), ("ü", "grün")]),
        record(1, [("TAGS", "t"), ("KEYS", "k l"), ("b", "2")]),
        record(2, []),
    ]
    lazy = stored.decode(records)
    plain = [message.replace() for message in lazy] if type(lazy[0]) is Message else [as_plain(message) for message in lazy]
    for binary in (False, True):
        builder = RowBuilder(binary_properties=binary)
        assert builder.build(batch(lazy)).equals(builder.build(batch(plain)))
        assert builder.build(batch([lazy[0], plain[1], lazy[2]])).equals(builder.build(batch(plain)))


@pytest.mark.skipif(compiled is None, reason="the compiled module is not installed, or is turned off")
@given(messages=st.lists(any_messages(), max_size=9), wide=st.booleans(), data=st.data())
def test_native_messages_make_the_same_rows(messages: list[Message], wide: bool, data: st.DataObject) -> None:
    for index, message in enumerate(messages):
        message.position = (index, 1 << 62, -1)[: data.draw(st.integers(0, 3))]
        message.publish_time, message.delivery_count = data.draw(st.sampled_from([(None, 0), (-1, 1 << 40), (1 << 62, 5)]))
        message.origin, message.hops = data.draw(st.sampled_from([(None, 0), ("ö|t|0|1", 1), ("o", 1 << 33)]))
        message.defect = data.draw(st.sampled_from([None, "damaged"]))
    if wide and messages:
        messages[0].properties = (*messages[0].properties, ("wide", "x" * 256))
    assert compiled is not None
    native = compiled.Messages.of(messages)
    assert native is not None
    for binary in (False, True):
        builder = RowBuilder(binary_properties=binary)
        record_batch = builder.build(batch(native))
        record_batch.validate(full=True)
        assert record_batch.equals(builder.build(batch(messages)))


def as_plain(message: Message) -> Message:
    return Message(**message.as_dict())


def test_binary_properties_are_blobs() -> None:
    record_batch = RowBuilder(binary_properties=True).build(batch([Message(b"", (("a", "1"),)), Message(b"")]))
    assert record_batch.column("properties").to_pylist() == [encode_pairs((("a", "1"),)), b""]


def test_values_that_arrow_rejects_are_written_as_closely_as_possible() -> None:
    surrogate = "\ud800"
    unrepresentable = Message(
        b"",
        ((surrogate, surrogate),),
        surrogate,
        keys=(surrogate,),
        msg_type=surrogate,
        event_time=1 << 62,
        deliver_at=-(1 << 70),
        delivery_count=1 << 40,
        hops=1 << 40,
    )
    record_batch = RowBuilder().build(batch([unrepresentable, Message(b"")]))
    assert record_batch.column("event_time").cast(pa.int64()).to_pylist() == [None, None]
    assert record_batch.column("delivery_count").to_pylist() == [(1 << 31) - 1, 0]
    assert record_batch.column("msg_type").cast(pa.binary()).to_pylist() == [b"\xed\xa0\x80", None]
    assert record_batch.column("properties").keys.cast(pa.binary()).to_pylist() == [b"\xed\xa0\x80"]


def test_a_builder_writes_the_partition_of_each_batch() -> None:
    builder = RowBuilder()
    other = Partition("d", "payments", "1", 1)
    sizes = [(3, SOURCE), (2, other), (9000, other), (1, SOURCE)]
    record_batches = [builder.build(batch(numbered(count), partition)) for count, partition in sizes]
    assert [(len(rows), set(rows.column("topic").to_pylist())) for rows in record_batches] == [
        (3, {"orders"}),
        (2, {"payments"}),
        (9000, {"payments"}),
        (1, {"orders"}),
    ]


def test_batches_are_sliced_at_the_row_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ROWS", 25)
    slices = list(RowBuilder().build_slices(batch(numbered(60))))
    assert [len(each) for each in slices] == [25, 25, 10]
    assert [position for each in slices for (position,) in each.column("position").to_pylist()] == list(range(60))


def test_batches_are_sliced_at_the_byte_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_BYTES", 10_000)
    slices = list(RowBuilder().build_slices(batch(numbered(100, 1000))))
    assert sum(map(len, slices)) == 100
    assert max(each.nbytes for each in slices) <= 10_000


def test_a_batch_without_messages_yields_no_slices() -> None:
    assert list(RowBuilder().build_slices(batch([]))) == []
