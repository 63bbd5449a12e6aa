"""Entries as a consumer receives them -> messages."""

from collections.abc import Sequence
from typing import Any

from mqbridge import native
from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Message
from mqbridge.pulsar.mapping.properties import MessageReader, deliver_at
from mqbridge.pulsar.wire.batch import iterate_batch
from mqbridge.pulsar.wire.entry import Entry


def decode_entries(entries: Sequence[Entry]) -> Sequence[Message]:
    """The messages of entries that are still to be delivered; a damaged entry is one message with its `defect`."""
    for entry in entries:
        entry.unpack()
    if native.compiled is not None:
        delivered = native.compiled.PulsarEntry
        found = native.compiled.pulsar_decode([entry if isinstance(entry, delivered) else _fields(entry) for entry in entries])
        if found is not None:
            messages: Sequence[Message]
            messages, defects = found
            for index, defect in defects:
                entries[index].defect = defect
            return messages
    return [message for entry in entries for message in decode(entry, include_compacted_out=True)]


def _fields(entry: Entry) -> tuple[Any, ...]:
    """What the compiled module is told of an entry. The properties of a batch are in its payload, others in the metadata."""
    metadata = entry.metadata
    alone, count = (None, entry.count) if entry.is_batch else (metadata.SerializePartialToString(), 1)
    place, times = (entry.ledger, entry.entry), (metadata.publish_time, deliver_at(entry))
    return (entry.payload, alone, count, entry.ack_set, *place, entry.redelivery_count, *times, entry.defect)


def decode(entry: Entry, *, include_compacted_out: bool = False) -> list[Message]:
    """The same for one entry, by plain code.

    Messages that compaction removed are left out; only readers with `read_compacted` receive such batches. The gateway counts
    the messages of an entry without decoding it, so it decodes with `include_compacted_out`.
    """
    entry.unpack()
    if entry.defect is None and entry.is_batch:
        try:
            return _decode_batch(entry, include_compacted_out=include_compacted_out)
        except RemoteProtocolError as error:
            entry.defect = str(error)
    if entry.defect is not None:
        return [Message(entry.payload, position=(entry.ledger, entry.entry, 0), defect=entry.defect)]
    return [MessageReader(entry).read(entry.metadata, entry.payload, 0)]


def _decode_batch(entry: Entry, *, include_compacted_out: bool) -> list[Message]:
    """Raises RemoteProtocolError when a batch does not hold exactly its messages."""
    read, is_whole = MessageReader(entry).read, not entry.ack_set
    return [
        read(metadata, payload, index)
        for index, (metadata, payload) in enumerate(iterate_batch(entry.payload, entry.count))
        if (is_whole or entry.is_due(index)) and (include_compacted_out or not metadata.compacted_out)
    ]
