"""The unit format `pulsar.entry`: an entry as brokers store it, without the metadata that a broker adds in front of it.

The bytes are those of `wire.entry.stored_entry`: magic, checksum, metadata of the producer, and payload, still compressed,
encrypted or in batch framing. So a unit has everything that no `Message` can hold.
"""

from collections.abc import Sequence

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Message, Position, Unit
from mqbridge.pulsar.mapping.raw_entry import unreadable_unit
from mqbridge.pulsar.mapping.stored import decode_entries
from mqbridge.pulsar.wire.chunks import chunk_defect
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

FORMAT = "pulsar.entry"


class EntryFormat:
    """Decodes entries, in the same way as a lane does, except for the chunks of larger messages, which it does not join."""

    name = FORMAT

    def decode(self, unit: Unit, positions: Sequence[Position]) -> Sequence[Message]:
        """Return the messages of the entry, those included that compaction has removed; raises nothing.

        If the entry is damaged or encrypted, is a chunk, or has another number of messages than the unit, all messages have a
        defect: the payload of the first one is the whole entry (see `raw_entry`), and the others are empty.
        """
        entry = decode_unit(unit)
        if is_in_entry := _are_of_one_entry(positions):
            entry.ledger, entry.entry, _ = positions[0]
        messages: Sequence[Message] = () if entry.defect is not None else decode_entries([entry])
        if entry.defect is None and len(messages) != unit.message_count:
            entry.defect = f"the entry has {len(messages)} messages, and its unit says {unit.message_count}"
        if entry.defect is not None:
            return unreadable_unit(entry, unit.data, positions)
        if is_in_entry:
            return messages  # still in the compiled form, if there is one
        return [message.replace(position=position) for message, position in zip(messages, positions, strict=True)]


def _are_of_one_entry(positions: Sequence[Position]) -> bool:
    """Return True for the positions that the messages of an entry have: (ledger, entry, 0), (ledger, entry, 1) and so on."""
    if not positions or len(positions[0]) != 3:
        return False
    ledger, entry, _ = positions[0]
    return all(position == (ledger, entry, index) for index, position in enumerate(positions))


def decode_unit(unit: Unit) -> Entry:
    """Decode and unpack an entry; a chunk gets a defect, because it is not joined here.

    An entry of another number of messages is not unpacked: its unit was counted without them.
    """
    entry = decode_entry(unit.data)
    if entry.is_chunk:
        entry.defect = chunk_defect(entry.metadata)
    if entry.defect is None:
        try:
            check_count(entry.metadata, unit.message_count)
        except RemoteProtocolError as error:
            entry.defect = str(error)
    entry.unpack()
    return entry


def check_count(metadata: MessageMetadata, count: int) -> None:
    """Raise RemoteProtocolError if unit and entry differ in the number of messages; a lane counts an encrypted entry as one."""
    stored = max(1, metadata.num_messages_in_batch)
    if count != stored and not (count == 1 and metadata.encryption_keys):
        raise RemoteProtocolError(f"the entry has {stored} messages, and its unit says {count}")
