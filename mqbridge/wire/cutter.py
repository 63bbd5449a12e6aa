"""Cuts a stream of chunks into frames, whatever the borders of the chunks.

Chunks are kept in a list and joined once when enough bytes are there, so a huge frame costs one copy and not one per chunk;
among six ways that were measured this one was as fast as any for small frames and by far the fastest for frames of megabytes.
"""

from collections.abc import Callable

Measure = Callable[[bytes, int], int]
"""Given bytes and where a frame starts in them, how many bytes from there must be present before anything more can be said.

The frame is complete when that many are there. Raises RemoteProtocolError for what can never become a frame, and in any case
before waiting for a body beyond its limit.
"""


Place = tuple[bytes, int, int]
"""Where a frame is: in these bytes, from and to."""


class FrameCutter:
    """Bytes in, whole frames out. `measure` is the only thing that a protocol brings."""

    __slots__ = ("_chunks", "_have", "_measure", "_need")

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._chunks: list[bytes] = []
        self._have = 0
        self._need = 1

    @property
    def buffered(self) -> int:
        """Bytes of the frame that is not complete yet."""
        return self._have

    def feed(self, chunk: bytes) -> list[bytes]:
        """Every frame that is complete now, headers included."""
        return [data[at:end] for data, at, end in self.places(chunk)]

    def places(self, chunk: bytes) -> list[Place]:
        """The same without copying them."""
        self._chunks.append(chunk)
        self._have += len(chunk)
        if self._have < self._need:
            return []
        data = chunk if len(self._chunks) == 1 else b"".join(self._chunks)
        frames: list[Place] = []
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
        self._have = len(tail)
        return frames
