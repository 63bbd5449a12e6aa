"""`Message` -> TubeMQ send request: attribute string and body in the data field, message type and minute in their own fields."""

from datetime import UTC, tzinfo

from mqbridge.errors import MappingError
from mqbridge.message import Message
from mqbridge.tubemq.mapping.properties import write_attributes
from mqbridge.tubemq.mapping.times import minute_texts_of, minutes_of
from mqbridge.tubemq.wire.payload import join_payload

Request = tuple[bytes, int, str | None, str | None]
"""Fields of a send request that come from a message: data, flag, type and time."""


def encode(message: Message, stamp: str | None, zone: tzinfo = UTC) -> Request:
    """Encode a message as a request; `stamp` is the origin to write, and adds no hop if it equals the message's own origin.

    Raises MappingError for a message with a defect, or with texts that are not valid Unicode.
    """
    if message.defect is not None:
        raise MappingError(f"the message at {message.position} could not be read: {message.defect}")
    time = None if message.event_time is None else minute_texts_of(zone)[message.event_time // 1000]
    try:
        attributes = write_attributes(message, stamp, time, minutes_of(zone))
    except UnicodeEncodeError as error:
        raise MappingError(f"the message at {message.position} has texts that are not valid Unicode: {error}") from error
    data, flag = join_payload(attributes, message.payload or b"")
    return data, flag, message.msg_type, time
