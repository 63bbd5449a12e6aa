"""A TubeMQ message as consumers get it: checksum, attribute string, body -> `Message`."""

from collections.abc import Sequence
from datetime import UTC, tzinfo

from mqbridge.message import Message, Position
from mqbridge.native import compiled
from mqbridge.tubemq.mapping.properties import read_message
from mqbridge.tubemq.mapping.times import Minutes, minutes_of
from mqbridge.tubemq.wire.pack import Transfered
from mqbridge.tubemq.wire.payload import DAMAGED, checksum, split_payload


def decode(pack: Sequence[Transfered], offset: int, zone: tzinfo = UTC, first: int = 0) -> Sequence[Message]:
    """The messages of one fetch, counted from `offset` on, the first of them with the index `first`.

    A damaged message becomes a Message with its `defect`.
    """
    minutes = minutes_of(zone)
    if compiled is not None:
        messages: Sequence[Message] | None = compiled.tubemq_decode(pack, offset, first, minutes)
        if messages is not None:
            return messages
    return [read(item, (offset, index), minutes) for index, item in enumerate(pack, first)]


def read(item: Transfered, position: Position, minutes: Minutes) -> Message:
    """One message, plain."""
    data = item.payLoadData
    if checksum(data) != item.checkSum:
        return Message(data, position=position, defect=DAMAGED)
    attributes, body = split_payload(data, item.flag)
    return Message(body, position=position) if attributes is None else read_message(attributes, body, position, minutes)
