"""Encodes messages into entries for a producer to send."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from mqbridge import native
from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure, MappingError
from mqbridge.message import Message
from mqbridge.pulsar.mapping.properties import encode_single, write_fields, write_keys
from mqbridge.pulsar.mapping.raw_entry import is_raw, restore_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata


class Limits:
    """Limits of an entry before compression. A message larger than `max_bytes` becomes an entry of its own.

    `max_message_size` is the broker's limit, which an entry that is stored as it is must not exceed.
    """

    __slots__ = ("max_bytes", "max_message_size", "max_messages")

    def __init__(self, max_messages: int = 5000, max_bytes: int = 512 << 10, max_message_size: int = 5 << 20) -> None:
        self.max_messages, self.max_bytes, self.max_message_size = max_messages, max_bytes, max_message_size


class EncodedEntry:
    """An uncompressed entry to send: the producer adds its name, sequence id and publish time.

    `indexes` are the indexes of its messages in the sequence given to `encode`, plus the parameter `start` of `encode`. `count`
    is the number of messages that the broker counts: of a restored batch, which is one raw message, those in the batch.
    """

    __slots__ = ("count", "indexes", "metadata", "payload")

    def __init__(self, metadata: MessageMetadata, payload: bytes, indexes: Sequence[int]) -> None:
        self.metadata, self.payload = metadata, payload
        self.indexes = indexes
        self.count = max(len(indexes), metadata.num_messages_in_batch)


EncodeResult = tuple[list[EncodedEntry], list[MessageFailure]]
"""The entries, and the failures of messages that cannot be sent."""


class CopiedMessage:
    """A message that `passthrough` copies from a consumed entry without decoding it.

    `prefix` is its encoded metadata with the size prefix. It takes the place of a `Message` in `encode_plain`, and has none of
    the fields that are set to None here.
    """

    __slots__ = ("key", "payload", "prefix")
    defect = deliver_at = ordering_key = None

    def __init__(self, payload: bytes, key: str | None, prefix: bytes) -> None:
        self.payload, self.key, self.prefix = payload, key, prefix


def encode(messages: Sequence[Message], origin: str | None, limits: Limits, start: int = 0) -> EncodeResult:
    """Return entries with all readable messages in order, and a failure for each message with a defect.

    `start` is added to the indexes in the result: the index of the first message in a larger sequence. `origin` is the prefix of
    the origin property of all messages, to which each message's position is appended; None writes no origins.

    A message with a delivery time gets an entry of its own, as Pulsar requires. So does a message beyond `limits.max_bytes`: the
    producer tries to send it, because compression may make it small enough.
    """
    if native.compiled is not None:
        compiled_messages = messages if native.is_native(messages) else native.compiled.Messages.of(messages)
        if compiled_messages is not None:  # None: a message has a value that only the plain code can encode
            entries, failures = native.compiled.pulsar_encode(compiled_messages, origin, limits.max_messages, limits.max_bytes)
            return (
                [
                    EncodedEntry(MessageMetadata.FromString(metadata), payload, range(start + begin, start + end))
                    for payload, metadata, begin, end in entries
                ],
                [unreadable_failure(start + index, defect) for index, defect in failures],
            )
    return encode_plain(messages, origin, limits, start)


def encode_by_key(
    messages: Sequence[Message],
    origin: str | None,
    limits: Limits,
    encode: Callable[[Sequence[Message], str | None, Limits], EncodeResult] = encode,
) -> EncodeResult:
    """Do the same as `encode`, with entries whose messages have the same keys: brokers dispatch an entry by those of its first.

    The order of the messages of a key is kept. Messages without keys are together, too.
    """
    indexes_by_key: dict[tuple[bytes | None, str | bytes | None], list[int]] = {}
    for index, message in enumerate(messages):
        indexes_by_key.setdefault((message.ordering_key, message.key), []).append(index)
    entries: list[EncodedEntry] = []
    failures: list[MessageFailure] = []
    for indexes in indexes_by_key.values():
        key_entries, key_failures = encode(native.pick(messages, indexes), origin, limits)
        for entry in key_entries:
            entry.indexes = [indexes[index] for index in entry.indexes]
        entries += key_entries
        failures += [MessageFailure(indexes[each.index], each.failure_kind, each.reason) for each in key_failures]
    return entries, failures


def encode_plain(messages: Sequence[Message | CopiedMessage], origin: str | None, limits: Limits, start: int = 0) -> EncodeResult:
    """Do the same as `encode` in plain Python."""
    entries: list[EncodedEntry] = []
    failures: list[MessageFailure] = []
    parts: list[bytes] = []  # payload of the current batch: metadata (with its size) and payload of each message
    first = size = 0  # index of the current batch's first message, and the batch's size in bytes
    for index, message in enumerate(messages):
        alone: EncodedEntry | None = None
        failure: MessageFailure | None = None
        try:
            if message.defect is not None:
                failure = unreadable_failure(start + index, message.defect)
            elif message.deliver_at is not None:
                alone = encode_alone(message, origin, start + index)
            else:
                prefix = message.prefix if isinstance(message, CopiedMessage) else encode_single(message, origin)
        except UnicodeEncodeError as error:
            failure = MessageFailure(start + index, Failure.REFUSED, f"the message has texts that are not valid Unicode: {error}")
        if failure is None and alone is None:
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
        if failure is not None:
            failures.append(failure)
        elif alone is not None:
            entries.append(alone)
    if parts:
        entries.append(_batch(messages[first], parts, range(start + first, start + len(messages))))
    return entries, failures


def _batch(first: Message | CopiedMessage, parts: list[bytes], indexes: range) -> EncodedEntry:
    """Make a batch entry with the keys of its first message, by which brokers dispatch the whole entry."""
    metadata = MessageMetadata(num_messages_in_batch=len(indexes))
    write_keys(metadata, first.key, first.ordering_key)
    return EncodedEntry(metadata, b"".join(parts), indexes)


def encode_alone(message: Message, origin: str | None, index: int) -> EncodedEntry:
    """Make an entry of one message without batch framing."""
    metadata = MessageMetadata(deliver_at_time=message.deliver_at)
    write_fields(metadata, message, origin)
    return EncodedEntry(metadata, message.payload or b"", range(index, index + 1))


def encode_restored(messages: Sequence[Message], origin: str | None, limits: Limits, start: int = 0) -> EncodeResult:
    """Do the same as `encode`, but make of each raw message (see `raw_entry`) the entry that it contains, without an origin."""
    entries: list[EncodedEntry] = []
    failures: list[MessageFailure] = []
    begin = 0
    raw_indexes = [index for index, message in enumerate(messages) if message.defect is None and is_raw(message)]
    for index in (*raw_indexes, len(messages)):
        if begin < index:
            more_entries, more_failures = encode(messages[begin:index], origin, limits, start + begin)
            entries += more_entries
            failures += more_failures
        begin = index + 1
        if index < len(messages):
            try:
                entries.append(EncodedEntry(*restore_entry(messages[index]), range(start + index, start + index + 1)))
            except MappingError as error:
                failures.append(MessageFailure(start + index, Failure.REFUSED, str(error)))
    return entries, failures


def unreadable_failure(index: int, defect: str) -> MessageFailure:
    """Return the failure of a message with a defect."""
    return MessageFailure(index, Failure.REFUSED, _unreadable_reason(defect))


@lru_cache(maxsize=16)  # all messages of an entry have the same defect, and a unit may say that they are many
def _unreadable_reason(defect: str) -> str:
    return f"the message could not be read: {defect}"
