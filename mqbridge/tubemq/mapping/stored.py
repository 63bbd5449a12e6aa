"""TubeMQ message as delivered to consumers (checksum, attribute string, body) -> `Message`."""

from collections.abc import Sequence
from datetime import UTC, tzinfo

from mqbridge.message import Message, Position
from mqbridge.native import compiled
from mqbridge.tubemq.mapping.properties import read_message
from mqbridge.tubemq.mapping.times import Minutes, minutes_of
from mqbridge.tubemq.wire.payload import CHECKSUM_MISMATCH, checksum, split_payload
from mqbridge.tubemq.wire.stored_message import StoredMessage


def decode(pack: Sequence[StoredMessage], offset: int, zone: tzinfo = UTC, first: int = 0) -> Sequence[Message]:
    """Decode the messages of a pack. Their positions are (`offset`, index), with indexes that begin at `first`.

    A damaged message becomes a Message with a `defect`.
    """
    minutes = minutes_of(zone)
    if compiled is not None:
        messages: Sequence[Message] | None = compiled.tubemq_decode(pack, offset, first, minutes)
        if messages is not None:
            return messages
    return [read(item, (offset, index), minutes) for index, item in enumerate(pack, first)]


def read(item: StoredMessage, position: Position, minutes: Minutes) -> Message:
    """Decode one message in plain Python."""
    data = item.payLoadData
    if checksum(data) != item.checkSum:
        return Message(data, position=position, defect=CHECKSUM_MISMATCH)
    attributes, body = split_payload(data, item.flag)
    return Message(body, position=position) if attributes is None else read_message(attributes, body, position, minutes)
