r"""What a RocketMQ SDK sent beside the body, as the value of one property (BLOCK) that every system stores as it is.

The mapped fields of a message (see `read_block`) are made for copies: they leave out what must not act on a copy, and have no
place for the order of system properties, empty values, or the number of redeliveries. So a message of an SDK also has this value:

    1:CRC:FLAG:RECONSUMED:BORN:FORM:STRING

    1           the version of this layout
    CRC         CRC-32, as 8 hex digits, of all that follows in the value and of the message's fields
    FLAG        the record's flag; empty for 0
    RECONSUMED  the record's number of redeliveries; empty for 0
    BORN        the record's born timestamp; empty if it is the event time of the message
    FORM        t: STRING is text, with ~ for \x01 and | for \x02
                b: STRING is base64, as the property string contains ~, |, unprintable characters, or bytes that are not UTF-8
    STRING      the property string, byte for byte

The CRC tells whether the value belongs to the message, see `mqbridge.mapping.message_checksum`.
"""

import base64
from collections.abc import Sequence
from typing import NamedTuple

from mqbridge.mapping.message_checksum import CHECKSUM_DIGITS, message_checksum
from mqbridge.mapping.reserved_properties import read_number
from mqbridge.message import Message, Pair
from mqbridge.rocketmq.wire.properties import NAME_END, VALUE_END

_VERSION = "1:"
_CRC_END = len(_VERSION) + CHECKSUM_DIGITS
"""The index of the colon behind the CRC."""
_NAME_END_CHARACTER, _VALUE_END_CHARACTER = "~", "|"
_MAX_STRING_BYTES = 0xFFFF
"""The longest property string that fits the field of a record."""
_INT32, _INT64 = range(-(1 << 31), 1 << 31), range(-(1 << 63), 1 << 63)


class SentBlock(NamedTuple):
    """What an SDK sent beside the body, and what it gets: fields of a record."""

    properties: bytes
    flag: int
    reconsume_times: int
    born_timestamp: int


def write_sent_block(sent: SentBlock, message: Message, properties: Sequence[Pair]) -> str:
    """Return the value for the message that was mapped from `sent`; `properties` are its properties without this one."""
    born = "" if sent.born_timestamp == message.event_time else sent.born_timestamp
    rest = f":{sent.flag or ''}:{sent.reconsume_times or ''}:{born}:{_format_string(sent.properties)}"
    return f"{_VERSION}{message_checksum(rest, message, properties)}{rest}"


def read_sent_block(value: str, message: Message, properties: Sequence[Pair]) -> SentBlock | None:
    """Return what an SDK sent; None if the value does not fit the message and its other `properties`. Raises nothing."""
    crc, rest = value[len(_VERSION) : _CRC_END], value[_CRC_END:]
    if not value.startswith(_VERSION) or crc != message_checksum(rest, message, properties):
        return None
    try:
        _, flag, reconsume_times, born, form, string = rest.split(":", 5)
        sent = SentBlock(
            _parse_string(form, string),
            read_number(flag or "0"),
            read_number(reconsume_times or "0"),
            read_number(born or str(message.event_time)),
        )
    except ValueError:
        return None
    is_valid = sent.flag in _INT32 and sent.reconsume_times in _INT32 and len(sent.properties) <= _MAX_STRING_BYTES
    return sent if is_valid else None


def _format_string(properties: bytes) -> str:
    """Return FORM and STRING for this property string."""
    try:
        text = properties.decode()
    except UnicodeDecodeError:
        text = ""
    else:
        if _NAME_END_CHARACTER not in text and _VALUE_END_CHARACTER not in text:
            text = text.replace(NAME_END, _NAME_END_CHARACTER).replace(VALUE_END, _VALUE_END_CHARACTER)
            if text.isprintable():
                return f"t:{text}"
    return f"b:{base64.b64encode(properties).decode()}"


def _parse_string(form: str, string: str) -> bytes:
    """Return the property string. Raises ValueError if nothing writes these texts."""
    match form:
        case "t":
            return string.replace(_NAME_END_CHARACTER, NAME_END).replace(_VALUE_END_CHARACTER, VALUE_END).encode()
        case "b":
            return base64.b64decode(string, validate=True)
    raise ValueError(form)
