"""Raw messages: what a topic holds of a message that cannot be read is in its dead letter, and can be put back."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import Failure
from mqbridge.message import Message, Partition
from mqbridge.pulsar.mapping.request import EncodedEntry, Limits, encode, encode_restored
from mqbridge.pulsar.mapping.stored import decode_entries
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS, compress
from mqbridge.pulsar.wire.entry import ENCRYPTED, Entry, decode_entry, stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

pytestmark = pytest.mark.usefixtures("transcoder")

FORM = ("mqbridge.raw", "pulsar.entry.v1")
SOURCE = Partition("c", "orders", "0", 0)


def metadata_of(**fields: object) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=3, publish_time=7, **fields)  # type: ignore[arg-type]


def encrypted(**fields: object) -> MessageMetadata:
    metadata = metadata_of(encryption_param=b"initial vect", encryption_algo="x", **fields)
    metadata.encryption_keys.add(key="app", value=b"data key", metadata=[{"key": "version", "value": "2"}])
    return metadata


def dead_letters(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the dead letters of unreadable messages, as a consumer of a dead-letter topic in Pulsar reads them."""
    failures = [MessageFailure(index, Failure.REFUSED, message.defect or "") for index, message in enumerate(messages)]
    share = DeadLetters("r", None, "c/dead").make("target", messages, failures, SOURCE)  # type: ignore[arg-type]
    entries, refused = encode(share.messages, "c|orders|0|", Limits())
    assert not refused
    return decode_entries([Entry(entry.metadata, entry.payload, ledger=9, entry=at) for at, entry in enumerate(entries)])


def restored(messages: Sequence[Message]) -> list[EncodedEntry]:
    entries, failures = encode_restored(messages, "c|dead|0|", Limits())
    assert not failures
    return entries


def test_an_encrypted_message_is_put_back_with_all_that_its_key_holder_needs() -> None:
    metadata = encrypted(partition_key="k", ordering_key=b"o", event_time=5, compression=3, uncompressed_size=900)
    metadata.properties.add(key="a", value="1")
    metadata.properties.add(key="mqbridge.origin", value="c|t|0|1")
    [message] = decode_entries([Entry(metadata, b"secret", ledger=1, entry=2)])
    assert message.defect == ENCRYPTED
    [letter] = dead_letters([message])
    assert (letter.key, letter.ordering_key, letter.event_time) == ("k", b"o", 5)
    assert letter.properties[:3] == (("a", "1"), ("mqbridge.origin", "c|t|0|1"), FORM)
    assert letter.property("mqbridge.dead.reason") == ENCRYPTED
    assert letter.origin == "c|orders|0|1:2:0", "that of the letter, not the property of the message inside"
    [entry] = restored([letter])
    metadata.publish_time = 0  # the producer sets a new one
    assert (entry.metadata, entry.payload, entry.count) == (metadata, b"secret", 1)


def test_an_encrypted_batch_counts_as_one_message_and_is_put_back_as_a_batch() -> None:
    metadata = encrypted(num_messages_in_batch=5, partition_key="first", highest_sequence_id=7)
    [message] = decode_entries([Entry(metadata, b"secret")])
    [entry] = restored(dead_letters([message]))
    assert (entry.metadata.num_messages_in_batch, entry.count, list(entry.indexes)) == (5, 5, [0])
    assert not entry.metadata.HasField("highest_sequence_id"), "the producer numbers the messages anew"


def test_chunks_keep_the_publish_time_that_they_have_in_common() -> None:
    metadata = metadata_of(uuid="u", chunk_id=1, num_chunks_from_msg=3, total_chunk_msg_size=9)
    [message] = decode_entries([Entry(metadata, b"two")])
    [entry] = restored(dead_letters([message]))
    assert (entry.metadata, entry.payload) == (metadata, b"two")


def test_a_payload_that_does_not_decompress_is_kept_as_stored() -> None:
    metadata = metadata_of(compression=CODEC_NUMBERS["lz4"], uncompressed_size=100)
    [message] = decode_entries([Entry(metadata, b"damaged")])
    assert "after decompression" in str(message.defect)
    assert message.payload == stored_entry(metadata, b"damaged")


@pytest.mark.parametrize("count", [50, 3])
def test_a_batch_with_a_wrong_number_of_messages_is_kept(count: int) -> None:
    """Announced are more messages than fit, which shows before it is decompressed, or others than there are."""
    batch = join_batch([(SingleMessageMetadata(), b"x" * 9)] * 2)
    packed = compress(CODEC_NUMBERS["zstd"], batch)
    metadata = metadata_of(compression=CODEC_NUMBERS["zstd"], uncompressed_size=len(batch), num_messages_in_batch=count)
    [message] = decode_entries([Entry(metadata, packed)])
    entry = decode_entry(message.payload or b"")
    assert entry.defect is None
    assert (entry.payload, entry.metadata.compression) in [(packed, CODEC_NUMBERS["zstd"]), (batch, 0)]


EMPTY_PROPERTY = b"\x0a\x04\x0a\x00\x12\x00"


@pytest.mark.parametrize(
    ("messages", "properties", "problem"),
    [
        (1, 11_000_000, "66000002 bytes"),  # the metadata of one message
        (20, 60_000, "more than 1000000 properties"),
        (20, 50_000, None),
    ],
)
def test_a_batch_of_too_many_properties_is_kept_as_stored(messages: int, properties: int, problem: str | None) -> None:
    """Compressed, it has a few KB, and would take gigabytes when it is decoded."""
    single = EMPTY_PROPERTY * properties + b"\x18\x00"
    payload = (len(single).to_bytes(4, "big") + single) * messages
    packed = compress(CODEC_NUMBERS["zstd"], payload)
    metadata = metadata_of(compression=CODEC_NUMBERS["zstd"], uncompressed_size=len(payload), num_messages_in_batch=messages)
    found = decode_entries([Entry(metadata, packed)])
    if problem is None:
        assert [len(message.properties) for message in found] == [properties] * messages
    else:
        [message] = found
        assert problem in str(message.defect)
        assert message.payload == stored_entry(metadata, packed), "not decompressed"


@given(st.binary(max_size=60), st.binary(max_size=4))
def test_an_entry_that_cannot_be_parsed_is_kept_byte_for_byte(data: bytes, changed: bytes) -> None:
    whole = stored_entry(encrypted(), data)
    for torn in (changed + whole[len(changed) :], whole[: len(data)], data):
        entry = decode_entry(b"\x0e\x02\x00\x00\x00\x01!" + torn)
        if not entry.is_parsed:
            assert [message.payload for message in decode_entries([entry])] == [torn]


def test_what_no_broker_would_take_is_refused_with_the_reason() -> None:
    damaged = stored_entry(encrypted(), b"secret")[:-1] + b"?"
    messages = [
        Message(b"one"),
        Message(damaged, (FORM,)),
        Message(b"x", (("mqbridge.raw", "tubemq.message.v1"),)),
        Message(None, (FORM,)),
        Message(b"two"),
    ]
    entries, failures = encode_restored(messages, None, Limits(), 10)
    assert [list(entry.indexes) for entry in entries] == [[10], [14]]
    assert [(failure.index, failure.failure_kind) for failure in failures] == [(at, Failure.REFUSED) for at in (11, 12, 13)]
    assert "CRC32C mismatch" in failures[0].reason
    assert "'tubemq.message.v1', and Pulsar takes only 'pulsar.entry.v1'" in failures[1].reason


def test_without_restoring_raw_messages_are_copied_as_they_are() -> None:
    [message] = decode_entries([Entry(encrypted(), b"secret")])
    [letter] = dead_letters([message])
    entries, failures = encode([letter], None, Limits())
    [copy] = decode_entries([Entry(entry.metadata, entry.payload) for entry in entries])
    assert (copy.payload, copy.property("mqbridge.raw"), failures) == (letter.payload, FORM[1], [])
