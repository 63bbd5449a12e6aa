"""What a producer is asked to send: an entry that waits for its receipt."""

import asyncio
from typing import NamedTuple

from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.wire.compression import compress
from mqbridge.pulsar.wire.entry import SendEncoder
from mqbridge.pulsar.wire.frame import FRAME_PADDING
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

HEAD_RESERVE = 2 << 10
"""Of the frame's padding, what the command may take; the rest is the metadata's."""


class SendReceipt(NamedTuple):
    """Where an entry was stored. A duplicate was stored before, and the broker does not say where: ledger and entry are -1."""

    ledger: int
    entry: int
    duplicate: bool


class Sending:
    """An entry on its way: waiting, in flight, or both again after a reconnection, with the same bytes each time.

    Sequence ids are given when it is encoded, which happens once, before it is sent first.
    """

    __slots__ = ("count", "future", "head", "highest", "metadata", "payload", "sequence", "since", "size")

    def __init__(
        self, metadata: MessageMetadata, payload: bytes, count: int, sequence: int | None, future: "asyncio.Future[SendReceipt]"
    ) -> None:
        self.metadata, self.payload, self.count = metadata, payload, count
        self.sequence = -1 if sequence is None else sequence
        self.highest = -1
        self.head = b""
        self.size = len(payload)
        self.since = 0.0
        self.future = future

    def encode(self, encoder: SendEncoder, codec: int, max_message_size: int) -> None:
        """Compress, and write the frame up to the payload. `metadata` has all but what concerns the payload.

        Raises ClusterError (REFUSED) when the broker would not take it.
        """
        metadata, payload = self.metadata, self.payload
        if codec and payload and not metadata.compression:
            packed = compress(codec, payload)
            if len(packed) < len(payload):
                metadata.compression = codec  # type: ignore[assignment]  # the enum's number
                metadata.uncompressed_size = len(payload)
                payload = packed
        if len(payload) > max_message_size:
            raise too_large(len(payload), max_message_size)
        head = encoder.encode(self.sequence, self.highest, self.count, metadata, payload)
        if len(head) > FRAME_PADDING - HEAD_RESERVE and len(head) + len(payload) > max_message_size:
            raise too_large(len(head) + len(payload), max_message_size)
        self.head, self.payload, self.size = head, payload, len(head) + len(payload)

    def fail(self, error: Exception) -> None:
        """It will not be stored."""
        if not self.future.done():
            self.future.set_exception(error)


def too_large(size: int, limit: int) -> ClusterError:
    """The failure of an entry beyond the broker's limit."""
    hint = "raise maxMessageSize at the broker (and its bookies), or use compression"
    return ClusterError(f"an entry of {size} bytes where the broker takes {limit}: {hint}", Failure.REFUSED)
