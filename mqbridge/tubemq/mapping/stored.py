"""Decodes stored messages, as a Broker returns them, to `Message`: checks the checksum, and splits attributes and body.

A message that cannot be read becomes a raw message of the form `tubemq.message.v1`: its payload is the whole stored message, the
protobuf message `TransferedMessage`.
"""

from collections.abc import Sequence
from datetime import UTC, tzinfo

from mqbridge.mapping.raw_form import raw_properties
from mqbridge.message import Message, Position
from mqbridge.native import compiled
from mqbridge.tubemq.mapping.properties import read_message
from mqbridge.tubemq.mapping.times import MsgTimes, msg_times_of
from mqbridge.tubemq.wire.payload import CHECKSUM_MISMATCH, checksum, split_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from mqbridge.tubemq.wire.stored_message import StoredMessage

FORM = "tubemq.message.v1"
"""The form of TubeMQ's raw messages (see `mqbridge.mapping.raw_form`)."""


def decode(pack: Sequence[StoredMessage], offset: int, zone: tzinfo = UTC, first: int = 0) -> Sequence[Message]:
    """Decode the messages of a pack (the response to one get), or of a part of it.

    Their positions are (`offset`, index in the pack); `first` is the index of the first one. A damaged message becomes a Message
    with a `defect`. `zone` is the time zone of the attribute `$msgTime$`.
    """
    msg_times = msg_times_of(zone)
    if compiled is not None:
        messages: Sequence[Message] | None = compiled.tubemq_decode(pack, offset, first, msg_times)
        # None if the compiled module does not support this pack. Only the plain code makes raw messages.
        if messages is not None and not messages.damaged():  # type: ignore[attr-defined]
            return messages
    return [decode_one(stored, (offset, index), msg_times) for index, stored in enumerate(pack, first)]


def decode_one(stored: StoredMessage, position: Position, msg_times: MsgTimes) -> Message:
    """Decode one message in plain Python."""
    data = stored.payLoadData
    if checksum(data) != stored.checkSum:
        return Message(_raw(stored), raw_properties((), FORM), position=position, defect=CHECKSUM_MISMATCH)
    attributes, body = split_payload(data, stored.flag)
    return Message(body, position=position) if attributes is None else read_message(attributes, body, position, msg_times)


def _raw(stored: StoredMessage) -> bytes:
    return TransferedMessage(
        messageId=stored.messageId, checkSum=stored.checkSum, payLoadData=stored.payLoadData, flag=stored.flag
    ).SerializeToString()
