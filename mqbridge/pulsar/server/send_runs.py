"""Cuts what a connection receives into frames, with the compiled module: SEND frames that came together become runs.

A run has what a producer needs of consecutive SEND commands, so that no Python code runs for each of them. It contains only
entries that are whole, not encrypted, not larger than a limit, and match their checksum. All other frames are passed on as they
are, and so are those of a run if its producer cannot store entries together: the plain code decides what becomes of them.
"""

from collections.abc import Sequence
from typing import Protocol

from mqbridge import native
from mqbridge.message import Position
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.frame import FrameMeter
from mqbridge.pulsar.wire.server_commands import ReceiptEncoder

RUN_BYTES = 128 << 10
"""Maximum bytes of the entries of a run; one larger entry is a run of its own."""


class SendRun(Protocol):
    """Consecutive SEND frames of one producer."""

    @property
    def producer(self) -> int:
        """Id of the producer."""

    @property
    def units(self) -> Sequence[tuple[bytes, int, int, Position, int]]:
        """For each entry the values of a `Unit`, without a position."""

    @property
    def sequences(self) -> Sequence[tuple[int, int]]:
        """For each entry: the sequence id of the SEND, and the highest one, 0 if it has none."""

    @property
    def messages(self) -> int:
        """Number of messages of all entries."""

    @property
    def entry_bytes(self) -> int:
        """Number of bytes of all entries."""

    @property
    def frames(self) -> Sequence[bytes]:
        """The whole frames."""


class SendCutter:
    """Collects received bytes and returns whole frames and runs; for use with the compiled module only.

    It is a `FrameCutter` for frames whose first bytes tell their size, so that no more than two measurements are needed.
    """

    __slots__ = ("_buffered", "_chunks", "_meter", "_need")

    def __init__(self, meter: FrameMeter) -> None:
        self._meter = meter
        self._chunks: list[bytes] = []
        """Received chunks of the incomplete frame."""
        self._buffered = 0
        """Number of bytes in `_chunks`."""
        self._need = 4
        """Number of bytes with which the incomplete frame is complete, or has its size."""

    def feed(self, chunk: bytes, max_entry: int) -> "Sequence[bytes | SendRun]":
        """Add a chunk and return what is complete now. Entries of more than `max_entry` bytes are not in a run.

        Raises RemoteProtocolError for an invalid size; what comes before it in this chunk is lost, as with `FrameCutter`.
        """
        self._chunks.append(chunk)
        self._buffered += len(chunk)
        if self._buffered < self._need:
            return ()
        data = b"".join(self._chunks) if len(self._chunks) > 1 else chunk
        assert native.compiled is not None  # noqa: S101 - the caller's condition
        found: Sequence[bytes | SendRun]
        found, end, self._need = native.compiled.pulsar_sends(data, self._meter.limit, max_entry, RUN_BYTES)
        if not self._need:
            self._meter.measure(data, end)  # raises
        rest = data[end:]
        self._chunks, self._buffered = [rest] if rest else [], len(rest)
        return found


def encode_receipts(
    producer_id: int, encoder: ReceiptEncoder, sequences: list[tuple[int, int]], entries: list[ids.EntryId]
) -> bytes:
    """Return the receipts of a producer's sends: see `ReceiptEncoder.encode_all`, which is used without the compiled module."""
    if native.compiled is not None:
        frames: bytes | None = native.compiled.pulsar_receipts(producer_id, sequences, entries)
        if frames is not None:
            return frames
    return encoder.encode_all(sequences, entries)
