"""Decodes received entries into messages, and makes the handle by which the messages of an entry are acknowledged."""

from collections.abc import Iterable, Sequence

from mqbridge.library.received import ReceivedMessage
from mqbridge.message import Message
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.mapping.stored import decode_entries, decode_plain
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId, full_mask


class ReceivedEntry:
    """The acknowledgement handle shared by all messages of one entry."""

    __slots__ = ("_chunks", "begin", "consumer", "count", "generation", "id", "schema_version", "undelivered_mask")

    def __init__(self, consumer: EntryConsumer, entry: Entry, messages: Iterable[Message]) -> None:
        self.consumer = consumer
        self.id: EntryId = (entry.ledger, entry.entry)
        self.begin: EntryId = entry.first_chunk or self.id
        """Id of the first chunk of a chunked message; otherwise the entry's own id."""
        self.count = entry.count
        """Number of messages in the entry, delivered or not."""
        self._chunks = entry if entry.defect is not None and entry.count > 1 else None
        """The entry if its messages are the chunks of an unreadable one. Chunks are entries of their own in the topic, so they
        are acknowledged together, not as messages of a batch."""
        self.generation = consumer.generation
        """The consumer's generation at delivery. A new generation begins, and earlier handles become outdated, after a seek, a
        reset of the subscription or a migration of the topic; on ordered subscriptions also after a negative acknowledgement,
        when another consumer becomes active, or if individual acknowledgements may have been lost with the connection."""
        self.schema_version = entry.metadata.schema_version
        """Version of the schema of the messages, as opaque bytes; empty without a schema."""
        delivered_mask = 0
        for message in messages:
            delivered_mask |= 1 << message.position[-1]  # the index in the batch; 0 in an entry without batch framing
        self.undelivered_mask = full_mask(self.count) & ~delivered_mask
        """Mask of the messages that are not delivered to the application, because they were acknowledged earlier, removed by
        compaction, or are before the target of a seek."""

    @property
    def is_current(self) -> bool:
        """False once the consumer has ended, or the entry will be redelivered because a new generation has begun."""
        return self.consumer.end_error is None and self.generation == self.consumer.generation

    def acknowledge(self, index: int) -> None:
        """Acknowledge the message at this index of the batch, and all undelivered messages.

        The entry is acknowledged once all of its messages are.
        """
        if self.count == 1:
            self.consumer.acknowledge(self.id)
        elif self._chunks is None:
            self.consumer.acknowledge_messages(self.id, self.undelivered_mask | 1 << index, self.count)
        else:
            self._chunks.acked_chunks |= self.undelivered_mask | 1 << index
            if self._chunks.acked_chunks == full_mask(self.count):
                self.consumer.acknowledge(self.id)

    def acknowledge_all(self) -> None:
        """Acknowledge the whole entry."""
        self.consumer.acknowledge(self.id)

    def acknowledge_up_to(self, index: int) -> None:
        """Acknowledge everything in the partition up to and including the message at this index.

        Of an unreadable chunked message, nothing is acknowledged before its last chunk.
        """
        if self._chunks is None or index + 1 == self.count:
            self.consumer.acknowledge_up_to(self.id, index, self.count)


def decode_received(
    consumer: EntryConsumer, entry: Entry, topic: str, partition: str, *, first_index: int = 0
) -> tuple[ReceivedEntry, list[ReceivedMessage]]:
    """Decode an entry; return its handle and its messages. `topic` and `partition` are those of `ReceivedMessage`.

    Messages before `first_index` are left out. With `read_compacted`, messages removed by compaction are left out too.
    """
    if consumer.subscription.read_compacted:  # only `decode_plain` can leave out messages removed by compaction
        decoded: Sequence[Message] = decode_plain(entry, include_compacted_out=False)
    else:
        decoded = decode_entries([entry])
    if first_index:
        decoded = [message for message in decoded if message.position[-1] >= first_index]
    handle = ReceivedEntry(consumer, entry, decoded)
    return handle, [ReceivedMessage(message, topic, partition, handle) for message in decoded]
