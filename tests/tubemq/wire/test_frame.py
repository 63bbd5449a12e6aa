"""Frames: golden bytes, every split, any block size; malformed bytes raise only ProtocolError."""

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from mqbridge.tubemq.wire.frame import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAX_BLOCKS,
    MAX_PAYLOAD_BYTES,
    TOKEN,
    encode_frame,
    measure,
    split_frame,
)
from mqbridge.wire.cutter import FrameCutter
from tests.tubemq.wire.vectors import REGISTER_FRAME, REGISTER_PAYLOAD


def frame_of(serial: int, blocks: list[bytes]) -> bytes:
    prefix = struct.pack(">III", TOKEN, serial, len(blocks))
    return prefix + b"".join(struct.pack(">I", len(block)) + block for block in blocks)


def test_a_real_frame_both_ways() -> None:
    assert len(REGISTER_FRAME) == 124
    assert measure(REGISTER_FRAME, 0) == 124
    assert split_frame(REGISTER_FRAME) == (1, REGISTER_PAYLOAD)
    assert encode_frame(1, REGISTER_PAYLOAD) == REGISTER_FRAME


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 16384, 16385, 100_000])
def test_blocks_are_cut_at_8192_and_never_empty(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    frame = encode_frame(7, payload)
    blocks = -(-size // BLOCK_BYTES)
    assert struct.unpack_from(">III", frame) == (TOKEN, 7, blocks)
    assert len(frame) == HEADER_BYTES + 4 * blocks + size
    assert measure(frame, 0) == len(frame)
    assert split_frame(frame) == (7, payload)
    at, lengths = HEADER_BYTES, []
    for _ in range(blocks):
        (length,) = struct.unpack_from(">I", frame, at)
        lengths.append(length)
        at += 4 + length
    assert at == len(frame)
    assert all(length == BLOCK_BYTES for length in lengths[:-1])
    assert 0 < lengths[-1] <= BLOCK_BYTES


@pytest.mark.parametrize("split", range(1, 125))
def test_every_split(split: int) -> None:
    cutter = FrameCutter(measure)
    stream = REGISTER_FRAME + encode_frame(2, b"x" * 20_000)
    frames = cutter.feed(stream[:split]) + cutter.feed(stream[split:])
    assert [split_frame(frame) for frame in frames] == [(1, REGISTER_PAYLOAD), (2, b"x" * 20_000)]


def test_byte_by_byte() -> None:
    cutter = FrameCutter(measure)
    blocks = [b"ab", b"", b"c" * 9000, b"d"]
    stream = frame_of(5, blocks)
    for index in range(len(stream) - 1):
        assert cutter.feed(stream[index : index + 1]) == []
    (frame,) = cutter.feed(stream[-1:])
    assert split_frame(frame) == (5, b"".join(blocks))


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.lists(st.binary(max_size=40), min_size=1, max_size=6)), max_size=5),
    st.lists(st.integers(1, 50), max_size=30),
)
@example([(1, [b"x" * 100_000])], [])
def test_any_blocks_at_any_cuts(frames: list[tuple[int, list[bytes]]], cuts: list[int]) -> None:
    stream = b"".join(frame_of(serial, blocks) for serial, blocks in frames)
    cutter = FrameCutter(measure)
    found = []
    for cut in cuts:
        found += cutter.feed(stream[:cut])
        stream = stream[cut:]
    found += cutter.feed(stream)
    assert [split_frame(frame) for frame in found] == [(serial, b"".join(blocks)) for serial, blocks in frames]
    assert cutter.buffered == 0


@given(st.binary(min_size=1, max_size=300_000))
def test_round_trip(payload: bytes) -> None:
    assert split_frame(encode_frame(0xFFFFFFFF, payload)) == (0xFFFFFFFF, payload)


@given(st.binary(max_size=200), st.booleans())
def test_nonsense_is_refused_or_awaited(data: bytes, with_token: bool) -> None:
    if with_token:
        data = struct.pack(">I", TOKEN) + data
    try:
        frames = FrameCutter(measure).feed(data)
    except ProtocolError:
        return
    for frame in frames:
        split_frame(frame)


def test_the_measured_size_never_exceeds_the_frame() -> None:
    """Otherwise the reader would wait for bytes of the next request, which the peer sends only after our response."""
    frame = frame_of(1, [b"x" * 8192, b"y", b"", b"z" * 3])
    for have in range(len(frame)):
        assert have < measure(frame[:have], 0) <= len(frame)


@pytest.mark.parametrize(
    "prefix",
    [
        struct.pack(">III", 0x504F5354, 1, 1),
        struct.pack(">III", TOKEN, 1, 0),
        struct.pack(">III", TOKEN, 1, MAX_BLOCKS + 1),
        struct.pack(">III", TOKEN, 1, 0xFFFFFFFF),
        struct.pack(">IIII", TOKEN, 1, 1, MAX_PAYLOAD_BYTES + 1),
        struct.pack(">IIII", TOKEN, 1, 2, 0xFFFFFFFF),
    ],
    ids=["other protocol", "no blocks", "too many blocks", "negative blocks", "too large", "negative length"],
)
def test_limits_are_checked_before_waiting(prefix: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameCutter(measure).feed(prefix)


@pytest.mark.parametrize("payload", [b"", bytes(MAX_PAYLOAD_BYTES + 1)], ids=["empty", "too large"])
def test_empty_and_too_large_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(1, payload)


def test_the_largest_frame() -> None:
    payload = bytes(MAX_PAYLOAD_BYTES)
    assert split_frame(encode_frame(1, payload)) == (1, payload)
