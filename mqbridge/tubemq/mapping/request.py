"""`Message` -> body and attribute string.

A message that still has its attribute string, unchanged, gets it back verbatim. For any other one is built:

    user pairs , mqbridge.v=1 , $msgType$=… , $msgTime$=… , mqbridge.… = …

`mqbridge.v=1` says that the string is ours and escaped (see `escapes`), and no attribute string of a user. Origin and hops are
appended to either kind.
"""

import re
from datetime import UTC, tzinfo

from mqbridge.errors import MappingError
from mqbridge.mapping.attribute_string import read_pairs
from mqbridge.mapping.bounded_cache import BoundedCache, total_length
from mqbridge.mapping.lazy_properties import LazyMessage, PropertyNames, split_properties
from mqbridge.mapping.reserved_properties import (
    EVENT_TIME,
    GATEWAY_MARKER,
    HOPS,
    KEY,
    KEYS,
    ORIGIN,
    WITHOUT,
    carry_fields,
    escape_user_property,
    join_keys,
    origin_properties,
)
from mqbridge.message import MSG_TIME, MSG_TYPE, Message, Pair
from mqbridge.tubemq.mapping.escapes import MARKER, MARKER_TEXT, OURS, escape, is_appended
from mqbridge.tubemq.mapping.properties import system_fields
from mqbridge.tubemq.mapping.table import TABLE
from mqbridge.tubemq.mapping.times import minute_texts_of, minutes_of
from mqbridge.tubemq.wire.payload import join_payload

ALWAYS_CARRIED = (*(field for field in TABLE.carried_fields() if field not in {"origin", "hops"}), "payload")
"""What nothing native says, a missing payload among it; `origin_properties` writes the other two."""


class Encoded:
    """The fields of a send request."""

    __slots__ = ("data", "flag", "msg_time", "msg_type")

    def __init__(self, data: bytes, flag: int, msg_type: str | None, msg_time: str | None) -> None:
        self.data, self.flag, self.msg_type, self.msg_time = data, flag, msg_type, msg_time


def encode(message: Message, stamp: str | None, zone: tzinfo = UTC) -> Encoded:
    """What to send for a message; `stamp` is its origin, which counts as passed on when it is the message's own.

    Raises MappingError for a message that was never readable, or whose texts are no Unicode.
    """
    if message.defect is not None:
        raise MappingError(f"the message at {message.position} could not be read: {message.defect}")
    body = message.payload or b""
    time = None if message.event_time is None else minute_texts_of(zone)[message.event_time // 1000]
    if (built := _build_ordinary(message, stamp, time)) is not None:
        return Encoded(*join_payload(built, body), message.msg_type, time)
    ours: list[Pair]
    from_attributes = isinstance(message, LazyMessage) and message.from_attributes
    if from_attributes or (message.attributes is not None and _unchanged(message, message.attributes, zone)):
        text = message.attributes or b""
        ours = (
            origin_properties(message, stamp) if from_attributes else _besides(message, zone) + origin_properties(message, stamp)
        )
    else:
        try:
            text, ours = _build(message, time)
        except UnicodeEncodeError as error:
            raise MappingError(f"the message at {message.position} has texts that are no Unicode: {error}") from error
        ours += origin_properties(message, stamp)
        # The broker refuses a message of no bytes at all; the marker alone makes one of an empty body.
        if not (text or ours) and body:
            return Encoded(body, 0, message.msg_type, time)
        ours.insert(0, GATEWAY_MARKER)
    if ours:
        tail = ",".join(map(escape, ours)).encode()
        text = text + b"," + tail if text else tail
    return Encoded(*join_payload(text, body), message.msg_type, time)


def _unchanged(message: Message, attributes: bytes, zone: tzinfo) -> bool:
    """Whether the attribute string still says what the message says, and would be read as the user's.

    A route may have edited properties or type.
    """
    if OURS in attributes:
        items = attributes.split(b",")
        if MARKER in items or is_appended(items[-1], blank=not message.payload):
            return False
    pairs = read_pairs(attributes)
    return pairs == message.properties and system_fields(pairs, minutes_of(zone))[0] == message.msg_type


def _besides(message: Message, zone: tzinfo) -> list[Pair]:
    """What the attribute string does not say. Where it alone tells a time, that is the message's: who made it left it at that."""
    said = system_fields(message.properties, minutes_of(zone))[1]
    return carry_fields(message, ALWAYS_CARRIED if message.event_time in {None, said} else (*ALWAYS_CARRIED, "event_time"))


def _build(message: Message, time: str | None) -> tuple[bytes, list[Pair]]:
    """The user's pairs as text, and what is to follow the marker."""
    properties = message.properties
    names = dict(properties)
    system: list[Pair] = []
    if message.msg_type is None:
        if MSG_TYPE in names:
            system.append((WITHOUT, "msg_type"))
    elif MSG_TYPE not in names or message.property(MSG_TYPE) != message.msg_type:
        system.append((MSG_TYPE, message.msg_type))
    if time is not None and MSG_TIME not in names:
        system.append((MSG_TIME, time))
    text = ",".join([escape(escape_user_property(pair)) for pair in properties])
    return text.encode(), system + carry_fields(message, (*ALWAYS_CARRIED, "event_time", "attributes"))


def _build_ordinary(  # noqa: C901, PLR0912 - per message; calls cost more
    message: Message, stamp: str | None, time: str | None
) -> bytes | None:
    """The whole string of a message of which nothing has to be escaped; None for others."""
    if message.attributes is not None or message.payload is None:
        return None
    if isinstance(message, LazyMessage):
        names, values = message.property_names, message.values
    elif message.deliver_at is not None or message.ordering_key is not None or isinstance(message.key, bytes):
        return None
    else:
        try:
            names, values = split_properties(message.properties)
        except UnicodeEncodeError:
            return None
    plan = names.target_cache("tubemq", _plan_of)
    if plan is None:
        return None
    said = [MARKER_TEXT]
    if message.msg_type is not None:
        said.append(f"{MSG_TYPE}={message.msg_type}")
    if time is not None:
        said.append(f"{MSG_TIME}={time}")
    if message.key is not None:
        said.append(f"{KEY}={message.key!s}")
    if keys := message.keys:
        said.append(_said_keys[keys])
    if message.event_time is not None:
        said.append(f"{EVENT_TIME}={message.event_time}")
    if stamp is None or stamp is message.origin:
        said += [f"{name}={value}" for name, value in origin_properties(message, stamp)]
    else:
        said.append(f"{ORIGIN}={stamp}")
        if message.hops:
            said.append(f"{HOPS}={message.hops + 1}")
    try:
        text = b"%b%b" % (plan[0] % values, ",".join(said).encode())
    except UnicodeEncodeError:
        return None
    # What has to be escaped shows in the counts, or behind an equals sign.
    count = plan[1] + len(said)
    if text.count(b"=") != count or text.count(b",") != count - 1 or b"%" in text or _BLANK.search(text) is not None:
        return None
    return text if count > 1 else None


def _plan_of(names: PropertyNames) -> tuple[bytes, int] | None:
    """The pairs of these names but for the values, and how many; None for names that are to be escaped, or the system's."""
    if MSG_TYPE in names.texts or MSG_TIME in names.texts:
        return None
    items = [escape(escape_user_property((name, "x")))[:-1] for name in names.texts]
    text = "".join([f"{item}%b," for item in items]).encode()
    return None if text.count(b"%") != len(items) else (text, len(items))


_BLANK = re.compile(
    rb"=(?:,|$|[\t-\r\x1c- ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)"
)
"""A value that is empty, or that begins with anything that `str.isspace` takes for a blank."""


def _say_keys(keys: tuple[str, ...]) -> str:
    return f"{KEYS}={join_keys(keys)}"


_said_keys: BoundedCache[tuple[str, ...], str] = BoundedCache(_say_keys, length=total_length)
