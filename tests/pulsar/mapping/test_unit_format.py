"""The unit format `pulsar.entry`: entries as brokers store them become the messages that a lane would deliver."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.formats import message_positions
from mqbridge.adapter.registry import find_format
from mqbridge.message import Message, Unit
from mqbridge.pulsar.mapping.stored import decode_entries
from mqbridge.pulsar.mapping.unit_format import EntryFormat
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS, compress
from mqbridge.pulsar.wire.entry import ENCRYPTED, decode_entry, stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import KeyValue, MessageMetadata, SingleMessageMetadata

pytestmark = pytest.mark.usefixtures("transcoder")

CAPTURED_SINGLE = bytes.fromhex(
    "0e011aa9374f000000210a07656d752d302d30100018ab84a6db9f3422060a016112016232026b3160d20968656c6c6f"
)
"""An entry of the official C++ client: key k1, property a=b, event time 1234, payload hello."""
CAPTURED_BATCH = bytes.fromhex(
    "0e011ffe7c73000000180a07656d752d302d31100018ac84a6db9f3432026b305803"
    "0000000812026b30180240006d300000000812026b31180240016d310000000812026b32180240026d32"
)
"""A batch of the official C++ client: payloads m0, m1, m2 with the keys k0, k1, k2."""


def decode(data: bytes, count: int, position: tuple[int, ...] = (7,)) -> list[Message]:
    unit = Unit(data, count, None, position)
    messages = list(EntryFormat().decode(unit, message_positions(unit)))
    assert len(messages) == count
    assert [message.position for message in messages] == message_positions(unit)
    return messages


def metadata_of(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=3, publish_time=7, **fields)  # type: ignore[arg-type]


def compressed(codec: str, payload: bytes, **fields: object) -> bytes:
    number = CODEC_NUMBERS[codec]
    metadata = metadata_of(compression=number, uncompressed_size=len(payload), **fields)
    return stored_entry(metadata, compress(number, payload))


def test_the_format_is_registered() -> None:
    assert isinstance(find_format("pulsar.entry"), EntryFormat)


def test_a_captured_message() -> None:
    [message] = decode(CAPTURED_SINGLE, 1)
    assert (message.payload, message.key, message.event_time) == (b"hello", "k1", 1234)
    assert (message.properties, message.defect) == ((("a", "b"),), None)
    assert message.publish_time == 1795219358251


def test_a_captured_batch() -> None:
    messages = decode(CAPTURED_BATCH, 3, (5, 6, 0))
    assert [(message.payload, message.key) for message in messages] == [(b"m0", "k0"), (b"m1", "k1"), (b"m2", "k2")]


@pytest.mark.parametrize("codec", CODEC_NUMBERS)
def test_compressed_entries(codec: str) -> None:
    payload = join_batch((SingleMessageMetadata(), b"%d" % index * 50) for index in range(3))
    messages = decode(compressed(codec, payload, num_messages_in_batch=3), 3)
    assert [message.payload for message in messages] == [b"%d" % index * 50 for index in range(3)]
    assert [message.payload for message in decode(compressed(codec, b"alone"), 1)] == [b"alone"]


def test_messages_without_value_and_those_that_compaction_removed_count() -> None:
    singles = [(SingleMessageMetadata(null_value=index == 1, compacted_out=index == 0), b"") for index in range(3)]
    messages = decode(stored_entry(metadata_of(num_messages_in_batch=3), join_batch(singles)), 3)
    assert [message.payload for message in messages] == [b"", None, b""]


def encrypted_batch() -> bytes:
    metadata = metadata_of(num_messages_in_batch=5, partition_key="k")
    metadata.encryption_keys.add(key="app", value=b"data key")
    metadata.properties.append(KeyValue(key="a", value="1"))
    return stored_entry(metadata, b"secret")


@pytest.mark.parametrize("count", [1, 5])
def test_an_encrypted_batch_is_kept_in_its_first_message(count: int) -> None:
    """A lane counts it as one message, and its producer as five."""
    first, *others = decode(encrypted_batch(), count)
    assert (first.payload, first.defect, first.key, first.properties[0]) == (encrypted_batch(), ENCRYPTED, "k", ("a", "1"))
    assert [(message.payload, message.defect) for message in others] == [(b"", ENCRYPTED)] * (count - 1)


def test_a_chunk_is_kept() -> None:
    chunk = stored_entry(metadata_of(uuid="u", chunk_id=1, num_chunks_from_msg=3, total_chunk_msg_size=9), b"two")
    [message] = decode(chunk, 1)
    assert message.payload == chunk
    assert message.defect == "chunk 1 of 3 of u is not joined with the other chunks"
    wrong = stored_entry(metadata_of(uuid="u", chunk_id=3, num_chunks_from_msg=3, total_chunk_msg_size=9), b"four")
    assert "invalid chunk fields" in str(decode(wrong, 1)[0].defect)
    [whole] = decode(stored_entry(metadata_of(uuid="u", chunk_id=0, num_chunks_from_msg=1, total_chunk_msg_size=3), b"one"), 1)
    assert (whole.payload, whole.defect) == (b"one", None)


@pytest.mark.parametrize(
    ("data", "count", "reason"),
    [
        (CAPTURED_BATCH[:-1] + b"?", 3, "CRC32C mismatch"),
        (CAPTURED_BATCH, 4, "the entry has 3 messages, and its unit says 4"),
        (CAPTURED_BATCH, 2, "the entry has 3 messages, and its unit says 2"),
        (CAPTURED_SINGLE, 2, "the entry has 1 messages, and its unit says 2"),
        (b"", 1, "the entry ends before its metadata"),
        (b"\xff\xff\xff\xff", 2, "exceeds the entry"),
        (b"\x00\x00\x00\x01\xff", 1, "cannot be parsed"),
        (b"\x0e\x02\xff\xff\xff\xffbroker metadata", 1, "the entry ends before its metadata"),
        (stored_entry(metadata_of(num_messages_in_batch=2), b"no batch framing at all"), 2, "batch of 2"),
        (stored_entry(metadata_of(compression=CODEC_NUMBERS["zstd"], uncompressed_size=9), b"?"), 1, ""),
    ],
)
def test_what_cannot_be_read_is_kept_whole(data: bytes, count: int, reason: str) -> None:
    first, *others = decode(data, count)
    assert first.payload == data
    assert first.property("mqbridge.raw") == "pulsar.entry.v1"
    assert first.defect is not None
    assert reason in first.defect
    assert [(message.payload, message.defect) for message in others] == [(b"", first.defect)] * (count - 1)


def test_a_unit_without_messages_has_none() -> None:
    assert decode(CAPTURED_SINGLE, 0) == []


@pytest.mark.parametrize("count", [1, 999, 100_000])
def test_an_entry_of_another_number_of_messages_is_not_unpacked(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has counted the memory that its messages would take."""
    payload = join_batch((SingleMessageMetadata(), b"") for _ in range(1000))
    data = compressed("zstd", payload, num_messages_in_batch=1000)
    monkeypatch.setattr("mqbridge.pulsar.wire.entry.decompress", lambda *_: pytest.fail("it is unpacked"))
    first, *others = decode(data, count)
    assert first.payload == data
    assert {message.defect for message in (first, *others)} == {f"the entry has 1000 messages, and its unit says {count}"}
    assert len({id(message.defect) for message in others}) <= 1


texts = st.text(st.characters(codec="utf-8"), max_size=5)
metadatas = st.builds(
    lambda properties, key, ordering_key, event_time, deliver_at: {
        "properties": [KeyValue(key=name, value=value) for name, value in properties],
        **({} if key is None else {"partition_key": key}),
        **({} if ordering_key is None else {"ordering_key": ordering_key}),
        **({} if event_time is None else {"event_time": event_time}),
        **({} if deliver_at is None else {"deliver_at_time": deliver_at}),
    },
    st.lists(st.tuples(texts, texts), max_size=3),
    st.none() | texts,
    st.none() | st.binary(max_size=4),
    st.none() | st.integers(0, (1 << 64) - 1),
    st.none() | st.integers(0, 1 << 40),
)


def fields(message: Message) -> dict[str, object]:
    return {name: value for name, value in message.as_dict().items() if name != "position"}


@given(metadatas, st.lists(st.binary(max_size=30), max_size=4), st.sampled_from(sorted(CODEC_NUMBERS)))
def test_a_unit_is_decoded_as_a_lane_decodes_its_entry(own: dict[str, object], payloads: list[bytes], codec: str) -> None:
    if payloads:
        own["num_messages_in_batch"] = len(payloads)
    payload = join_batch((SingleMessageMetadata(), each) for each in payloads) if payloads else b"alone"
    data = compressed(codec, payload, **own)
    count = max(1, len(payloads))
    expected = decode_entries([decode_entry(data)])
    assert [fields(message) for message in decode(data, count)] == [fields(message) for message in expected]


@given(st.binary(max_size=80), st.integers(0, 3))
def test_any_bytes_are_decoded(data: bytes, count: int) -> None:
    decode(data, count)


@given(st.sampled_from([CAPTURED_SINGLE, CAPTURED_BATCH, encrypted_batch()]), st.data())
def test_damaged_metadata_without_a_checksum(entry: bytes, draw: st.DataObject) -> None:
    data = bytearray(entry[6:])  # nothing but the metadata's own form protects it
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    decode(bytes(data), draw.draw(st.sampled_from([1, 3, 5])))
