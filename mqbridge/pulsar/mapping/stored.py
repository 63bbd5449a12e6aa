"""Decodes received entries into messages."""

from collections.abc import Sequence
from typing import Any

from mqbridge import native
from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Message
from mqbridge.pulsar.mapping.properties import MessageReader, delivery_time_of
from mqbridge.pulsar.mapping.raw_entry import unreadable_messages
from mqbridge.pulsar.wire.batch import iterate_batch
from mqbridge.pulsar.wire.entry import Entry


def decode_entries(entries: Sequence[Entry]) -> Sequence[Message]:
    """Return the messages of these entries that are not acknowledged yet, whether or not compaction has removed them.

    A damaged entry becomes raw messages with its `defect` (see `raw_entry`), which only the plain code makes.
    """
    for entry in entries:
        entry.unpack()  # decompresses the payload; a failure sets `defect`
    if native.compiled is not None:
        compiled_entry = native.compiled.PulsarEntry
        items = [entry if isinstance(entry, compiled_entry) else _fields_for_compiled(entry) for entry in entries]
        decoded = native.compiled.pulsar_decode(items)
        # None: some entry is unusual, for example has a number beyond 64 bits. Its second item names the damaged entries.
        # Only the plain code reads texts that are not UTF-8, which the compiled module reports as damage.
        if decoded is not None and not decoded[1] and not decoded[0].damaged():
            messages: Sequence[Message] = decoded[0]
            return messages
    return [message for entry in entries for message in decode_plain(entry, include_compacted_out=True)]


def _fields_for_compiled(entry: Entry) -> tuple[Any, ...]:
    """Return an entry's fields as the tuple that `pulsar_decode` takes; a batch needs no metadata of the entry."""
    metadata = entry.metadata
    own_metadata, count = (None, entry.count) if entry.is_batch else (metadata.SerializePartialToString(), 1)
    entry_id, times = (entry.ledger, entry.entry), (metadata.publish_time, delivery_time_of(entry))
    return (entry.payload, own_metadata, count, entry.ack_set, *entry_id, entry.redelivery_count, *times, entry.defect)


def decode_plain(entry: Entry, *, include_compacted_out: bool = False) -> list[Message]:
    """Decode one entry in plain Python; return its messages that are not acknowledged yet.

    Messages that compaction has removed from a batch are left out; only consumers with `read_compacted` receive such batches. The
    gateway sets `include_compacted_out`, because it counts the messages of an entry without decoding it, removed ones included.
    """
    entry.unpack()
    if entry.defect is None and entry.is_batch:
        try:
            return _decode_batch(entry, include_compacted_out=include_compacted_out)
        except RemoteProtocolError as error:
            entry.defect = str(error)
    if entry.defect is not None:
        return unreadable_messages(entry)
    return [MessageReader(entry).read(entry.metadata, entry.payload, 0)]


def _decode_batch(entry: Entry, *, include_compacted_out: bool) -> list[Message]:
    """Decode the messages of a batch that are not acknowledged yet. Raises RemoteProtocolError if the payload is damaged."""
    read, is_whole = MessageReader(entry).read, not entry.ack_set  # without an `ack_set`, no message is acknowledged
    return [
        read(metadata, payload, index)
        for index, (metadata, payload) in enumerate(iterate_batch(entry.payload, entry.count))
        if (is_whole or entry.is_due(index)) and (include_compacted_out or not metadata.compacted_out)
    ]
