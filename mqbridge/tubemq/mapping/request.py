"""`Message` -> the fields of a TubeMQ send request that depend on the message.

The data field has the attribute string and the body; message type and time also have fields of their own.
"""

from datetime import UTC, tzinfo

from mqbridge.errors import MappingError
from mqbridge.message import Message
from mqbridge.tubemq.mapping.properties import write_attributes
from mqbridge.tubemq.mapping.times import msg_time_texts_of, msg_times_of
from mqbridge.tubemq.wire.payload import join_payload
from mqbridge.wire.text import percent_encode_raw

RequestFields = tuple[bytes, int, str | None, str | None]
"""Fields of a send request that come from a message: data, flag (1 if the data contains attributes), message type, and event time
as a `$msgTime$` value (YYYYMMDDHHMM)."""


def encode(message: Message, stamp: str | None, zone: tzinfo = UTC) -> RequestFields:
    """Encode a message. `stamp` is the origin to write, which adds a hop if it differs from the message's own origin.

    With `stamp` None the message keeps its own origin and hops, if it has any.
    `zone` is the time zone of `$msgTime$`. Raises MappingError for a message with a defect, or with texts that are not valid
    Unicode.
    """
    if message.defect is not None:
        raise MappingError(f"the message at {message.position} could not be read: {message.defect}")
    msg_time = None if message.event_time is None else msg_time_texts_of(zone)[message.event_time // 1000]
    try:
        attributes = write_attributes(message, stamp, msg_time, msg_times_of(zone))
    except UnicodeEncodeError as error:
        raise MappingError(f"the message at {message.position} has texts that are not valid Unicode: {error}") from error
    data, flag = join_payload(attributes, message.payload or b"")
    msg_type = None if message.msg_type is None else percent_encode_raw(message.msg_type)
    return data, flag, msg_type, msg_time
