"""Entries and batches: entries of other clients are decoded, ours have the same bytes, damage becomes a defect."""

import contextlib
import struct
import tracemalloc
import zlib
from typing import get_args

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.wire.batch import frame_message, join_batch, split_batch
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS, MAX_UNCOMPRESSED_BYTES, compress, decompress
from mqbridge.pulsar.wire.entry import (
    MAGIC_BROKER_METADATA,
    MAX_BATCH_MESSAGES,
    Entry,
    SendEncoder,
    decode_entry,
    encode_entry_prefix,
    has_valid_checksum,
)
from mqbridge.pulsar.wire.frame import parse_frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BrokerEntryMetadata, MessageMetadata, SingleMessageMetadata
from mqbridge.pulsar.wire.single_metadata import encode_property
from tests.example_counts import examples
from tests.pulsar.wire import vectors


def entry_of(frame: bytes):
    parsed = parse_frame(frame)
    return decode_entry(frame, parsed.entry_offset)


def test_crc32c_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283


def test_a_plain_entry_of_the_cpp_client():
    entry = entry_of(vectors.SEND_PLAIN)
    assert (entry.defect, entry.is_batch, entry.count, entry.payload) == (None, False, 1, b"hello")
    metadata = entry.metadata
    assert (metadata.producer_name, metadata.partition_key, metadata.event_time) == ("emu-0-0", "k1", 1234)
    assert [(pair.key, pair.value) for pair in metadata.properties] == [("a", "b")]


def test_a_batch_of_the_cpp_client():
    entry = entry_of(vectors.SEND_BATCH)
    messages = split_batch(entry.payload, entry.count)
    assert [payload for _, payload in messages] == [b"m0", b"m1", b"m2"]
    assert [(single.partition_key, single.sequence_id) for single, _ in messages] == [("k0", 0), ("k1", 1), ("k2", 2)]
    assert join_batch(messages) == entry.payload


def test_an_unknown_codec_is_a_defect():
    """A closed enumeration would parse it as no compression, and return the packed bytes as the message."""
    known = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, uncompressed_size=100)
    metadata = MessageMetadata.FromString(known.SerializeToString() + b"\x40\x05")
    entry = decode_entry(encode_entry_prefix(metadata, b"packed") + b"packed")
    entry.unpack()
    assert entry.defect == "compression codec 5 is unknown"


def test_a_batch_of_one_is_a_batch():
    entry = entry_of(vectors.SEND_BATCH_OF_ONE)
    assert entry.is_batch
    assert [payload for _, payload in split_batch(entry.payload, entry.count)] == [b"single"]


@pytest.mark.parametrize(
    "frame", [vectors.SEND_PLAIN, vectors.SEND_BATCH, vectors.SEND_BATCH_OF_ONE], ids=["plain", "batch", "batch-of-one"]
)
def test_sends_equal_those_of_the_cpp_client(frame):
    parsed = parse_frame(frame)
    send, entry = parsed.command.send, decode_entry(frame, parsed.entry_offset)
    prefix = encode_entry_prefix(entry.metadata, entry.payload)
    assert prefix + entry.payload == frame[parsed.entry_offset :]
    if send.HasField("num_messages"):
        encoder = SendEncoder(send.producer_id)
        for _ in range(2):  # the command object is used again
            written = encoder.encode(send.sequence_id, send.sequence_id, send.num_messages, entry.metadata, entry.payload)
            assert written + entry.payload == frame


def test_the_highest_sequence_id_is_written_only_if_it_is_higher():
    encoder = SendEncoder(1)
    metadata = MessageMetadata(producer_name="p", sequence_id=5, publish_time=1)
    first = parse_frame(encoder.encode(5, 9, 5, metadata, b"") + b"").command.send
    second = parse_frame(encoder.encode(10, 10, 1, metadata, b"")).command.send
    assert (first.highest_sequence_id, second.HasField("highest_sequence_id")) == (9, False)


def test_entries_with_broker_metadata_or_without_checksum_are_decoded():
    parsed = parse_frame(vectors.SEND_PLAIN)
    stored = vectors.SEND_PLAIN[parsed.entry_offset :]
    broker = BrokerEntryMetadata(broker_timestamp=7, index=3).SerializeToString()
    for data in (stored[6:], struct.pack(">HI", MAGIC_BROKER_METADATA, len(broker)) + broker + stored):
        entry = decode_entry(data)
        assert (entry.defect, entry.payload) == (None, b"hello")


def test_every_flipped_byte_of_an_entry_is_detected():
    parsed = parse_frame(vectors.SEND_BATCH)
    stored = vectors.SEND_BATCH[parsed.entry_offset :]
    for at in range(2, len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 0x40
        assert decode_entry(bytes(damaged)).defect is not None
        assert not has_valid_checksum(bytes(damaged))
    assert has_valid_checksum(stored)


def test_every_truncated_entry_is_detected():
    parsed = parse_frame(vectors.SEND_PLAIN)
    stored = vectors.SEND_PLAIN[parsed.entry_offset :]
    for end in range(len(stored)):
        assert decode_entry(stored[:end]).defect is not None


@given(st.binary(max_size=300))
def test_fuzz_entries_never_raise(data):
    entry = decode_entry(data)
    entry.unpack()
    for magic in (b"\x0e\x01", b"\x0e\x02"):
        decode_entry(magic + data).unpack()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_of_too_many_messages_is_not_unpacked(codec: str) -> None:
    """A few KB of Zstandard unpack to millions of messages without payload, which took gigabytes of memory when decoded."""
    empty = b"\0\0\0\2\x18\0"
    for count, is_readable in ((MAX_BATCH_MESSAGES, True), (MAX_BATCH_MESSAGES + 1, False), (11_000_000, False)):
        plain = empty * count
        packed = compress(CODEC_NUMBERS[codec], plain)
        metadata = MessageMetadata(
            compression=CODEC_NUMBERS[codec],
            uncompressed_size=len(plain),
            num_messages_in_batch=count,  # type: ignore[arg-type]
        )
        entry = Entry(metadata, packed)
        del plain
        tracemalloc.start()
        try:
            entry.unpack()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (entry.defect is None, entry.count) == (is_readable, count if is_readable else 1)
        if not is_readable:
            assert str(entry.defect) == f"the batch has {count} messages, more than the limit of 100000"
            assert entry.payload is packed, "for the dead letter, as it is stored"
            assert entry.held_bytes < len(packed) + 10_000
            assert peak < 100_000


@given(st.binary(max_size=200), st.integers(0, 5))
def test_fuzz_batches_raise_only_protocol_errors(data, count):
    with contextlib.suppress(RemoteProtocolError):
        split_batch(data, count)


@given(st.lists(st.tuples(st.binary(max_size=100), st.text(max_size=20), st.booleans()), max_size=20))
def test_batches_survive_the_round_trip(messages):
    singles = [(SingleMessageMetadata(partition_key=key, null_value=null), payload) for payload, key, null in messages]
    read = split_batch(join_batch(singles), len(singles))
    assert [(payload, single.partition_key, single.null_value) for single, payload in read] == messages


@given(st.lists(st.tuples(st.text(max_size=200), st.text(max_size=300)), max_size=5))
def test_an_encoded_property_equals_protobufs(pairs):
    single = SingleMessageMetadata(payload_size=0)
    for key, value in pairs:
        single.properties.add(key=key, value=value)
    by_hand = b"".join(encode_property(key, value) for key, value in pairs)
    assert SingleMessageMetadata.FromString(by_hand + b"\x18\x00") == single


def test_a_batch_with_a_wrong_count_or_trailing_bytes_is_refused():
    data = frame_message(SingleMessageMetadata(), b"x")
    for payload, count in ((data, 2), (data + b"\x00", 1), (data, 0), (data[:-1], 1), (b"\x00\x00", 1)):
        with pytest.raises(RemoteProtocolError):
            split_batch(payload, count)


# --- compression ------------------------------------------------------------------------------------------------------

CODECS = sorted(set(CODEC_NUMBERS.values()))


@settings(max_examples=examples(30))
@given(st.sampled_from(CODECS), st.binary(max_size=5000), st.integers(1, 4))
def test_every_codec_survives_the_round_trip(codec, data, times):
    data *= times
    assert decompress(codec, compress(codec, data), len(data)) == data


def test_an_unfinished_zlib_stream_of_java_is_decompressed():
    writer = zlib.compressobj()
    data = b"some text " * 1000
    stream = writer.compress(data) + writer.flush(zlib.Z_SYNC_FLUSH)
    assert decompress(pb.ZLIB, stream, len(data)) == data


@pytest.mark.parametrize("codec", CODECS[1:])
def test_decompression_bombs_and_wrong_sizes_are_refused(codec):
    data = bytes(100_000)
    packed = compress(codec, data)
    for size in (0, 10, len(data) - 1, len(data) + 1, MAX_UNCOMPRESSED_BYTES + 1):
        with pytest.raises(RemoteProtocolError):
            decompress(codec, packed, size)


@given(st.sampled_from([*CODECS[1:], 77]), st.binary(max_size=100), st.integers(0, 1000))
def test_fuzz_decompression_raises_only_protocol_errors(codec, data, size):
    with contextlib.suppress(RemoteProtocolError):
        assert len(decompress(codec, data, size)) == size


def test_a_payload_that_does_not_decompress_is_a_defect_with_the_raw_payload():
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=pb.LZ4, uncompressed_size=50)
    entry = decode_entry(encode_entry_prefix(metadata, b"junk") + b"junk")
    assert entry.defect is None
    entry.unpack()
    assert entry.defect is not None
    assert entry.payload == b"junk"


def test_unpacking_twice_changes_nothing():
    data = b"text " * 100
    packed = compress(pb.ZSTD, data)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, compression=pb.ZSTD, uncompressed_size=len(data))
    entry = decode_entry(encode_entry_prefix(metadata, packed) + packed)
    entry.unpack()
    entry.unpack()
    assert (entry.payload, entry.defect) == (data, None)


def test_encrypted_entries_are_a_defect():
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    metadata.encryption_keys.add(key="k", value=b"v")
    entry = decode_entry(encode_entry_prefix(metadata, b"secret") + b"secret")
    entry.unpack()
    assert entry.defect is not None
    assert "encrypted" in entry.defect


def test_a_chunk_that_is_not_joined_is_a_defect():
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, chunk_id=1, num_chunks_from_msg=3, uuid="u")
    entry = decode_entry(encode_entry_prefix(metadata, b"part") + b"part")
    entry.unpack()
    assert entry.defect is not None
    assert "chunk 1 of 3" in entry.defect


def test_the_configuration_names_every_codec() -> None:
    assert get_args(PulsarOutboundOptions.model_fields["compression"].annotation) == tuple(CODEC_NUMBERS)
