"""Raw form of messages that cannot be read, so that their dead letters hold all that the topic held: `pulsar.entry.v1`.

The payload of such a message is an entry as the broker stores it (see `wire/entry.py`): checksum, metadata and payload. So it has
the keys, the codec and the parameters of an encrypted message, and `restore_entry` makes the same entry of it again. Of a chunked
message there is one raw message for each chunk.

If the metadata can be read, the raw message also has the entry's own key, ordering key, properties and times, as copies.
"""

from collections.abc import Sequence

from mqbridge.errors import MappingError
from mqbridge.mapping.raw_form import RAW_FORM, may_be_copied, raw_properties
from mqbridge.message import Message, Position
from mqbridge.pulsar.mapping.keys import decode_key
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.entry import Entry, decode_entry, stored_entry
from mqbridge.pulsar.wire.ids import signed
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata

Metadata = MessageMetadata | SingleMessageMetadata

FORM = "pulsar.entry.v1"
"""The form of Pulsar's raw messages (see `mqbridge.mapping.raw_form`)."""

_SET_BY_BROKERS = (
    "replicated_from",
    "replicate_to",
    "marker_type",
    "txnid_least_bits",
    "txnid_most_bits",
    "highest_sequence_id",
)
"""Fields that a restored entry must not have: they say where the first one was copied from, or belong to its transaction."""


def unreadable_messages(entry: Entry) -> list[Message]:
    """Return the raw messages of an entry with a `defect`: one, or one for each chunk that is to be delivered."""
    assert entry.defect is not None  # noqa: S101 - the caller's condition
    if not isinstance(entry, Entry):  # the compiled module's, which is parsed and not chunked
        return [raw_message(entry, entry.defect)]
    if not entry.is_parsed:
        return [Message(entry.payload, raw_properties((), FORM), position=(*entry.id, 0), defect=entry.defect)]
    return [
        _message(entry, metadata, stored_entry(metadata, payload), index, entry.defect)
        for index, (metadata, payload) in enumerate(entry.stored_parts())
        if entry.count == 1 or entry.is_due(index)
    ]


def unreadable_unit(entry: Entry, data: bytes, positions: Sequence[Position]) -> list[Message]:
    """Return messages with these positions for a unit that cannot be read: the payload of the first one is all of it, `data`."""
    if not positions:
        return []
    defect = entry.defect or "the entry cannot be read"
    if entry.is_parsed:
        first = _message(entry, entry.metadata, data, 0, defect)
    else:
        first = Message(data, raw_properties((), FORM), defect=defect)
    first.position = positions[0]
    published = first.publish_time
    return [first, *(Message(b"", publish_time=published, position=position, defect=defect) for position in positions[1:])]


def raw_message(entry: Entry, defect: str) -> Message:
    """Return the raw message of a whole entry, joined if it is chunked."""
    metadata = _payload_metadata(entry)
    return _message(entry, metadata, stored_entry(metadata, entry.payload), 0, defect)


def _payload_metadata(entry: Entry) -> MessageMetadata:
    """Return the metadata that describe the entry's payload; the compiled module's entries are never compressed."""
    return entry.payload_metadata() if isinstance(entry, Entry) else entry.metadata


def _message(entry: Entry, metadata: Metadata, raw: bytes, index: int, defect: str) -> Message:
    """Return a message with this payload and copies of the metadata's fields, without texts that are not UTF-8."""
    # The protobuf library returns strings that are not UTF-8 as bytes.
    pairs = [(pair.key, pair.value) for pair in metadata.properties if isinstance(pair.key, str) and isinstance(pair.value, str)]
    message = Message(
        raw,
        raw_properties(pairs, FORM),
        event_time=signed(metadata.event_time) if metadata.event_time else None,
        publish_time=entry.publish_time or None,
        delivery_count=entry.redelivery_count,
        position=(*entry.id, index),
        defect=defect,
    )
    key = metadata.partition_key if metadata.HasField("partition_key") else None
    ordering_key = metadata.ordering_key if metadata.HasField("ordering_key") else None
    if may_be_copied(key, ordering_key):
        message.key = decode_key(key, metadata.partition_key_b64_encoded) if isinstance(key, str) else None
        message.ordering_key = ordering_key
    return message


def is_raw(message: Message) -> bool:
    """Return True if the payload of the message is a raw message, of Pulsar or of another system."""
    return message.property(RAW_FORM) is not None


def restore_entry(message: Message) -> tuple[MessageMetadata, bytes]:
    """Return metadata and payload of the entry that a raw message contains, for a producer to send.

    It gets a new publish time, because a broker's time to live counts from it; but chunks keep the one that they have in common.
    Raises MappingError if the payload is no entry that a broker would accept.
    """
    form = message.property(RAW_FORM)
    if form != FORM:
        raise MappingError(f"it is a raw message of the form {form!r}, and Pulsar takes only {FORM!r}")
    entry = decode_entry(message.payload or b"")
    if entry.defect is not None:
        raise MappingError(f"its raw entry is damaged, and no broker takes it: {entry.defect}")
    metadata = entry.metadata
    for field in _SET_BY_BROKERS:
        metadata.ClearField(field)
    if not describes_chunk(metadata):
        metadata.publish_time = 0
    return metadata, entry.payload
