"""Chunks: split and joined, in every order that producers, brokers and damage can cause."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire import chunk_joiner
from mqbridge.pulsar.wire.chunk_joiner import (
    MAX_COMPLETED,
    MAX_NAME_CHARS,
    MAX_OVERHEAD_BYTES,
    MAX_REPEATED_CHUNKS,
    ChunkJoiner,
    ChunkLimits,
)
from mqbridge.pulsar.wire.chunks import describes_chunk, max_chunk_payload, split_payload
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS, compress
from mqbridge.pulsar.wire.entry import ENCRYPTED, Entry, decode_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

PAYLOAD = bytes(range(100))


def chunks_of(sequence: int, payload: bytes = PAYLOAD, size: int = 30, at: int = 0, published: int = 1) -> list[Entry]:
    """Return the chunks of a message as entries with the ids (1, at) and following."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=published, partition_key="k")
    parts = split_payload(metadata, payload, size)
    return [Entry(chunk, part, ledger=1, entry=at + number) for number, (chunk, part) in enumerate(parts)]


def add_all(joiner: ChunkJoiner, *entries: Entry) -> list[tuple[bytes | None, str | None, tuple[int, ...]]]:
    """Payload, defect and entry numbers of the chunks of each joined message."""
    joined_messages = [joined for entry in entries for joined in joiner.add(entry, 0.0)]
    return [
        (None, None, tuple(chunk_id[1] for chunk_id in chunk_ids))
        if entry is None
        else (entry.payload, entry.defect, tuple(chunk_id[1] for chunk_id in chunk_ids))
        for entry, chunk_ids, _ in joined_messages
    ]


def test_chunk_metadata_has_uuid_index_and_totals():
    fields = [(chunk.uuid, chunk.chunk_id, chunk.num_chunks_from_msg, chunk.total_chunk_msg_size) for chunk, _ in split_one()]
    assert fields == [("p-3", number, 4, 100) for number in range(4)]
    assert b"".join(part for _, part in split_one()) == PAYLOAD


def split_one() -> list[tuple[MessageMetadata, bytes]]:
    return list(split_payload(MessageMetadata(producer_name="p", sequence_id=3, publish_time=1), PAYLOAD, 30))


@given(st.binary(min_size=2, max_size=5000), st.integers(1, 700), st.text(max_size=40))
def test_a_chunk_with_its_metadata_fits_into_the_message_size(payload, room, name):
    metadata = MessageMetadata(producer_name=name, sequence_id=1 << 62, publish_time=1 << 50)
    limit = metadata.ByteSize() + len(name.encode()) + 64 + room
    size = max_chunk_payload(metadata, limit)
    assert size == room
    assert all(chunk.ByteSize() + len(part) <= limit for chunk, part in split_payload(metadata, payload, size))


def test_a_joined_message_is_an_ordinary_entry():
    joiner = ChunkJoiner(ChunkLimits())
    *before, last = chunks_of(0, at=5)
    assert add_all(joiner, *before) == []
    ((entry, chunk_ids, _),) = joiner.add(last, 0.0)
    assert entry is not None
    assert (entry.id, chunk_ids) == ((1, 8), ((1, 5), (1, 6), (1, 7), (1, 8)))
    assert not entry.metadata.HasField("uuid")
    (message,) = decode_plain(entry)
    assert (message.payload, message.key, message.defect, message.position) == (PAYLOAD, "k", None, (1, 8, 0))
    assert (len(joiner), joiner.held_bytes) == (0, 0)


def test_compression_is_undone_after_joining():
    plain = PAYLOAD * 50
    packed = compress(CODEC_NUMBERS["zstd"], plain)
    entries = chunks_of(0, packed, 20)
    for entry in entries:
        entry.metadata.compression = CODEC_NUMBERS["zstd"]
        entry.metadata.uncompressed_size = len(plain)
    joiner = ChunkJoiner(ChunkLimits())
    (joined,) = [message for entry in entries for message in joiner.add(entry, 0.0)]
    assert [message.payload for message in decode_plain(joined.entry)] == [plain]


def test_chunks_of_several_producers_may_be_interleaved():
    first, second = chunks_of(0, b"a" * 60), chunks_of(1, b"b" * 60)
    assert add_all(ChunkJoiner(ChunkLimits()), first[0], second[0], first[1], second[1]) == [
        (b"a" * 60, None, (0, 1)),
        (b"b" * 60, None, (0, 1)),
    ]


def test_a_repeated_chunk_is_kept_once_and_acknowledged():
    zero, one, two, three = chunks_of(0)
    again = chunks_of(0, at=10)
    found = add_all(ChunkJoiner(ChunkLimits()), zero, one, again[0], again[1], two, three)
    assert found == [(PAYLOAD, None, (0, 1, 10, 11, 2, 3))]


def test_repeated_chunks_of_a_complete_message_are_only_acknowledged():
    joiner = ChunkJoiner(ChunkLimits())
    assert len(add_all(joiner, *chunks_of(0))) == 1
    assert add_all(joiner, *chunks_of(0, at=10)[:2]) == [(None, None, (10,)), (None, None, (11,))]
    assert add_all(joiner, *chunks_of(0)) == [(PAYLOAD, None, (0, 1, 2, 3))], "delivered again"
    assert add_all(joiner, *chunks_of(0, published=2, at=20)) == [(PAYLOAD, None, (20, 21, 22, 23))], (
        "another message with this uuid"
    )


def test_a_missing_chunk_is_one_defect_and_never_a_fragment():
    zero, one, two, three = chunks_of(0)
    for present in ([zero, two, three], [one, two, three], [three], [zero, three]):
        joiner = ChunkJoiner(ChunkLimits(), begins_inside=True)
        ((entry, chunk_ids, _),) = [joined for chunk in present for joined in joiner.add(chunk, 0.0)]
        assert entry is not None
        assert "missing" in str(entry.defect)
        assert chunk_ids == tuple(chunk.id for chunk in present)
        assert raw_chunks(entry) == [(chunk.metadata, chunk.payload) for chunk in present], "all chunks that were received"
        assert [message.position for message in decode_plain(entry)] == [(*entry.id, index) for index in range(len(present))]


def test_a_chunk_that_comes_late_is_kept_for_the_dead_letters():
    """On a shared subscription a broker may deliver a chunk again after later ones. The chunks are acknowledged together."""
    zero, one, two, three = chunks_of(0)
    joiner = ChunkJoiner(ChunkLimits())
    received = [zero, two, one, two, one, three]
    ((entry, chunk_ids, _),) = [joined for chunk in received for joined in joiner.add(chunk, 0.0)]
    assert entry is not None
    assert chunk_ids == tuple(chunk.id for chunk in received)
    assert raw_chunks(entry) == [(chunk.metadata, chunk.payload) for chunk in (zero, one, two, three)], "as they can be joined"


def raw_chunks(entry: Entry) -> list[tuple[MessageMetadata, bytes]]:
    """Return metadata and payload of the entries in the raw messages of an unreadable entry."""
    assert entry.defect is not None
    messages = decode_plain(entry)
    assert [message.defect for message in messages] == [entry.defect] * entry.count
    raw = [decode_entry(message.payload or b"") for message in messages]
    return [(each.metadata, each.payload) for each in raw]


def test_a_message_without_its_last_chunk_expires():
    joiner = ChunkJoiner(ChunkLimits(expiry_s=60.0))
    zero, one, *_ = chunks_of(0)
    joiner.add(zero, 0.0)
    joiner.add(one, 50.0)
    assert joiner.expire(100.0) == []
    joiner.restart_timers(100.0)
    assert joiner.expire(159.0) == []
    ((entry, chunk_ids, _),) = joiner.expire(160.0)
    assert "only 2 of 4 chunks" in str(entry.defect)
    assert chunk_ids == ((1, 0), (1, 1))
    assert raw_chunks(entry) == [(zero.metadata, zero.payload), (one.metadata, one.payload)]
    assert len(joiner) == 0


def test_a_late_chunk_without_the_ones_before_it_is_delivered_by_itself():
    """Waiting for the rest, it would keep others from their room, and hold back all acknowledgements for up to a minute."""
    joiner = ChunkJoiner(ChunkLimits())
    zero, *late = chunks_of(0)
    for chunk in late:
        ((entry, chunk_ids, is_late),) = joiner.add(chunk, 0.0)
        assert entry is chunk
        assert (entry.defect, is_late) == (f"chunk 0 of 4 of p-0 is missing: received chunk {chunk.metadata.chunk_id}", True)
        assert chunk_ids == (chunk.id,)
        assert len(joiner) == 0
        assert raw_chunks(entry) == [(chunk.metadata, chunk.payload)]
    assert add_all(joiner, zero, *chunks_of(0, at=4)[1:]) == [(PAYLOAD, None, (0, 5, 6, 7))], "sent once more, and whole"


def test_a_late_chunk_of_an_abandoned_message_begins_no_other():
    joiner = ChunkJoiner(ChunkLimits(expiry_s=60.0))
    zero, one, two, three = chunks_of(0)
    assert add_all(joiner, zero, one) == []
    assert len(joiner.expire(60.0)) == 1
    assert [numbers for _, _, numbers in add_all(joiner, two, three)] == [(2,), (3,)]
    assert (len(joiner), joiner.held_bytes) == (0, 0)


@pytest.mark.parametrize("count", [11, ChunkLimits().messages])
def test_all_interleaved_messages_within_the_limits_survive(count: int):
    interleaved = [chunks_of(sequence, b"%04d" % sequence * 7, 7, at=10 * sequence) for sequence in range(count)]
    joiner = ChunkJoiner(ChunkLimits())
    found = [each for row in zip(*(chunks[:3] for chunks in interleaved), strict=True) for each in add_all(joiner, *row)]
    assert found == []
    rest = [chunk for chunks in interleaved for chunk in chunks[3:]]
    assert [(payload, defect) for payload, defect, _ in add_all(joiner, *rest)] == [
        (b"%04d" % sequence * 7, None) for sequence in range(count)
    ]
    assert (len(joiner), joiner.held_bytes) == (0, 0)


def test_messages_that_would_not_fit_as_announced_survive_if_they_fit_as_received():
    """Two of 36 MB each, as they are sent: the second begins while the first is incomplete."""
    mib = 1 << 20
    interleaved = [chunks_of(sequence, bytes(36 * mib), 5 * mib, at=10 * sequence) for sequence in range(2)]
    joiner = ChunkJoiner(ChunkLimits())
    found = [each for pair in zip(*interleaved, strict=True) for each in add_all(joiner, *pair)]
    assert [(len(payload or b""), defect) for payload, defect, _ in found] == [(36 * mib, None)] * 2


def test_beyond_the_limit_the_newest_message_is_abandoned_and_all_others_survive():
    """The chunks of an abandoned one come as they are. If it were the oldest, each would abandon another, and none survive."""
    joiner = ChunkJoiner(ChunkLimits(messages=10))
    interleaved = [chunks_of(sequence, at=10 * sequence) for sequence in range(30)]
    found = [each for row in zip(*interleaved, strict=True) for each in add_all(joiner, *row)]
    assert [defect for _, defect, numbers in found if numbers[0] < 100] == [None] * 10
    abandoned = [numbers for _, defect, numbers in found if defect is not None]
    assert sorted(abandoned) == [(10 * sequence + number,) for sequence in range(10, 30) for number in range(4)]
    assert "too many incomplete chunked messages (limits: 10 messages" in str(found[0][1])
    assert (len(joiner), joiner.held_bytes) == (0, 0)


def test_a_limit_of_no_incomplete_messages_is_refused():
    with pytest.raises(ValueError, match=r"ChunkLimits\.messages must be at least 1, not 0"):
        ChunkJoiner(ChunkLimits(messages=0))


def test_bytes_are_bounded_as_received():
    joiner = ChunkJoiner(ChunkLimits(max_bytes=100))
    old, new = chunks_of(0), chunks_of(1, at=10)
    found = [each for row in zip(old, new, strict=True) for each in add_all(joiner, *row)]
    assert [(defect is None, numbers) for _, defect, numbers in found] == [
        (False, (10, 11)),  # together the two had 120 bytes
        (False, (12,)),
        (True, (0, 1, 2, 3)),
        (False, (13,)),
    ]
    assert (len(joiner), joiner.held_bytes) == (0, 0)


@pytest.mark.parametrize("field", ["properties", "partition_key"])
def test_memory_besides_the_payloads_is_bounded(monkeypatch: pytest.MonkeyPatch, field: str):
    """A chunk of two bytes may have five MiB of metadata."""
    monkeypatch.setattr(chunk_joiner, "MAX_OVERHEAD_BYTES", 100_000)
    joiner, seen = ChunkJoiner(ChunkLimits()), set()
    for sequence in range(50):
        first = chunks_of(sequence, b"xy", 1, at=sequence)[0]
        if field == "properties":
            for _ in range(100):
                first.metadata.properties.add(key="", value="")
        else:
            first.metadata.partition_key = "k" * 30_000
        for joined in joiner.add(first, 0.0):
            seen |= set(joined.chunk_ids)
        assert joiner.held_bytes <= 100_000 + 50
    assert len(seen) + len(joiner) == 50
    assert seen == {(1, number) for number in range(len(joiner), 50)}
    assert MAX_OVERHEAD_BYTES == 64 << 20


def test_a_chunk_with_a_name_that_is_too_long_is_not_kept():
    """Names are kept for all messages that are joined or incomplete, and occur in every reason."""
    joiner = ChunkJoiner(ChunkLimits())
    for chunk in chunks_of(0):
        chunk.metadata.uuid = "u" * MAX_NAME_CHARS
        ((entry, _, _),) = joiner.add(chunk, 0.0)
        assert str(entry.defect) == "the chunk's uuid and producer name have 1001 characters, more than the limit of 1000"
    assert len(joiner) == 0


def test_the_memory_of_joined_messages_is_bounded():
    joiner = ChunkJoiner(ChunkLimits())
    for sequence in range(MAX_COMPLETED + 10):
        add_all(joiner, *chunks_of(sequence, b"xy", 1, at=2 * sequence))
    assert len(joiner._completed) == MAX_COMPLETED


def test_each_chunk_of_a_message_that_exceeds_the_limit_is_an_entry_of_its_own():
    """So the memory is limited, no other message is abandoned, and no chunk is lost."""
    joiner = ChunkJoiner(ChunkLimits(max_bytes=150))
    small, huge = chunks_of(0, b"s" * 60), chunks_of(1, b"h" * 1000, size=100, at=5)
    assert add_all(joiner, small[0]) == []
    for chunk in huge:
        ((entry, chunk_ids, _),) = joiner.add(chunk, 0.0)
        assert entry is not None
        assert ("exceed the limit of 150" in str(entry.defect), chunk_ids) == (True, (chunk.id,))
        entry.unpack()
        assert raw_chunks(entry) == [(chunk.metadata, b"h" * 100)]
    assert (len(joiner), joiner.payload_bytes) == (1, 30)
    assert [(payload, defect) for payload, defect, _ in add_all(joiner, small[1])] == [(b"s" * 60, None)]


def test_encrypted_chunks_are_not_joined_because_each_is_encrypted_by_itself():
    joiner = ChunkJoiner(ChunkLimits())
    for number, chunk in enumerate(chunks_of(0)):
        chunk.metadata.encryption_keys.add(key="app", value=b"data key")
        chunk.metadata.encryption_param = bytes([number]) * 12
        ((entry, chunk_ids, _),) = joiner.add(chunk, 0.0)
        assert entry is not None
        assert (entry.defect, chunk_ids) == (ENCRYPTED, (chunk.id,))
        assert raw_chunks(entry) == [(chunk.metadata, chunk.payload)]
    assert len(joiner) == 0


def test_chunks_that_hold_more_than_announced_are_one_defect_at_once():
    joiner = ChunkJoiner(ChunkLimits())
    zero, one, two, _ = chunks = chunks_of(0)
    for chunk in chunks:
        chunk.metadata.total_chunk_msg_size = 50
    joiner.add(zero, 0.0)
    ((entry, chunk_ids, lacks_last_chunk),) = joiner.add(one, 0.0)
    assert entry is not None
    assert ("more than the announced 50" in str(entry.defect), chunk_ids) == (True, (zero.id, one.id))
    assert lacks_last_chunk
    assert raw_chunks(entry) == [(zero.metadata, zero.payload), (one.metadata, one.payload)]
    assert joiner.held_bytes == 0
    assert [numbers for _, _, numbers in add_all(joiner, two)] == [(2,)], "begins no other message"
    assert len(joiner) == 0


def test_a_joined_message_that_cannot_be_unpacked_keeps_its_chunks():
    chunks = chunks_of(0, b"no zstd frame at all", 7)
    for chunk in chunks:
        chunk.metadata.compression, chunk.metadata.uncompressed_size = CODEC_NUMBERS["zstd"], 1000
    joiner = ChunkJoiner(ChunkLimits())
    (joined,) = [message for chunk in chunks for message in joiner.add(chunk, 0.0)]
    joined.entry.unpack()
    assert "do not decompress" in str(joined.entry.defect)
    assert raw_chunks(joined.entry) == [(chunk.metadata, chunk.payload) for chunk in chunks]


def test_messages_with_the_same_uuid_are_joined_each_by_itself():
    """A producer restarts and counts from the same number; or producers of one name are in two clusters, and one replicates."""
    first, second, third = chunks_of(0, b"a" * 100), chunks_of(0, b"b" * 100, published=2, at=10), chunks_of(0, b"c" * 90, at=20)
    joiner = ChunkJoiner(ChunkLimits())
    found = [each for row in zip(first[:3], second[:3], third[:3], strict=True) for each in add_all(joiner, *row)]
    found += add_all(joiner, first[3], second[3])
    assert found == [
        (b"c" * 90, None, (20, 21, 22)),
        (b"a" * 100, None, (0, 1, 2, 3)),
        (b"b" * 100, None, (10, 11, 12, 13)),
    ]


@pytest.mark.parametrize("field", ["total_chunk_msg_size", "num_chunks_from_msg", "publish_time", "producer_name"])
def test_a_chunk_that_differs_from_the_others_of_its_message_is_not_joined_with_them(field: str):
    zero, one, two, three = chunks_of(0)
    value = getattr(two.metadata, field)
    setattr(two.metadata, field, value + 1 if isinstance(value, int) else "other")
    joiner = ChunkJoiner(ChunkLimits())
    ((_, lie, alone), (payload, defect, numbers)) = add_all(joiner, zero, one, two, three)
    assert ("is missing: received chunk 2" in str(lie), alone) == (True, (2,))
    assert (defect == "chunk 2 of 4 of p-0 is missing: received chunk 3", numbers) == (True, (0, 1, 3))
    assert payload == PAYLOAD[:60] + PAYLOAD[90:]


def test_a_message_that_announces_billions_of_chunks_takes_no_memory():
    joiner = ChunkJoiner(ChunkLimits())
    for number in (0, 1, (1 << 31) - 2):
        metadata = MessageMetadata(uuid="u", chunk_id=number, num_chunks_from_msg=(1 << 31) - 1, total_chunk_msg_size=9)
        ((_, defect, numbers),) = add_all(joiner, Entry(metadata, b"x", ledger=1, entry=5))
        assert (defect, numbers) == ("the message announces 2147483647 chunks, more than the limit of 10000", (5,))
    assert len(joiner) == 0


NUMBERS = st.one_of(st.integers(-5, 6), st.integers(-(1 << 31), (1 << 31) - 1))


@example([("a", 0, 1, -1, 0, b"")], False)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), NUMBERS, NUMBERS, NUMBERS, st.integers(0, 2), st.binary(max_size=9)), max_size=40),
    st.booleans(),
)
def test_damaged_chunks_never_raise_and_never_accumulate(chunks, begins_inside):
    limits = ChunkLimits(messages=3, max_bytes=100)
    joiner, seen = ChunkJoiner(limits, begins_inside=begins_inside), set()
    for number, (uuid, chunk, count, total, published, payload) in enumerate(chunks):
        metadata = MessageMetadata(
            uuid=uuid, chunk_id=chunk, num_chunks_from_msg=count, total_chunk_msg_size=total, publish_time=published
        )
        for entry, chunk_ids, _ in joiner.add(Entry(metadata, payload, ledger=1, entry=number), float(number)):
            seen |= set(chunk_ids)
            assert entry is None or entry.defect or len(entry.payload) == total
        assert len(joiner) <= limits.messages
        assert joiner.payload_bytes <= limits.max_bytes
    seen |= {chunk_id for joined in joiner.expire(1e9) for chunk_id in joined.chunk_ids}
    assert seen == {(1, number) for number in range(len(chunks))}, "every chunk is returned"
    assert joiner.held_bytes == 0


@pytest.mark.parametrize(
    ("chunk", "total", "size"),
    [(0, 0, 0), (0, -1, 0), (0, -1, -1), (3, 2, 9), (2, 2, 9), (-1, 2, 9), (1, 1, 1), (0, 2, -1)],
)
def test_a_chunk_with_invalid_fields_is_a_defect_and_harms_no_other(chunk, total, size):
    """The invalid chunk has the uuid of an incomplete message, but is not part of it."""
    zero, one, two, three = chunks_of(0)
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        uuid="p-0",
        chunk_id=chunk,
        num_chunks_from_msg=total,
        total_chunk_msg_size=size,
    )
    bad = Entry(metadata, b"", ledger=1, entry=9)
    assert describes_chunk(metadata)
    joiner = ChunkJoiner(ChunkLimits())
    (found,) = add_all(joiner, zero, bad)
    assert ("invalid chunk fields" in str(found[1]), found[2]) == (True, (9,))
    assert [message.defect for message in decode_plain(bad)] == [bad.defect]
    assert add_all(joiner, one, two, three) == [(PAYLOAD, None, (0, 1, 2, 3))]
    assert len(joiner) == 0


def test_a_message_in_one_entry_is_not_a_chunk():
    assert not describes_chunk(MessageMetadata())
    assert not describes_chunk(MessageMetadata(num_chunks_from_msg=1, chunk_id=0))


@pytest.mark.parametrize("number", [0, 1])
def test_a_message_with_endlessly_repeated_chunks_is_abandoned(number):
    """The joiner keeps every id, to acknowledge it with the message, so their number must be limited."""
    joiner = ChunkJoiner(ChunkLimits(), begins_inside=True)
    given_up = []
    most = 0
    for at in range(3 * MAX_REPEATED_CHUNKS):
        chunk = chunks_of(0, at=at)[number]
        given_up += joiner.add(chunk, 0.0)
        most = max([most, *(len(message.chunk_ids) for message in joiner._incomplete.values())])
    assert most <= MAX_REPEATED_CHUNKS + 4
    assert [joined.lacks_last_chunk for joined in given_up] == [True] * 2
    assert ("never" if number == 0 else "missing") in str(given_up[0].entry.defect)
