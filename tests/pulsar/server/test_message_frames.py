"""The frames of the compiled module are those of the plain code, byte for byte."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge import native
from mqbridge.adapter.numbering import OffsetNumbering
from mqbridge.listener.delivered import Delivered, HeldBatch
from mqbridge.message import Batch, Message, Unit
from mqbridge.pulsar.mapping.raw_entry import FORM
from mqbridge.pulsar.server.entries import OWN_ORIGIN
from mqbridge.pulsar.server.message_frames import COPIED_BYTES, FrameEncoder
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.wire.entry import stored_entry
from mqbridge.pulsar.wire.frame import parse_frame
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.strategies import any_messages, messages

MAX_NUMBER = (1 << 63) - 1
NUMBERING = OffsetNumbering()
HELD = HeldBatch(Batch.of([]), 0)
numbers = st.one_of(st.integers(0, 300), st.integers(0, MAX_NUMBER))
times = st.one_of(st.none(), st.just(0), st.integers(-(1 << 40), 1 << 50))
origins = st.one_of(st.none(), st.text(max_size=20), st.text(max_size=20).map(OWN_ORIGIN.__add__))
epochs = st.one_of(st.none(), st.integers(0, 1 << 40))
units = st.builds(
    lambda payload, count: Unit(
        stored_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), payload), count, 5
    ),
    st.binary(max_size=200),
    st.integers(1, 70),
)
contents = st.one_of(
    messages(),
    st.builds(
        lambda message, origin, hops, publish_time, deliver_at: message.replace(
            origin=origin, hops=hops, publish_time=publish_time, deliver_at=deliver_at
        ),
        any_messages(),
        origins,
        st.integers(0, 5),
        times,
        times,
    ),
    st.builds(lambda payload: Message(payload, (("mqbridge.raw", FORM),)), st.one_of(st.none(), st.binary(max_size=50))),
    units,
)


def delivered(content: Message | Unit, number: int, deliveries: int) -> Delivered:
    """Return what a feed makes of a unit, or of a message that was stored without one."""
    found = Delivered(number, content, HELD, 0, (number,), 0)
    found.deliveries = deliveries
    return found


def encode(units: Sequence[Delivered], consumer: int, partition: int, epoch: int | None, *, counts: bool, plain: bool) -> bytes:
    """Return the frames as one piece, after checking the number of bytes of their entries."""
    encoder = FrameEncoder(consumer, partition, MessageIds(NUMBERING))
    encode = encoder.encode_plain if plain else encoder.encode
    found = encode(units, epoch, counts_deliveries=counts)
    assert found.failed == []
    frames, size = b"".join(found.pieces), found.entry_bytes
    at = entries = 0
    while at < len(frames):
        end = at + 4 + int.from_bytes(frames[at : at + 4], "big")
        frame = parse_frame(frames[at:end])
        entries += len(frame.data) - frame.entry_offset
        at = end
    assert entries == size
    return frames


@given(
    st.lists(st.tuples(contents, numbers, st.integers(0, 1 << 31)), min_size=1, max_size=6),
    st.integers(0, (1 << 64) - 1),
    st.integers(-1, 1000),
    epochs,
    st.booleans(),
)
def test_frames_are_equal_to_those_of_the_plain_code(
    found: list[tuple[Message | Unit, int, int]], consumer: int, partition: int, epoch: int | None, counts: bool
) -> None:
    everything = [delivered(*each) for each in found]
    plain = encode(everything, consumer, partition, epoch, counts=counts, plain=True)
    assert encode(everything, consumer, partition, epoch, counts=counts, plain=False) == plain


@pytest.mark.parametrize("is_partial", [False, True])
def test_units_that_are_acknowledged_in_part_say_what_is_left(is_partial: bool) -> None:
    unit = delivered(Unit(b"entry", 3, 5), 7, 0)
    if is_partial:
        unit.remaining = 0b101
    frame = parse_frame(encode([unit], 1, -1, None, counts=True, plain=False))
    assert list(frame.command.message.ack_set) == ([0b101] if is_partial else [])


def test_large_entries_are_passed_on_without_a_copy() -> None:
    data = bytes(COPIED_BYTES + 1)
    frames = FrameEncoder(1, -1, MessageIds(NUMBERING)).encode([delivered(Unit(data, 1, 5), 7, 0)], None, counts_deliveries=True)
    assert frames.pieces[1] is data


@pytest.mark.skipif(native.compiled is None, reason="the compiled module is not in use")
def test_many_small_entries_are_one_piece() -> None:
    units = [delivered(Unit(b"entry", 1, 5), number, 0) for number in range(3)]
    frames = FrameEncoder(1, -1, MessageIds(NUMBERING)).encode(units, None, counts_deliveries=True)
    assert (len(frames.pieces), frames.entry_bytes) == (1, 15)
