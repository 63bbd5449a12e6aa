"""Chunks: cut and joined, in every disorder that producers, brokers and damage can make."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.pulsar.mapping.stored import decode
from mqbridge.pulsar.wire.chunk_joiner import MAX_REPEATED, ChunkJoiner, ChunkLimits
from mqbridge.pulsar.wire.chunks import chunk_room, cut, is_chunk
from mqbridge.pulsar.wire.compression import NAMES, compress
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

PAYLOAD = bytes(range(100))


def chunks_of(sequence: int, payload: bytes = PAYLOAD, size: int = 30, at: int = 0, published: int = 1) -> list[Entry]:
    """The chunks of a message as entries from place (1, at) on."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence, publish_time=published, partition_key="k")
    parts = cut(metadata, payload, size)
    return [Entry(said, piece, ledger=1, entry=at + number) for number, (said, piece) in enumerate(parts)]


def add_all(joiner: ChunkJoiner, *entries: Entry) -> list[tuple[bytes | None, str | None, tuple[int, ...]]]:
    found = [joined for entry in entries for joined in joiner.add(entry, 0.0)]
    return [
        (None, None, tuple(place[1] for place in places))
        if entry is None
        else (entry.payload, entry.defect, tuple(place[1] for place in places))
        for entry, places, _ in found
    ]


def test_what_is_cut_says_what_it_is():
    parts = [(said.uuid, said.chunk_id, said.num_chunks_from_msg, said.total_chunk_msg_size) for said, _ in cut_one()]
    assert parts == [("p-3", number, 4, 100) for number in range(4)]
    assert b"".join(piece for _, piece in cut_one()) == PAYLOAD


def cut_one() -> list[tuple[MessageMetadata, bytes]]:
    return list(cut(MessageMetadata(producer_name="p", sequence_id=3, publish_time=1), PAYLOAD, 30))


@given(st.binary(min_size=2, max_size=5000), st.integers(1, 700), st.text(max_size=40))
def test_a_chunk_with_its_metadata_fits(payload, room, name):
    metadata = MessageMetadata(producer_name=name, sequence_id=1 << 62, publish_time=1 << 50)
    limit = metadata.ByteSize() + len(name.encode()) + 64 + room
    size = chunk_room(metadata, limit)
    assert size == room
    assert all(said.ByteSize() + len(piece) <= limit for said, piece in cut(metadata, payload, size))


def test_joined_it_looks_like_any_other_entry():
    joiner = ChunkJoiner(ChunkLimits())
    *before, last = chunks_of(0, at=5)
    assert add_all(joiner, *before) == []
    ((entry, places, _),) = joiner.add(last, 0.0)
    assert entry is not None
    assert (entry.place, places) == ((1, 8), ((1, 5), (1, 6), (1, 7), (1, 8)))
    assert not entry.metadata.HasField("uuid")
    (message,) = decode(entry)
    assert (message.payload, message.key, message.defect, message.position) == (PAYLOAD, "k", None, (1, 8, 0))
    assert (len(joiner), joiner.held_bytes) == (0, 0)


def test_compression_is_undone_after_joining():
    plain = PAYLOAD * 50
    packed = compress(NAMES["zstd"], plain)
    entries = chunks_of(0, packed, 20)
    for entry in entries:
        entry.metadata.compression = NAMES["zstd"]
        entry.metadata.uncompressed_size = len(plain)
    joiner = ChunkJoiner(ChunkLimits())
    (joined,) = [found for entry in entries for found in joiner.add(entry, 0.0)]
    assert [message.payload for message in decode(joined.entry)] == [plain]


def test_messages_of_several_producers_are_mixed():
    first, second = chunks_of(0, b"a" * 60), chunks_of(1, b"b" * 60)
    assert add_all(ChunkJoiner(ChunkLimits()), first[0], second[0], first[1], second[1]) == [
        (b"a" * 60, None, (0, 1)),
        (b"b" * 60, None, (0, 1)),
    ]


def test_a_chunk_that_comes_again_is_kept_once_and_acknowledged():
    zero, one, two, three = chunks_of(0)
    again = chunks_of(0, at=10)
    found = add_all(ChunkJoiner(ChunkLimits()), zero, one, again[0], again[1], two, three)
    assert found == [(PAYLOAD, None, (0, 1, 10, 11, 2, 3))]


def test_chunks_of_a_message_that_is_complete_already_are_nobodys():
    joiner = ChunkJoiner(ChunkLimits())
    assert len(add_all(joiner, *chunks_of(0))) == 1
    assert add_all(joiner, *chunks_of(0, at=10)[:2]) == [(None, None, (10,)), (None, None, (11,))]
    assert add_all(joiner, *chunks_of(0)) == [(PAYLOAD, None, (0, 1, 2, 3))], "delivered again from its own places"
    assert add_all(joiner, *chunks_of(0, published=2, at=20)) == [(PAYLOAD, None, (20, 21, 22, 23))], "another one of this id"


def test_a_missing_chunk_is_one_defect_and_never_a_fragment():
    zero, one, two, three = chunks_of(0)
    for present in ([zero, two, three], [one, two, three], [three], [zero, three]):
        ((payload, defect, places),) = add_all(ChunkJoiner(ChunkLimits()), *present)
        assert "missing" in str(defect)
        assert payload == b""
        assert places == tuple(entry.entry for entry in present)


def test_without_its_end_it_expires():
    joiner = ChunkJoiner(ChunkLimits(expiry_s=60.0))
    zero, one, *_ = chunks_of(0)
    joiner.add(zero, 0.0)
    joiner.add(one, 50.0)
    assert joiner.expire(100.0) == []
    joiner.touch(100.0)
    assert joiner.expire(159.0) == []
    ((entry, places, _),) = joiner.expire(160.0)
    assert "only 2 of the 4 chunks" in str(entry.defect)
    assert places == ((1, 0), (1, 1))
    assert [message.defect for message in decode(entry)] == [entry.defect]
    assert len(joiner) == 0


def test_too_many_at_a_time_make_the_oldest_give_way():
    joiner = ChunkJoiner(ChunkLimits(messages=2))
    starts = [chunks_of(sequence, at=10 * sequence)[0] for sequence in range(3)]
    ((_, defect, places),) = add_all(joiner, *starts)
    assert ("too many" in str(defect), places) == (True, (0,))


def test_bytes_are_bounded_by_what_the_first_chunks_promise():
    joiner = ChunkJoiner(ChunkLimits(max_bytes=150))
    ((_, defect, _),) = add_all(joiner, chunks_of(0)[0], chunks_of(1)[0])
    assert "too many" in str(defect)
    large = chunks_of(2, bytes(200), 50)
    found = add_all(joiner, *large)
    assert ("more than the 150 allowed" in str(found[-1][1]), found[-1][0], found[-1][2]) == (True, b"", (0, 1, 2, 3))
    assert joiner.held_bytes == 0


def test_another_message_under_the_same_id_ends_the_first():
    first, second = chunks_of(0, published=1), chunks_of(0, published=2, at=10)
    found = add_all(ChunkJoiner(ChunkLimits()), *first[:2], *second)
    assert [("another message" in str(defect), places) for _, defect, places in found] == [
        (True, (0, 1)),
        (False, (10, 11, 12, 13)),
    ]


NUMBERS = st.one_of(st.integers(-5, 6), st.integers(-(1 << 31), (1 << 31) - 1))


@example([("a", 0, 1, -1, 0, b"")])
@given(
    st.lists(st.tuples(st.sampled_from("abc"), NUMBERS, NUMBERS, NUMBERS, st.integers(0, 2), st.binary(max_size=9)), max_size=40)
)
def test_damaged_chunks_never_raise_and_never_pile_up(said):
    limits = ChunkLimits(messages=3, max_bytes=100)
    joiner, seen = ChunkJoiner(limits), set()
    for number, (uuid, chunk, chunks, total, published, payload) in enumerate(said):
        metadata = MessageMetadata(
            uuid=uuid, chunk_id=chunk, num_chunks_from_msg=chunks, total_chunk_msg_size=total, publish_time=published
        )
        for entry, places, _ in joiner.add(Entry(metadata, payload, ledger=1, entry=number), float(number)):
            seen |= set(places)
            assert entry is None or entry.defect or len(entry.payload) == total
        assert len(joiner) <= limits.messages
        assert joiner.held_bytes <= limits.max_bytes
    seen |= {place for found in joiner.expire(1e9) for place in found.places}
    assert seen == {(1, number) for number in range(len(said))}, "every chunk is answered for"


@pytest.mark.parametrize(
    ("chunk", "total", "size"),
    [(0, 0, 0), (0, -1, 0), (0, -1, -1), (3, 2, 9), (2, 2, 9), (-1, 2, 9), (1, 1, 1), (0, 2, -1)],
)
def test_a_chunk_that_cannot_be_one_is_a_defect_and_harms_no_other(chunk, total, size):
    """Such a chunk has the id of a message that waits, and is nevertheless no part of it."""
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
    assert is_chunk(metadata)
    joiner = ChunkJoiner(ChunkLimits())
    (found,) = add_all(joiner, zero, bad)
    assert ("cannot be" in str(found[1]), found[2]) == (True, (9,))
    assert [message.defect for message in decode(bad)] == [bad.defect]
    assert add_all(joiner, one, two, three) == [(PAYLOAD, None, (0, 1, 2, 3))]
    assert len(joiner) == 0


def test_a_message_in_one_piece_is_no_chunk():
    assert not is_chunk(MessageMetadata())
    assert not is_chunk(MessageMetadata(num_chunks_from_msg=1, chunk_id=0))


@pytest.mark.parametrize("number", [0, 1])
def test_a_chunk_that_is_repeated_for_ever_is_given_up(number):
    """Every place of it is kept, to be acknowledged with the message: so they must come to an end."""
    joiner = ChunkJoiner(ChunkLimits())
    given_up = []
    most = 0
    for at in range(3 * MAX_REPEATED):
        chunk = chunks_of(0, at=at)[number]
        given_up += joiner.add(chunk, 0.0)
        most = max([most, *(len(each.places) for each in joiner._open.values())])
    assert most <= MAX_REPEATED + 4
    assert [joined.given_up for joined in given_up] == [True] * 2
    assert "never" in str(given_up[0].entry.defect)
