"""Split a byte stream, received in chunks of any size, into frames.

Chunks are kept in a list and joined once when enough bytes have arrived, so a huge frame costs one copy and not one per chunk.
Of six ways that were measured, this one is as fast as any for small frames and by far the fastest for frames of megabytes.
"""

from collections.abc import Callable

Measure = Callable[[bytes, int], int]
"""Takes bytes and the offset at which a frame starts; returns the number of bytes from there that are needed to tell more.

The frame is complete when that many bytes are present. Raises RemoteProtocolError for bytes that can never become a frame, and
always before waiting for a body beyond its limit.
"""


FrameSpan = tuple[bytes, int, int]
"""A frame inside a buffer: the buffer, start and end offset."""


class FrameCutter:
    """Takes bytes, returns whole frames. `measure` is the only part that depends on the protocol."""

    __slots__ = ("_buffered", "_chunks", "_measure", "_need")

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._need = 1

    @property
    def buffered(self) -> int:
        """Bytes of the incomplete frame."""
        return self._buffered

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk; return every frame that is complete now, headers included."""
        return [data[start:end] for data, start, end in self.feed_spans(chunk)]

    def feed_spans(self, chunk: bytes) -> list[FrameSpan]:
        """Like `feed`, but without copying the frames."""
        self._chunks.append(chunk)
        self._buffered += len(chunk)
        if self._buffered < self._need:
            return []
        data = chunk if len(self._chunks) == 1 else b"".join(self._chunks)
        frames: list[FrameSpan] = []
        measure, end, at = self._measure, len(data), 0
        need = 1
        while at < end:
            need = measure(data, at)
            if need > end - at:
                break
            frames.append((data, at, at := at + need))
            need = 1
        self._need = need
        tail = data[at:] if at else data
        self._chunks = [tail] if tail else []
        self._buffered = len(tail)
        return frames
