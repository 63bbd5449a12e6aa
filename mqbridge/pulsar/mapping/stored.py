"""Received entries -> messages."""

from collections.abc import Sequence
from typing import Any

from mqbridge import native
from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Message
from mqbridge.pulsar.mapping.properties import MessageReader, deliver_at
from mqbridge.pulsar.wire.batch import iterate_batch
from mqbridge.pulsar.wire.entry import Entry


def decode_entries(entries: Sequence[Entry]) -> Sequence[Message]:
    """Return the messages of entries that are to be delivered; a damaged entry becomes one message with its `defect`."""
    for entry in entries:
        entry.unpack()
    if native.compiled is not None:
        compiled_entry = native.compiled.PulsarEntry
        items = [entry if isinstance(entry, compiled_entry) else _fields(entry) for entry in entries]
        decoded = native.compiled.pulsar_decode(items)
        if decoded is not None:
            messages: Sequence[Message]
            messages, defects = decoded
            for index, defect in defects:
                entries[index].defect = defect
            return messages
    return [message for entry in entries for message in decode(entry, include_compacted_out=True)]


def _fields(entry: Entry) -> tuple[Any, ...]:
    """Return an entry's fields for the compiled module. Properties are in the payload of a batch, else in the metadata."""
    metadata = entry.metadata
    own_metadata, count = (None, entry.count) if entry.is_batch else (metadata.SerializePartialToString(), 1)
    entry_id, times = (entry.ledger, entry.entry), (metadata.publish_time, deliver_at(entry))
    return (entry.payload, own_metadata, count, entry.ack_set, *entry_id, entry.redelivery_count, *times, entry.defect)


def decode(entry: Entry, *, include_compacted_out: bool = False) -> list[Message]:
    """Decode one entry in plain Python.

    Messages removed by compaction are left out; only readers with `read_compacted` receive such batches. The gateway counts the
    messages of an entry without decoding it, so it decodes with `include_compacted_out`.
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
    """Decode a batch. Raises RemoteProtocolError if the payload does not hold exactly its messages."""
    read, is_whole = MessageReader(entry).read, not entry.ack_set
    return [
        read(metadata, payload, index)
        for index, (metadata, payload) in enumerate(iterate_batch(entry.payload, entry.count))
        if (is_whole or entry.is_due(index)) and (include_compacted_out or not metadata.compacted_out)
    ]
