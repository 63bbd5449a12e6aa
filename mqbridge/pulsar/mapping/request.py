"""Pulsar message <-> `Message`.

Outgoing messages are framed as batch entries (see `head`). Every property keeps its name and place; what Pulsar has no field for
is carried (see `mqbridge.mapping.reserved_properties`), the TubeMQ attribute string among it, byte for byte.

`$msgType$` is Pulsar's spelling of a message type too: a property of that name, whoever wrote it, is read as `msg_type`.
"""

import base64
from collections.abc import Sequence

from mqbridge.adapter import MessageFailure
from mqbridge.errors import Failure, RemoteProtocolError
from mqbridge.mapping.reserved_properties import EVENT_TIME, carry_fields, escape_user_property, origin_properties
from mqbridge.message import Message, format_position
from mqbridge.pulsar.mapping.head import carried_type, encode_run
from mqbridge.pulsar.mapping.stored import read, read_batch
from mqbridge.pulsar.mapping.table import TABLE
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

ALWAYS_CARRIED = tuple(field for field in TABLE.carried_fields() if field not in {"origin", "hops"})
"""The fields that Pulsar has none of its own for; `origin_properties` writes the other two."""
_UINT64 = (1 << 64) - 1


class Limits:
    """What an entry may hold. A message beyond `max_bytes` makes an entry by itself."""

    __slots__ = ("max_bytes", "max_messages")

    def __init__(self, max_messages: int = 5000, max_bytes: int = 512 << 10) -> None:
        self.max_messages, self.max_bytes = max_messages, max_bytes


class Outgoing:
    """An entry to send: its metadata lacks what the producer fills in (name, sequence id, publish time); not compressed yet."""

    __slots__ = ("count", "indexes", "metadata", "payload")

    def __init__(self, metadata: MessageMetadata, payload: bytes, indexes: range) -> None:
        self.metadata, self.payload, self.indexes, self.count = metadata, payload, indexes, len(indexes)


# --- out --------------------------------------------------------------------------------------------------------------


def encode(messages: Sequence[Message], origin: str | None, limits: Limits) -> tuple[list[Outgoing], list[MessageFailure]]:
    """Entries that hold all readable messages in order, and a failure for each that never was readable.

    `origin` is what every stamp begins with, None for no stamps. A message that must be delivered later travels alone, as Pulsar
    demands; one beyond `limits.max_bytes` does too, for the producer to try: compression may make it small enough.
    """
    entries: list[Outgoing] = []
    failures: list[MessageFailure] = []
    stamp = None if origin is None else origin.encode()
    index = 0
    while index < len(messages):
        message = messages[index]
        if message.defect is not None:
            failures.append(MessageFailure(index, Failure.REFUSED, f"it could not be read: {message.defect}"))
            index += 1
        elif message.deliver_at is not None:
            entries.append(_plain(message, origin, index))
            index += 1
        else:
            parts, end = encode_run(messages, index, stamp, limits.max_bytes, limits.max_messages)
            entries.append(_batch(messages, parts, range(index, end)))
            index = end
    return entries, failures


def _batch(messages: Sequence[Message], parts: list[bytes], indexes: range) -> Outgoing:
    metadata = MessageMetadata(num_messages_in_batch=len(indexes))
    _set_keys(metadata, messages[indexes.start])
    return Outgoing(metadata, b"".join(parts), indexes)


def _set_keys(metadata: MessageMetadata, message: Message) -> None:
    """Pulsar dispatches a whole entry by the keys of its first message."""
    if isinstance(message.key, bytes):
        metadata.partition_key = base64.b64encode(message.key).decode()
        metadata.partition_key_b64_encoded = True
    elif message.key is not None:
        metadata.partition_key = message.key
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key


def _plain(message: Message, origin: str | None, index: int) -> Outgoing:
    """An entry of one message that is no batch."""
    metadata = MessageMetadata(null_value=message.payload is None or None, deliver_at_time=message.deliver_at)
    _set_keys(metadata, message)
    pairs = (
        [escape_user_property(pair) for pair in message.properties]
        + carry_fields(message, ALWAYS_CARRIED)
        + carried_type(message)
    )
    if message.event_time == 0:
        pairs.append((EVENT_TIME, "0"))
    pairs += origin_properties(message, None if origin is None else origin + format_position(message.position))
    for key, value in pairs:
        metadata.properties.add(key=key, value=value)
    if message.event_time:
        metadata.event_time = message.event_time & _UINT64
    return Outgoing(metadata, message.payload or b"", range(index, index + 1))


# --- in ---------------------------------------------------------------------------------------------------------------


def decode(entry: Entry) -> list[Message]:
    """The messages of an entry that are still to be delivered; a damaged entry is one message with its `defect`."""
    entry.unpack()
    if entry.defect is None and entry.is_batch:
        try:
            return read_batch(entry)
        except RemoteProtocolError as error:
            entry.defect = str(error)
    if entry.defect is not None:
        return [Message(entry.payload, position=(entry.ledger, entry.entry, 0), defect=entry.defect)]
    return [read(entry.metadata, entry.payload, entry, 0)]
