"""Splits a byte stream, received in chunks of any size, into frames.

Chunks are stored in a list and joined once, when enough bytes have arrived: a large frame costs one copy, not one per chunk.
Of six implementations that were measured, this one is as fast as any for small frames and by far the fastest for large ones.
"""

from collections.abc import Callable

Measure = Callable[[bytes, int], int]
"""A function that gets bytes and the offset at which a frame starts. It returns the number of bytes needed from that offset.

If the bytes contain enough of the header, this is the length of the frame. Otherwise it is the number of bytes with which the
length can be found, always more than there are. So the frame is complete if that many bytes are present. Raises
RemoteProtocolError for bytes that cannot be a frame, and for a frame that is too long.
"""

FrameSpan = tuple[bytes, int, int]
"""A frame inside a buffer: the buffer, start and end offset."""


class FrameCutter:
    """Collects received bytes and returns whole frames. Only `measure` depends on the protocol."""

    __slots__ = ("_buffered", "_chunks", "_measure", "_need")

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._chunks: list[bytes] = []
        """Received chunks of the incomplete frame."""
        self._buffered = 0
        """Number of bytes in `_chunks`."""
        self._need = 1
        """Number of buffered bytes below which `measure` need not be called."""

    @property
    def buffered(self) -> int:
        """Number of bytes received of the incomplete frame."""
        return self._buffered

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk and return all frames that are complete now, including their headers.

        Raises the error of `measure`; frames of this chunk before the invalid one are lost, and the stream cannot continue.
        """
        return [data[start:end] for data, start, end in self.feed_spans(chunk)]

    def feed_spans(self, chunk: bytes) -> list[FrameSpan]:
        """Add a chunk and return the spans of all frames that are complete now, without copying the frames."""
        self._chunks.append(chunk)
        self._buffered += len(chunk)
        if self._buffered < self._need:
            return []
        data = chunk if len(self._chunks) == 1 else b"".join(self._chunks)
        frames: list[FrameSpan] = []
        measure = self._measure
        end = len(data)
        at = 0
        need = 1
        while at < end:
            need = measure(data, at)
            if need > end - at:
                break
            frames.append((data, at, at := at + need))
            need = 1  # if no bytes are left, any next byte belongs to a new frame
        self._need = need
        tail = data[at:] if at else data
        self._chunks = [tail] if tail else []
        self._buffered = len(tail)
        return frames
