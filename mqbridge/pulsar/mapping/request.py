"""Messages -> entries for a producer to send."""

from collections.abc import Sequence

from mqbridge import native
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure
from mqbridge.message import Message
from mqbridge.pulsar.mapping.properties import encode_single, write_fields, write_keys
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


Encoded = tuple[list[EncodedEntry], list[MessageFailure]]


class CopiedMessage:
    """A message of a batch whose metadata needs no `Message`: `prefix` stands before the payload."""

    __slots__ = ("key", "payload", "prefix")
    defect = deliver_at = ordering_key = None

    def __init__(self, payload: bytes, key: str | None, prefix: bytes) -> None:
        self.payload, self.key, self.prefix = payload, key, prefix


def encode(messages: Sequence[Message], origin: str | None, limits: Limits, start: int = 0) -> Encoded:
    """Entries that hold all readable messages in order, and a failure for each message with a defect.

    `start` is the index of the first message, `origin` the prefix of every message's origin, None for no stamps. A message that
    must be delivered later travels alone, as Pulsar demands; one beyond `limits.max_bytes` does too, for the producer to try:
    compression may make it small enough.
    """
    if native.compiled is not None:
        found = messages if native.is_native(messages) else native.compiled.Messages.of(messages)
        if found is not None:
            entries, failures = native.compiled.pulsar_encode(found, origin, limits.max_messages, limits.max_bytes)
            return (
                [
                    EncodedEntry(MessageMetadata.FromString(metadata), payload, range(start + begin, start + end))
                    for payload, metadata, begin, end in entries
                ],
                [unreadable(start + index, defect) for index, defect in failures],
            )
    return encode_plain(messages, origin, limits, start)


def encode_plain(messages: Sequence[Message | CopiedMessage], origin: str | None, limits: Limits, start: int = 0) -> Encoded:
    """The same by plain code."""
    entries: list[EncodedEntry] = []
    failures: list[MessageFailure] = []
    parts: list[bytes] = []  # of the batch that is being filled
    first = size = 0  # its first message and its bytes
    for index, message in enumerate(messages):
        if message.defect is None and message.deliver_at is None:
            prefix = message.prefix if isinstance(message, CopiedMessage) else encode_single(message, origin)
            payload = message.payload or b""
            cost = len(prefix) + len(payload)
            if parts and (index - first >= limits.max_messages or size + cost > limits.max_bytes):
                entries.append(_batch(messages[first], parts, range(start + first, start + index)))
                parts = []
            if not parts:
                first, size = index, 0
            parts += (prefix, payload)
            size += cost
            continue
        if parts:
            entries.append(_batch(messages[first], parts, range(start + first, start + index)))
            parts = []
        if message.defect is not None:
            failures.append(unreadable(start + index, message.defect))
        else:
            entries.append(_encode_alone(message, origin, start + index))
    if parts:
        entries.append(_batch(messages[first], parts, range(start + first, start + len(messages))))
    return entries, failures


def _batch(first: Message | CopiedMessage, parts: list[bytes], indexes: range) -> EncodedEntry:
    """Brokers dispatch a whole entry by the keys of its first message."""
    metadata = MessageMetadata(num_messages_in_batch=len(indexes))
    write_keys(metadata, first.key, first.ordering_key)
    return EncodedEntry(metadata, b"".join(parts), indexes)


def _encode_alone(message: Message, origin: str | None, index: int) -> EncodedEntry:
    """An entry of one message that is no batch."""
    metadata = MessageMetadata(deliver_at_time=message.deliver_at)
    write_fields(metadata, message, origin)
    return EncodedEntry(metadata, message.payload or b"", range(index, index + 1))


def unreadable(index: int, defect: str) -> MessageFailure:
    """The failure of a message with a defect."""
    return MessageFailure(index, Failure.REFUSED, f"it could not be read: {defect}")
