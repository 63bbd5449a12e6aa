"""The frame cutter: any split gives the same frames, and damage is a RemoteProtocolError."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.wire.cutter import FrameCutter


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
