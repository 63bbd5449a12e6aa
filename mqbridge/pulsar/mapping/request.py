"""Messages -> entries for a producer to send."""

from collections.abc import Sequence

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure
from mqbridge.message import Message
from mqbridge.pulsar.mapping import fast
from mqbridge.pulsar.mapping.properties import write_fields, write_keys
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata


class Limits:
    """What an entry may hold. A message beyond `max_bytes` makes an entry by itself."""

    __slots__ = ("max_bytes", "max_messages")

    def __init__(self, max_messages: int = 5000, max_bytes: int = 512 << 10) -> None:
        self.max_messages, self.max_bytes = max_messages, max_bytes


class EncodedEntry:
    """An entry to send, not compressed yet: the producer fills in its name, sequence id and publish time.

    `indexes` are those of its messages among the messages that were encoded.
    """

    __slots__ = ("count", "indexes", "metadata", "payload")

    def __init__(self, metadata: MessageMetadata, payload: bytes, indexes: range) -> None:
        self.metadata, self.payload, self.indexes, self.count = metadata, payload, indexes, len(indexes)


def encode(
    messages: Sequence[Message], origin: str | None, limits: Limits, start: int = 0
) -> tuple[list[EncodedEntry], list[MessageFailure]]:
    """Entries that hold all readable messages in order, and a failure for each message with a defect.

    `start` is the index of the first message, `origin` the prefix of every message's origin, None for no stamps. A message that
    must be delivered later travels alone, as Pulsar demands; one beyond `limits.max_bytes` does too, for the producer to try:
    compression may make it small enough.
    """
    entries: list[EncodedEntry] = []
    failures: list[MessageFailure] = []
    prefix = None if origin is None else origin.encode()
    index = 0
    while index < len(messages):
        message = messages[index]
        if message.defect is not None:
            failures.append(MessageFailure(start + index, Failure.REFUSED, f"it could not be read: {message.defect}"))
            index += 1
        elif message.deliver_at is not None:
            entries.append(_encode_alone(message, origin, start + index))
            index += 1
        else:
            parts, end = fast.encode_batch(messages, index, prefix, limits.max_bytes, limits.max_messages)
            entries.append(_batch(message, parts, range(start + index, start + end)))
            index = end
    return entries, failures


def _batch(first: Message, parts: list[bytes], indexes: range) -> EncodedEntry:
    """Brokers dispatch a whole entry by the keys of its first message."""
    metadata = MessageMetadata(num_messages_in_batch=len(indexes))
    if first.key is not None or first.ordering_key is not None:
        write_keys(metadata, first)
    return EncodedEntry(metadata, b"".join(parts), indexes)


def _encode_alone(message: Message, origin: str | None, index: int) -> EncodedEntry:
    """An entry of one message that is no batch."""
    metadata = MessageMetadata(deliver_at_time=message.deliver_at)
    write_fields(metadata, message, origin)
    return EncodedEntry(metadata, message.payload or b"", range(index, index + 1))
