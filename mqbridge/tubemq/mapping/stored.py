"""A TubeMQ message as consumers get it: checksum, attribute string, body -> `Message`."""

from collections.abc import Sequence
from datetime import UTC, tzinfo

from mqbridge.message import Message, Position
from mqbridge.tubemq.mapping.fast import read_pack
from mqbridge.tubemq.mapping.properties import read_block
from mqbridge.tubemq.mapping.times import Minutes, minutes_of
from mqbridge.tubemq.wire.payload import DAMAGED, checksum, split_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage


def decode(pack: Sequence[TransferedMessage], offset: int, zone: tzinfo = UTC, first: int = 0) -> list[Message]:
    """The messages of one fetch, counted from `offset` on, the first of them with the index `first`.

    A damaged message becomes a Message with its `defect`.
    """
    return read_pack(pack, offset, minutes_of(zone), read_attributes, first)


def read(item: TransferedMessage, position: Position, minutes: Minutes) -> Message:
    """One message, plain."""
    data = item.payLoadData
    if checksum(data) != item.checkSum:
        return Message(data, position=position, defect=DAMAGED)
    attributes, body = split_payload(data, item.flag)
    return Message(body, position=position) if attributes is None else read_attributes(body, attributes, position, minutes)


def read_attributes(body: bytes, attributes: bytes, position: Position, minutes: Minutes) -> Message:
    """The message of a body and an attribute string, plain."""
    properties, fields = read_block(attributes, minutes, blank=not body)
    return Message(fields.pop("payload", body), properties, position=position, **fields)
