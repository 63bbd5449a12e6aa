"""An entry as a consumer receives it -> messages."""

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Message
from mqbridge.pulsar.mapping import fast
from mqbridge.pulsar.mapping.properties import read_message
from mqbridge.pulsar.wire.batch import split_batch
from mqbridge.pulsar.wire.entry import Entry


def decode(entry: Entry) -> list[Message]:
    """The messages of an entry that are still to be delivered; a damaged entry is one message with its `defect`."""
    entry.unpack()
    if entry.defect is None and entry.is_batch:
        try:
            messages = fast.decode_batch(entry)
            return decode_batch(entry) if messages is None else messages
        except RemoteProtocolError as error:
            entry.defect = str(error)
    if entry.defect is not None:
        return [Message(entry.payload, position=(entry.ledger, entry.entry, 0), defect=entry.defect)]
    return [read_message(entry.metadata, entry.payload, entry, 0)]


def decode_batch(entry: Entry) -> list[Message]:
    """The same for an unpacked batch, by plain code. Raises RemoteProtocolError when it does not hold exactly its messages."""
    return [
        read_message(metadata, payload, entry, index)
        for index, (metadata, payload) in enumerate(split_batch(entry.payload, entry.count))
        if entry.is_due(index) and not metadata.compacted_out
    ]
