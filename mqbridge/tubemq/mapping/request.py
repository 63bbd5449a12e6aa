"""`Message` -> a TubeMQ send request: body and attribute string in one block, message type and minute beside it."""

from datetime import UTC, tzinfo

from mqbridge.errors import MappingError
from mqbridge.message import Message
from mqbridge.tubemq.mapping.properties import write_block
from mqbridge.tubemq.mapping.times import minute_texts_of, minutes_of
from mqbridge.tubemq.wire.payload import join_payload

Request = tuple[bytes, int, str | None, str | None]
"""The fields of a send request that come from a message: data, flag, type and time."""


def encode(message: Message, stamp: str | None, zone: tzinfo = UTC) -> Request:
    """The request for a message; `stamp` is its origin, and adds no hop when it is the message's own.

    Raises MappingError for a message that was never readable, or whose texts are no Unicode.
    """
    if message.defect is not None:
        raise MappingError(f"the message at {message.position} could not be read: {message.defect}")
    time = None if message.event_time is None else minute_texts_of(zone)[message.event_time // 1000]
    try:
        block = write_block(message, stamp, time, minutes_of(zone))
    except UnicodeEncodeError as error:
        raise MappingError(f"the message at {message.position} has texts that are no Unicode: {error}") from error
    data, flag = join_payload(block, message.payload or b"")
    return data, flag, message.msg_type, time
