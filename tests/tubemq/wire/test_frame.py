"""Frames: golden bytes, every split, any block size; malformed bytes raise only ProtocolError."""

import itertools
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from mqbridge.tubemq.wire import frame as frame_module
from mqbridge.tubemq.wire.frame import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAX_BLOCKS,
    MAX_PAYLOAD_BYTES,
    TOKEN,
    FrameMeter,
    encode_frame,
    split_frame,
)
from mqbridge.wire.cutter import FrameCutter, Measure
from tests.tubemq.wire.vectors import REGISTER_FRAME, REGISTER_PAYLOAD


def frame_of(serial: int, blocks: list[bytes]) -> bytes:
    prefix = struct.pack(">III", TOKEN, serial, len(blocks))
    return prefix + b"".join(struct.pack(">I", len(block)) + block for block in blocks)


def test_a_real_frame_both_ways() -> None:
    assert len(REGISTER_FRAME) == 124
    assert FrameMeter().measure(REGISTER_FRAME, 0) == 124
    assert split_frame(REGISTER_FRAME) == (1, REGISTER_PAYLOAD)
    assert encode_frame(1, REGISTER_PAYLOAD) == REGISTER_FRAME


@pytest.mark.parametrize("size", [1, 8191, 8192, 8193, 16384, 16385, 100_000])
def test_blocks_are_cut_at_8192_and_never_empty(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    frame = encode_frame(7, payload)
    blocks = -(-size // BLOCK_BYTES)
    assert struct.unpack_from(">III", frame) == (TOKEN, 7, blocks)
    assert len(frame) == HEADER_BYTES + 4 * blocks + size
    assert FrameMeter().measure(frame, 0) == len(frame)
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
    cutter = FrameCutter(FrameMeter().measure)
    stream = REGISTER_FRAME + encode_frame(2, b"x" * 20_000)
    frames = cutter.feed(stream[:split]) + cutter.feed(stream[split:])
    assert [split_frame(frame) for frame in frames] == [(1, REGISTER_PAYLOAD), (2, b"x" * 20_000)]


def test_byte_by_byte() -> None:
    cutter = FrameCutter(FrameMeter().measure)
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
    cutter = FrameCutter(FrameMeter().measure)
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
        frames = FrameCutter(FrameMeter().measure).feed(data)
    except ProtocolError:
        return
    for frame in frames:
        split_frame(frame)


def test_the_measured_size_never_exceeds_the_frame() -> None:
    """Otherwise the reader would wait for bytes of the next request, which the peer sends only after our response."""
    frame = frame_of(1, [b"x" * 8192, b"y", b"", b"z" * 3])
    for have in range(len(frame)):
        assert have < FrameMeter().measure(frame[:have], 0) <= len(frame)


@pytest.mark.parametrize("read_bytes", [512, 4096])
def test_the_work_for_a_frame_of_many_blocks_is_in_proportion_to_its_bytes(
    read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block ends where the known part of the frame ends, so each read shows the length of few further blocks."""
    lengths_read = 0
    unpack_length = frame_module._unpack_length

    def count_lengths(data: bytes, at: int) -> tuple[int]:
        nonlocal lengths_read
        lengths_read += 1
        return unpack_length(data, at)

    blocks = [bytes(4 * (MAX_BLOCKS - index) // 8) for index in range(MAX_BLOCKS)]
    frame = frame_of(1, blocks)
    monkeypatch.setattr(frame_module, "_unpack_length", count_lengths)
    buffers = SeenBuffers(FrameMeter().measure)
    cutter, frames = FrameCutter(buffers.measure), []
    for start in range(0, len(frame), read_bytes):
        frames += cutter.feed(frame[start : start + read_bytes])
    assert frames == [frame]
    assert lengths_read == MAX_BLOCKS
    assert buffers.total_bytes <= 3 * len(frame)


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=40), st.lists(st.integers(1, 60), min_size=1))
def test_any_split_of_frames_with_any_blocks(blocks: list[bytes], read_sizes: list[int]) -> None:
    stream = frame_of(1, blocks) + frame_of(2, [b"x"]) + frame_of(3, blocks)
    cutter, frames, at = FrameCutter(FrameMeter().measure), [], 0
    for size in itertools.cycle(read_sizes):
        frames += cutter.feed(stream[at : at + size])
        at += size
        if at >= len(stream):
            break
    payload = b"".join(blocks)
    assert [split_frame(frame) for frame in frames] == [(1, payload), (2, b"x"), (3, payload)]
    assert cutter.buffered == 0


class SeenBuffers:
    """Wraps a function that measures frames; `total_bytes` is the size of all different buffers that it was given."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._buffers: dict[int, bytes | bytearray] = {}

    def measure(self, data: bytes | bytearray, at: int) -> int:
        self._buffers[id(data)] = data  # the reference keeps the id from being used again
        return self._measure(data, at)

    @property
    def total_bytes(self) -> int:
        return sum(map(len, self._buffers.values()))


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
        FrameCutter(FrameMeter().measure).feed(prefix)


@pytest.mark.parametrize("payload", [b"", bytes(MAX_PAYLOAD_BYTES + 1)], ids=["empty", "too large"])
def test_empty_and_too_large_payloads_are_refused(payload: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(1, payload)


def test_the_largest_frame() -> None:
    payload = bytes(MAX_PAYLOAD_BYTES)
    assert split_frame(encode_frame(1, payload)) == (1, payload)
