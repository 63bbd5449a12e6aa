"""Entries as consumed -> entries for a producer to send, without making messages where that is possible.

Batches whose messages need nothing but an origin are copied, and joined up to the limits; all others are decoded and encoded.
"""

from collections.abc import Sequence

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.message import Message
from mqbridge.pulsar.mapping import fast
from mqbridge.pulsar.mapping.request import EncodedEntry, Limits, encode
from mqbridge.pulsar.mapping.stored import decode
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata


def encode_entries(
    entries: Sequence[Entry], origin: str | None, limits: Limits
) -> tuple[list[EncodedEntry], list[MessageFailure]]:
    """Entries that hold all messages of these entries that are to be delivered, in order, and a failure for each with a defect.

    The meaning is that of `encode` for the decoded messages, and so are `origin`, `limits` and all indexes. Where one entry ends
    and the next one begins may differ.
    """
    joiner = _EntryJoiner(origin, limits)
    prefix = None if origin is None else origin.encode()
    copied = refused = 0
    for entry in entries:
        entry.unpack()
        # A batch is refused at its first unusual message, after work that was in vain: up to a third of decoding and encoding it.
        # So where more messages were refused than copied, the rest is not tried.
        batch = fast.restamp_batch(entry, prefix) if refused <= copied else None
        if batch is None:
            refused += entry.count
            joiner.add_messages(decode(entry))
        else:
            copied += batch.count
            for part in batch.split(limits.max_messages, limits.max_bytes):
                joiner.add_batch(part)
    joiner.flush()
    return joiner.entries, joiner.failures


class _EntryJoiner:
    """Collects either messages or copied batches, and makes entries of them when the other kind comes or an entry is full."""

    __slots__ = ("_batches", "_bytes", "_count", "_limits", "_messages", "_origin", "_start", "entries", "failures")

    def __init__(self, origin: str | None, limits: Limits) -> None:
        self._origin, self._limits = origin, limits
        self.entries: list[EncodedEntry] = []
        self.failures: list[MessageFailure] = []
        self._messages: list[Message] = []
        self._batches: list[fast.RestampedBatch] = []
        self._count = self._bytes = 0  # of the batches
        self._start = 0  # the index of the first collected message

    def add_messages(self, messages: Sequence[Message]) -> None:
        """Messages that `encode` has to write."""
        if self._batches:
            self.flush()
        self._messages += messages

    def add_batch(self, batch: fast.RestampedBatch) -> None:
        """A copied batch that is within the limits, or a single message."""
        limits = self._limits
        if self._messages or self._count + batch.count > limits.max_messages or self._bytes + batch.size > limits.max_bytes:
            self.flush()
        self._batches.append(batch)
        self._count += batch.count
        self._bytes += batch.size

    def flush(self) -> None:
        """Make entries of what is collected."""
        if self._messages:
            entries, failures = encode(self._messages, self._origin, self._limits, self._start)
            self.entries += entries
            self.failures += failures
            self._start += len(self._messages)
            self._messages = []
        if self._batches:
            first = SingleMessageMetadata.FromString(self._batches[0].first)  # has no ordering key
            metadata = MessageMetadata(num_messages_in_batch=self._count)
            if first.HasField("partition_key"):
                metadata.partition_key = first.partition_key
            payload = b"".join([piece for batch in self._batches for piece in batch.pieces])
            self.entries.append(EncodedEntry(metadata, payload, range(self._start, self._start + self._count)))
            self._start += self._count
            self._batches = []
            self._count = self._bytes = 0
