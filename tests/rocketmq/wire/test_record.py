"""Records: golden bytes written by hand and by Java, every field, inner batches, compression, and damage."""

import contextlib
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.rocketmq.wire import record as module
from mqbridge.rocketmq.wire.batch import decode_batch, encode_batch, encode_element
from mqbridge.rocketmq.wire.compression import LZ4, OLD_ZLIB, ZLIB, ZSTD, compress
from mqbridge.rocketmq.wire.ids import format_host, parse_host
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import (
    MAX_TOPIC_BYTES,
    MAX_V1_TOPIC_BYTES,
    V1,
    V2,
    Record,
    SysFlag,
    decode_records,
    encode_record,
)
from tests.rocketmq.wire import vectors
from tests.rocketmq.wire.damaged_bytes import mutated

FIELDS = [name for name in Record.__slots__ if name not in {"defect", "_stored"}]


def fields_of(record: Record) -> dict[str, object]:
    return {name: getattr(record, name) for name in FIELDS}


def one(data: bytes) -> Record:
    (record,) = decode_records(data)
    return record


def test_the_golden_record_is_encoded_and_decoded() -> None:
    record = one(vectors.RECORD)
    assert (record.topic, record.body, record.defect) == ("T1", b"hello", None)
    assert (record.queue_id, record.queue_offset, record.physical_offset) == (3, 5, 1000)
    assert (record.born_timestamp, record.store_timestamp) == (1700000000000, 1700000000001)
    assert (format_host(record.born_host), format_host(record.store_host)) == ("127.0.0.1:40000", "127.0.0.1:10911")
    assert decode_properties(record.properties) == [("TAGS", "a"), ("UNIQ_KEY", "7F00000100010000000000000001")]
    assert encode_record(record) == vectors.RECORD


JAVA = {
    "v4": (vectors.JAVA_RECORD_V4, "127.0.0.1:40000", "127.0.0.1:10911"),
    "v6": (vectors.JAVA_RECORD_V6, "[fe80::1]:40000", "[2001:db8::2]:10911"),
    "born6": (vectors.JAVA_RECORD_BORN6, "[fe80::1]:40000", "10.0.0.1:10911"),
    "store6": (vectors.JAVA_RECORD_STORE6, "10.0.0.1:40000", "[2001:db8::2]:10911"),
}


@pytest.mark.parametrize(("data", "born", "stored"), JAVA.values(), ids=JAVA)
def test_records_of_java_are_decoded(data: bytes, born: str, stored: str) -> None:
    record = one(data)
    assert record.defect is None
    assert (record.topic, record.body, record.flag, record.reconsume_times, record.prepared_offset) == ("T1", b"hello", 7, 2, 9)
    assert (format_host(record.born_host), format_host(record.store_host)) == (born, stored)
    assert decode_properties(record.properties) == [("KEYS", "key"), ("k", "v")]
    told = struct.pack(">I", zlib.crc32(b"hello") & 0x7FFFFFFF)  # which Java leaves 0 here
    assert encode_record(record) == data[:8] + told + data[12:]


@pytest.mark.parametrize(
    "data",
    [vectors.JAVA_RECORD_LZ4, vectors.JAVA_RECORD_ZSTD, vectors.JAVA_RECORD_ZLIB, vectors.JAVA_RECORD_OLD],
    ids=["lz4", "zstd", "zlib", "old"],
)
def test_bodies_that_java_compressed(data: bytes) -> None:
    record = one(data)
    assert (record.defect, record.body, record.sys_flag) == (None, b"x" * 300, 0)


def test_an_inner_batch_of_java_is_unwrapped() -> None:
    first, second = decode_records(vectors.JAVA_RECORD_INNER)
    assert (first.queue_offset, second.queue_offset) == (5, 6)
    assert (first.flag, second.flag) == (0, 1)
    assert (first.body, first.sys_flag, first.topic, first.physical_offset) == (b"hi", 0, "T1", 1000)
    assert decode_properties(second.properties) == [("WAIT", "true"), ("TAGS", "a")]


def test_records_back_to_back_at_every_cut() -> None:
    """Bytes that end inside a record raise an error that names it; they are never decoded to fewer records."""
    parts = [vectors.RECORD, vectors.JAVA_RECORD_V6, vectors.JAVA_RECORD_STORE6]
    body = b"".join(parts)
    borders = {0, len(parts[0]), len(parts[0] + parts[1]), len(body)}
    for end in range(len(body) + 1):
        if end in borders:
            assert len(decode_records(body[:end])) == sorted(borders).index(end)
        else:
            with pytest.raises(RemoteProtocolError, match="the record at byte"):
                decode_records(body[:end])


topics = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
int32, int64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
records = st.builds(
    Record,
    topics | st.just("%RETRY%" + "g" * 200),
    st.binary(max_size=100),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=50).map(str.encode),
    queue_id=int32,
    queue_offset=int64,
    physical_offset=int64,
    flag=int32,
    sys_flag=st.sampled_from([0, SysFlag.COMMIT, SysFlag.PREPARED, SysFlag.MULTI_TAGS]),
    born_timestamp=int64,
    born_host=hosts,
    store_timestamp=int64,
    store_host=hosts,
    reconsume_times=int32,
    prepared_offset=int64,
)


@given(st.lists(records, max_size=4))
def test_round_trip(stored: list[Record]) -> None:
    body = b"".join(map(encode_record, stored))
    read = decode_records(body)
    for before, after in zip(stored, read, strict=True):
        assert after.defect is None
        after.sys_flag &= ~(SysFlag.BORN_IPV6 | SysFlag.STORE_IPV6)
        assert fields_of(after) == fields_of(before)
    assert b"".join(map(encode_record, read)) == body


@pytest.mark.parametrize("size", [0, 1, MAX_V1_TOPIC_BYTES, MAX_V1_TOPIC_BYTES + 1, MAX_TOPIC_BYTES])
def test_long_topics_need_layout_v2(size: int) -> None:
    data = encode_record(Record("t" * size, b"x"))
    assert struct.unpack_from(">I", data, 4)[0] == (V2 if size > MAX_V1_TOPIC_BYTES else V1)
    assert one(data).topic == "t" * size


@pytest.mark.parametrize(
    "record",
    [
        Record("t" * (MAX_TOPIC_BYTES + 1)),
        Record("t", b"", b"x" * 32768),
        Record("t", queue_id=1 << 31),
        Record("t", queue_offset=1 << 63),
        Record("t", born_host=b"x"),
    ],
    ids=["topic", "properties", "queue", "offset", "host"],
)
def test_a_field_too_large_for_a_record_is_refused(record: Record) -> None:
    with pytest.raises(LocalProtocolError):
        encode_record(record)


# --- compression and inner batches ----------------------------------------------------------------------------------------


@given(st.sampled_from([OLD_ZLIB, LZ4, ZSTD, ZLIB]), st.binary(max_size=300), st.integers(1, 30))
def test_compressed_bodies_are_decompressed(codec: int, data: bytes, times: int) -> None:
    packed = Record("t", compress(codec, data * times), sys_flag=SysFlag.COMPRESSED | codec | SysFlag.COMMIT)
    record = one(encode_record(packed))
    assert (record.defect, record.body, record.sys_flag) == (None, data * times, SysFlag.COMMIT)


@given(st.lists(st.tuples(int32, st.binary(max_size=20), st.text("ab\x01\x02", max_size=9).map(str.encode)), max_size=5))
def test_inner_batches_are_split_into_messages(elements: list[tuple[int, bytes, bytes]]) -> None:
    body = b"".join(encode_element(data, properties, flag) for flag, data, properties in elements)
    for flags, stored in ((0, body), (SysFlag.COMPRESSED | ZSTD, compress(ZSTD, body))):
        outer = Record(
            "t", stored, queue_offset=10, sys_flag=flags | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP, store_timestamp=7
        )
        found = decode_records(encode_record(outer))
        assert [(record.flag, record.body, record.properties) for record in found] == elements
        assert [record.queue_offset for record in found] == list(range(10, 10 + len(elements)))
        assert all((record.store_timestamp, record.sys_flag, record.defect) == (7, 0, None) for record in found)


@pytest.mark.parametrize(
    ("record", "word"),
    [
        (Record("t", b"junk", sys_flag=SysFlag.COMPRESSED | LZ4), "decompress"),
        (Record("t", b"junk", sys_flag=SysFlag.COMPRESSED | 0x400), "unknown codec"),
        (Record("t", b"junk", sys_flag=SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP), "batch"),
    ],
    ids=["body", "codec", "inner batch"],
)
def test_an_unusable_record_has_a_defect_and_its_stored_body(record: Record, word: str) -> None:
    data = encode_record(record) + vectors.RECORD
    damaged, whole = decode_records(data)
    assert damaged.defect is not None
    assert word in damaged.defect
    assert (damaged.body, damaged.sys_flag) == (b"junk", record.sys_flag)
    assert whole.defect is None
    assert damaged.stored_bytes() == encode_record(damaged) == encode_record(record)


def test_a_damaged_record_keeps_its_bytes_as_stored() -> None:
    """Its wrong checksum, its codec, and the inner batch that cannot be split, before it was decompressed."""
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED | ZLIB
    for stored in (
        encode_record(Record("t", b"body", b"a\x01b"))[:-8] + b"B" + encode_record(Record("t", b"body", b"a\x01b"))[-7:],
        encode_record(Record("t", compress(ZLIB, b"no batch, but long enough for one"), sys_flag=flags)),
    ):
        assert one(stored).defect
        assert one(stored).stored_bytes() == stored


def test_a_message_of_an_inner_batch_may_have_longer_properties_than_a_record() -> None:
    """A broker does not check them inside a batch. Any bytes are properties."""
    properties = b"k\x01" + b"\xff" * 0xFFFD
    batch = encode_batch([(1, b"first", b"a\x01b"), (2, b"second", properties)])
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
    first, second = decode_records(encode_record(Record("t", batch, sys_flag=flags, queue_offset=7)))
    assert (first.defect, second.defect) == (None, None)
    assert (second.body, second.properties, second.queue_offset) == (b"second", properties, 8)


def test_only_both_inner_batch_bits_split_a_record() -> None:
    record = one(encode_record(Record("t", b"junk", sys_flag=SysFlag.INNER_BATCH)))
    assert (record.defect, record.body) == (None, b"junk")


@pytest.mark.parametrize("flags", [0, SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP], ids=["bodies", "inner batches"])
def test_the_uncompressed_size_of_a_response_is_limited(monkeypatch: pytest.MonkeyPatch, flags: int) -> None:
    """Bodies of a hundred bytes unpack to a hundred thousand each, in bytes or in objects: decoding stops with an error."""
    monkeypatch.setattr(module, "MAX_UNPACKED_BYTES", 1 << 20)
    plain = encode_element(b"", b"") * 180 if flags else bytes(100_000)
    bomb = encode_record(Record("t", compress(ZSTD, plain), sys_flag=SysFlag.COMPRESSED | ZSTD | flags))
    assert len(bomb) < 200
    assert decode_records(bomb * 10)
    with pytest.raises(RemoteProtocolError, match="unpack to more than 1048576"):
        decode_records(bomb * 12)


def test_an_inner_batch_has_no_more_messages_than_a_broker_can_count() -> None:
    def inner(count: int) -> bytes:
        stored = compress(ZSTD, encode_element(b"", b"") * count)
        return encode_record(Record("t", stored, sys_flag=SysFlag.COMPRESSED | ZSTD | SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP))

    assert len(decode_records(inner(32767))) == 32767
    record = one(inner(32768))
    assert record.defect is not None
    assert "more than 32767" in record.defect


# --- damage ---------------------------------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_body_is_a_defect() -> None:
    for at in range(88, 93):
        for bit in range(8):
            damaged = bytearray(vectors.RECORD)
            damaged[at] ^= 1 << bit
            record = one(bytes(damaged))
            assert record.defect is not None
            assert "CRC" in record.defect


def test_a_checksum_of_0_is_not_compared() -> None:
    assert one(vectors.RECORD[:8] + bytes(4) + vectors.RECORD[12:]).defect is None


@pytest.mark.parametrize(
    ("at", "value", "word"),
    [
        (0, b"\x00\x00\x00\x00", "body of 5"),
        (0, b"\x00\x00\x00\x8e", "add up"),
        (0, b"\xff\xff\xff\xff", "4294967295"),
        (4, b"\xcb\xd4\x31\x94", "magic CBD43194"),
        (84, b"\xff\xff\xff\xff", "body of -1"),
        (84, b"\x7f\xff\xff\xff", "body of 2147483647"),
        (84, b"\x00\x00\x00\x06", "add up"),
        (93, b"\xff", "add up"),
        (94, b"\xff\xff", "topic is not UTF-8"),
        (96, b"\xff\xff", "add up"),
        (36, b"\x00\x00\x00\x30", "body of"),
    ],
)
def test_an_error_names_invalid_sizes(at: int, value: bytes, word: str) -> None:
    data = vectors.RECORD[:at] + value + vectors.RECORD[at + len(value) :]
    with pytest.raises(RemoteProtocolError, match=word) as caught:
        decode_records(vectors.RECORD + data)
    assert f"byte {len(vectors.RECORD)} of {2 * len(vectors.RECORD)}" in str(caught.value)


ORIGINALS = [vectors.RECORD, vectors.JAVA_RECORD_V6, vectors.JAVA_RECORD_INNER, vectors.JAVA_RECORD_LZ4, vectors.JAVA_RECORD_ZSTD]


@given(mutated(*ORIGINALS, *(one + vectors.RECORD for one in ORIGINALS)))
def test_damage_is_a_defect_an_error_or_another_record(data: bytes) -> None:
    try:
        for record in decode_records(data):
            assert record.defect is not None or decode_properties(record.properties) is not None
    except RemoteProtocolError:
        pass


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_records_or_a_protocol_error(data: bytes, second: bool) -> None:
    magic = struct.pack(">I", V2 if second else V1)
    for body in (data, struct.pack(">I", len(data) + 8) + magic + data):
        with contextlib.suppress(RemoteProtocolError):
            decode_records(body)


# --- batches --------------------------------------------------------------------------------------------------------------


def test_the_golden_batch_element_is_encoded_and_decoded() -> None:
    assert encode_element(b"hi", b"TAGS\x01a\x02", 0) == vectors.BATCH_ELEMENT
    assert decode_batch(vectors.BATCH_ELEMENT) == [(0, b"hi", b"TAGS\x01a\x02")]


def test_a_batch_of_java_is_encoded_and_decoded() -> None:
    elements = decode_batch(vectors.JAVA_BATCH)
    assert elements == [(0, b"hi", b"WAIT\x01true\x02TAGS\x01a\x02"), (1, b"hi", b"WAIT\x01true\x02TAGS\x01a\x02")]
    assert b"".join(encode_element(body, properties, flag) for flag, body, properties in elements) == vectors.JAVA_BATCH


def test_a_batch_cut_anywhere_is_a_protocol_error() -> None:
    for end in range(1, len(vectors.JAVA_BATCH)):
        if end != len(vectors.JAVA_BATCH) // 2:
            with pytest.raises(RemoteProtocolError, match="of a batch"):
                decode_batch(vectors.JAVA_BATCH[:end])


def test_properties_of_an_element_have_a_limit() -> None:
    assert len(encode_element(b"", b"x" * 32767)) == 22 + 32767
    with pytest.raises(LocalProtocolError):
        encode_element(b"", b"x" * 32768)
    with pytest.raises(LocalProtocolError):
        encode_element(b"", b"", 1 << 31)


@given(mutated(vectors.JAVA_BATCH, vectors.BATCH_ELEMENT) | st.binary(max_size=80))
def test_damaged_batches_are_a_protocol_error_or_a_batch(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_batch(data)


def test_hosts_are_formatted_and_parsed() -> None:
    for text in ("127.0.0.1:10911", "[2001:db8::2]:10911"):
        assert format_host(parse_host(text)) == text
    assert parse_host("2001:db8::2:10911") == parse_host("[2001:db8::2]:10911")
    for text in ("broker:10911", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999999999", ""):
        with pytest.raises(LocalProtocolError):
            parse_host(text)
