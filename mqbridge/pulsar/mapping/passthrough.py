"""Entries as consumed -> entries for a producer to send, by plain code that makes no message of what is ordinary.

Messages that need nothing but an origin keep their encoded properties; the meaning is that of `encode` for the decoded messages.
Decoding and encoding them all was measured to take more than twice as long.
"""

from collections.abc import Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.mapping.reserved_properties import ORIGIN
from mqbridge.message import RESERVED_PREFIX, Message
from mqbridge.pulsar.mapping.request import CopiedMessage, Encoded, Limits, encode_plain
from mqbridge.pulsar.mapping.stored import decode
from mqbridge.pulsar.wire.batch import iterate_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import SingleMessageMetadata
from mqbridge.pulsar.wire.single_metadata import encode_prefix

_RESERVED = RESERVED_PREFIX.encode()


def encode_entries(entries: Sequence[Entry], origin: str | None, limits: Limits) -> Encoded:
    """Entries that hold all messages of these entries that are to be delivered; see `encode`."""
    found: list[Message | CopiedMessage] = []
    for entry in entries:
        entry.unpack()
        found += _copy_batch(entry, origin) or decode(entry, include_compacted_out=True)
    return encode_plain(found, origin, limits)


def _copy_batch(entry: Entry, origin: str | None) -> list[CopiedMessage] | None:
    """The messages of a batch; None where one of them has to be decoded."""
    if entry.defect is not None or not entry.is_batch or entry.metadata.HasField("deliver_at_time") or _RESERVED in entry.payload:
        return None
    stem = None if origin is None else f"{origin}{entry.ledger}:{entry.entry}:"
    copied: list[CopiedMessage] = []
    try:
        for index, (single, payload) in enumerate(iterate_batch(entry.payload, entry.count)):
            if not entry.ack_set or entry.is_due(index):
                message = _copy(single, payload, None if stem is None else f"{stem}{index}")
                if message is None:
                    return None
                copied.append(message)
    except RemoteProtocolError:
        return None  # decoding says what is wrong
    return copied


def _copy(single: SingleMessageMetadata, payload: bytes, origin: str | None) -> CopiedMessage | None:
    """A message that has properties, a key that is text, and an event time; None for one with more."""
    time, key = single.event_time, single.partition_key if single.HasField("partition_key") else None
    if isinstance(key, bytes) or single.partition_key_b64_encoded:
        return None
    single.DiscardUnknownFields()
    for field in ("partition_key", "payload_size", "event_time", "partition_key_b64_encoded", "sequence_id"):
        single.ClearField(field)
    properties = single.SerializePartialToString()
    single.ClearField("properties")
    if single.SerializePartialToString():
        return None
    try:
        # Before and behind each text is an ASCII byte, a tag or the end of a length: all is UTF-8 only if each text is.
        properties.decode()
    except UnicodeDecodeError:
        return None
    stamp = [] if origin is None else [(ORIGIN, origin)]
    return CopiedMessage(payload, key, encode_prefix(len(payload), stamp, key, event_time=time, before=properties))
