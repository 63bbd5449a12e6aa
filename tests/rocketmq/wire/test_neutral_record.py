"""The neutral form of a record does not depend on where the record is stored, and keeps all that is the message's own."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.batch import encode_batch
from mqbridge.rocketmq.wire.neutral_record import encode_neutral, neutral_records, read_neutral, strip_added
from mqbridge.rocketmq.wire.record import NO_HOST, Record, SysFlag, decode_records, encode_record

INT64 = st.integers(0, (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
BLOCKS = st.lists(
    st.tuples(st.sampled_from(["KEYS", "TAGS", "a", "DELAY", "UNIQ_KEY", "XCLUSTER"]), st.text("ab1", min_size=1)), max_size=5
).map(properties.encode)
ADDED = st.lists(st.sampled_from([b"CLUSTER\x01c\x02", b"MSG_REGION\x01r\x02", b"TRACE_ON\x01true\x02"]), unique=True)
LOCATIONS = st.fixed_dictionaries(
    {
        "topic": st.sampled_from(["T", "t" * 200]),
        "queue_id": INT32,
        "queue_offset": INT64,
        "physical_offset": INT64,
        "store_timestamp": INT64,
        "born_host": HOSTS,
        "store_host": HOSTS,
        "prepared_offset": INT64,
    }
)


@given(st.data(), LOCATIONS, st.binary(min_size=1), BLOCKS, ADDED, INT32, INT64, st.integers(0, 99), st.booleans())
def test_a_record_has_one_neutral_form_wherever_it_is_stored(
    data: st.DataObject,
    location: dict[str, object],
    body: bytes,
    block: bytes,
    added: list[bytes],
    flag: int,
    born: int,
    reconsumed: int,
    committed: bool,
) -> None:
    compressed = data.draw(st.booleans())
    body = zlib.compress(body) if compressed else body
    bits = SysFlag.COMPRESSED | 0x300 if compressed else 0
    own = {"flag": flag, "born_timestamp": born, "reconsume_times": reconsumed}
    sys_flag = bits | (SysFlag.COMMIT if committed else 0)
    stored = encode_record(Record(body=body, properties=block + b"".join(added), sys_flag=sys_flag, **own, **location))  # type: ignore[arg-type]
    ((neutral, offset, stored_ms),) = neutral_records(stored)
    assert neutral == encode_neutral(body, block, sys_flag=bits, **own)
    assert (offset, stored_ms) == (location["queue_offset"], location["store_timestamp"])
    assert read_neutral(neutral) == (flag, bits, born, reconsumed, body, block)
    ((again, _, _),) = neutral_records(neutral)
    assert again == neutral
    (decoded,) = decode_records(neutral)
    assert (decoded.topic, decoded.born_host, decoded.store_host, decoded.queue_id) == ("", NO_HOST, NO_HOST, 0)
    assert (decoded.properties, decoded.defect) == (block, None)


def test_only_entries_that_a_broker_adds_are_stripped() -> None:
    kept = b"CLUSTERS\x01a\x02a\x01CLUSTER\x02UNIQ_KEY\x01u\x02"
    assert strip_added(b"TRACE_ON\x01true\x02" + kept + b"MSG_REGION\x01r\x02CLUSTER\x01c") == kept
    assert strip_added(b"a\x011") == b"a\x011\x02", "the last separator may be missing"
    assert strip_added(b"") == b""


def test_messages_of_an_inner_batch_are_records_of_their_own() -> None:
    bits = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
    inner = encode_batch([(7, b"one", b"TAGS\x01x\x02"), (0, b"two", b"TAGS\x01y\x02"), (0, b"three", b"TAGS\x01x\x02")])
    outer = Record("T", inner, b"INNER_NUM\x013\x02", queue_offset=10, sys_flag=bits, born_timestamp=5, store_timestamp=6)
    stored = encode_record(outer)
    found = list(neutral_records(stored))
    assert found[0] == (encode_neutral(b"one", b"TAGS\x01x\x02", flag=7, born_timestamp=5), 10, 6)
    assert [record.queue_offset for record in found] == [10, 11, 12]
    assert [record.queue_offset for record in neutral_records(stored, 11, 12)] == [11]
    assert [record.queue_offset for record in neutral_records(stored, tags=frozenset({"x"}))] == [10, 12]


def test_an_inner_batch_that_cannot_be_split_stays_one_record_with_its_defect() -> None:
    bits = SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
    stored = encode_record(Record("T", b"no batch", queue_offset=3, sys_flag=bits))
    ((neutral, offset, _),) = neutral_records(stored, tags=frozenset({"x"}))
    assert offset == 3
    (decoded,) = decode_records(neutral)
    assert decoded.defect is not None
    with pytest.raises(RemoteProtocolError, match="inner batch"):
        read_neutral(neutral)


def test_a_wrong_checksum_stays_wrong() -> None:
    stored = bytearray(encode_record(Record("T", b"body")))
    stored[8] ^= 1
    ((neutral, _, _),) = neutral_records(bytes(stored))
    (decoded,) = decode_records(neutral)
    assert "CRC" in (decoded.defect or "")
    with pytest.raises(RemoteProtocolError, match="CRC"):
        read_neutral(neutral)


def test_a_record_without_a_checksum_gets_one() -> None:
    stored = bytearray(encode_record(Record("T", b"body")))
    stored[8:12] = bytes(4)
    ((neutral, _, _),) = neutral_records(bytes(stored))
    assert neutral == encode_neutral(b"body")


@given(st.binary(max_size=200), st.integers(0, 120), st.integers(0, 255))
def test_damaged_bytes_raise_only_protocol_errors(noise: bytes, at: int, value: int) -> None:
    whole = encode_neutral(b"body", b"TAGS\x01x\x02")
    damaged = bytearray(whole + noise)
    damaged[at % len(damaged)] = value
    for read in (lambda data: list(neutral_records(data)), read_neutral):
        try:
            read(bytes(damaged))
        except RemoteProtocolError:
            continue
