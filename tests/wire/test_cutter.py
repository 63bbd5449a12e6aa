"""The frame cutter: any split gives the same frames, and damage is a RemoteProtocolError. Varints, and Java's hash."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.wire.cutter import FrameCutter
from mqbridge.wire.javahash import BLOCK, java_string_hash
from mqbridge.wire.varint import decode_varint, encode_varint


def measure(data: bytes, at: int) -> int:
    """Measure frames of one length byte and that many bytes; 255 is invalid."""
    if data[at] == 255:
        raise RemoteProtocolError("255 is no length")
    return 1 + data[at]


def frame(body: bytes) -> bytes:
    return bytes([len(body)]) + body


@given(bodies=st.lists(st.binary(max_size=20), max_size=8), cuts=st.lists(st.integers(0, 170), max_size=10))
def test_any_split_of_the_stream_gives_the_same_frames(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(frame, bodies))
    cutter, frames = FrameCutter(measure), []
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    for start, end in pairwise(edges):
        frames += cutter.feed(stream[start:end])
    assert frames == [frame(body) for body in bodies]
    assert cutter.buffered == 0


def test_the_last_byte_completes_a_frame() -> None:
    cutter = FrameCutter(measure)
    stream = frame(b"hello")
    assert [cutter.feed(stream[i : i + 1]) for i in range(len(stream) - 1)] == [[]] * (len(stream) - 1)
    assert cutter.feed(stream[-1:] + b"\x03ab") == [stream]
    assert cutter.buffered == 3


def test_invalid_bytes_raise_at_once() -> None:
    with pytest.raises(RemoteProtocolError):
        FrameCutter(measure).feed(b"\xff")


@given(value=st.integers(0, (1 << 64) - 1), rest=st.binary(max_size=3))
def test_varints_round_trip(value: int, rest: bytes) -> None:
    data = encode_varint(value)
    assert decode_varint(b"x" + data + rest, 1) == (value, 1 + len(data))
    for end in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            decode_varint(data[:end], 0)


def test_a_varint_without_an_end_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_varint(b"\xff" * 20, 0)


@given(text=st.text(), more=st.integers(0, 3 * BLOCK))
def test_java_hashes_texts_of_every_length(text: str, more: int) -> None:
    text += "é" * more
    value = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = 31 * value + low + 256 * high
    assert java_string_hash(text) % (1 << 32) == value % (1 << 32)
    assert -(1 << 31) <= java_string_hash(text) < 1 << 31
