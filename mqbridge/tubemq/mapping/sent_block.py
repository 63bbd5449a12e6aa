"""The flag and the attribute string that a TubeMQ SDK sent, as the value of one property (BLOCK) that every system stores.

The fields of a message tell them, unless the string has items of a gateway (see `properties`), or the flag is not the one that
mqbridge writes for the data. Then the message also has this value:

    1:CRC:FLAG:FORM:STRING

    1       the version of this layout
    CRC     CRC-32, as 8 hex digits, of all that follows in the value and of the message's fields
    FLAG    the flag
    FORM    n: the data is only the body, and STRING is empty
            t: STRING is the attribute string as text
            b: STRING is the attribute string in base64, because it has unprintable characters, or bytes that are not UTF-8

The CRC tells whether the value belongs to the message, see `mqbridge.mapping.message_checksum`.
"""

import base64
from collections.abc import Sequence

from mqbridge.mapping.message_checksum import CHECKSUM_DIGITS, message_checksum
from mqbridge.mapping.reserved_properties import read_number
from mqbridge.message import Message, Pair
from mqbridge.tubemq.wire.payload import join_payload, split_payload

_VERSION = "1:"
_CRC_END = len(_VERSION) + CHECKSUM_DIGITS
"""The index of the colon behind the CRC."""
_INT32 = range(-(1 << 31), 1 << 31)


def write_sent_block(data: bytes, flag: int, message: Message, properties: Sequence[Pair]) -> str:
    """Return the value for the message that was mapped from `data`; `properties` are its properties without this one."""
    attributes, _ = split_payload(data, flag)
    rest = f":{flag}:{_format_string(attributes)}"
    return f"{_VERSION}{message_checksum(rest, message, properties)}{rest}"


def read_sent_block(value: str, message: Message, properties: Sequence[Pair]) -> tuple[bytes, int] | None:
    """Return data and flag as an SDK sent them; None if the value does not fit the message. Raises nothing."""
    crc, rest = value[len(_VERSION) : _CRC_END], value[_CRC_END:]
    if not value.startswith(_VERSION) or crc != message_checksum(rest, message, properties):
        return None
    try:
        _, flag, form, string = rest.split(":", 3)
        attributes, number = _parse_string(form, string), read_number(flag)
    except ValueError:
        return None
    data, _ = join_payload(attributes, message.payload or b"")
    return (data, number) if number in _INT32 else None


def _format_string(attributes: bytes | None) -> str:
    """Return FORM and STRING for this attribute string."""
    if attributes is None:
        return "n:"
    try:
        text = attributes.decode()
    except UnicodeDecodeError:
        text = "\n"
    return f"t:{text}" if text.isprintable() else f"b:{base64.b64encode(attributes).decode()}"


def _parse_string(form: str, string: str) -> bytes | None:
    """Return the attribute string. Raises ValueError if nothing writes these texts."""
    match form:
        case "n" if not string:
            return None
        case "t":
            return string.encode()
        case "b":
            return base64.b64decode(string, validate=True)
    raise ValueError(form)
