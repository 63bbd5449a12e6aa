"""The attribute string: every string, whoever wrote it, and the string of every message.

A native string is `key=value` pairs joined by commas; its pairs become properties of the same names, `$msgType$` and `$msgTime$`
among them, and the string itself is kept byte for byte. A gateway writes one of two kinds:

    appended    the user's string as it was , mqbridge.… = …
    built       user pairs , mqbridge.v=1 , $msgType$=… , $msgTime$=… , mqbridge.… = …

It appends where the message still has its attribute string and that still says the same. Keys and values of a built string are
escaped (see `escapes`), and `mqbridge.v=1` says so.
"""

import re
from typing import Any

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.reserved_properties import (
    USER_PREFIX,
    WITHOUT,
    carry_fields,
    escape_user_property,
    origin_properties,
    read_carried,
)
from mqbridge.message import MSG_TIME, MSG_TYPE, Message, Pair, Position
from mqbridge.tubemq.mapping.escapes import MARKER, MARKER_TEXT, OURS, escape, escape_text, is_appended, unescape
from mqbridge.tubemq.mapping.table import TABLE
from mqbridge.tubemq.mapping.times import Minutes
from mqbridge.tubemq.wire.attributes import PAIR_END, read_pair

ALWAYS_CARRIED = (*(field for field in TABLE.carried_fields() if field not in {"origin", "hops"}), "payload")
"""The fields that no native pair says, a missing payload among them; `origin_properties` writes the other two."""

BUILT_CARRIED = (*ALWAYS_CARRIED, "event_time", "attributes")
"""The fields that a built string says in pairs of ours."""

_PAIRS = re.compile(r"(?:^|,)([^=,]++)=([^,]*+)")
"""The items that are pairs. Splitting takes a tenth longer; a cache by item wins only where nearly all items repeat."""

# --- block -> message -------------------------------------------------------------------------------------------------


class AttributesMessage(Message):
    """A message of a native producer: its attribute string says all but the body, so that it is written as it is."""

    __slots__ = ()


def read_message(attributes: bytes, body: bytes, position: Position, minutes: Minutes) -> Message:
    """The message of an attribute string and a body."""
    if attributes.find(OURS) < 0:  # in half the time of `in`
        properties = read_pairs(attributes)
        msg_type, event_time = system_fields(properties, minutes)
        # By position: names take 300 ns more.
        return AttributesMessage(body, properties, None, None, (), msg_type, attributes, event_time, None, None, 0, position)
    items, blank = attributes.split(PAIR_END), not body
    read = _read_built if MARKER in items else _read_appended
    properties, fields = read(items, minutes, blank=blank)
    return Message(fields.pop("payload", body), properties, position=position, **fields)


def read_pairs(attributes: bytes) -> tuple[Pair, ...]:
    """The pairs of an attribute string in order; items that are no pairs are left out, as by `read_pair`."""
    try:
        text = attributes.decode()
    except UnicodeDecodeError:
        return tuple(filter(None, map(read_pair, attributes.split(PAIR_END))))
    return tuple(_PAIRS.findall(text))


def _read_native(attributes: bytes, minutes: Minutes) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    properties = read_pairs(attributes)
    msg_type, event_time = system_fields(properties, minutes)
    return properties, {"attributes": attributes, "msg_type": msg_type, "event_time": event_time}


def _read_built(items: list[bytes], minutes: Minutes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    at = items.index(MARKER)
    own = [_without_prefix(unescape(pair)) for pair in read_pairs(PAIR_END.join(items[:at]))]
    rest, fields = read_carried([unescape(pair) for pair in read_pairs(PAIR_END.join(items[at + 1 :]))], blank=blank)
    # What somebody else appended is the user's; the system's own pairs stand there because no property says the same.
    properties = (*own, *(pair for pair in rest if pair[0] not in {MSG_TYPE, MSG_TIME}))
    msg_type = dict(rest).get(MSG_TYPE, system_fields(properties, minutes)[0])
    return properties, {"msg_type": msg_type} | fields


def _read_appended(items: list[bytes], minutes: Minutes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    at = len(items)
    while at and is_appended(items[at - 1], blank=blank):
        at -= 1
    rest, fields = read_carried([unescape(pair) for pair in read_pairs(PAIR_END.join(items[at:]))], blank=blank)
    if rest:
        at, fields = len(items), {}
    properties, native = _read_native(PAIR_END.join(items[:at]), minutes)
    return properties, native | fields


def _without_prefix(pair: Pair) -> Pair:
    return (pair[0].removeprefix(USER_PREFIX), pair[1])


def system_fields(properties: tuple[Pair, ...], minutes: Minutes) -> tuple[str | None, int | None]:
    """Type and time: the first pair of each, as native readers take them. SDKs write them first, so few pairs are looked at."""
    msg_type = minute = None
    for key, value in properties:
        if key == MSG_TYPE:
            msg_type = value if msg_type is None else msg_type
        elif key == MSG_TIME:
            minute = value if minute is None else minute
        else:
            continue
        if msg_type is not None and minute is not None:
            break
    return msg_type, None if minute is None else minutes[minute.encode()]


# --- message -> block -------------------------------------------------------------------------------------------------


def write_block(message: Message, stamp: str | None, time: str | None, minutes: Minutes) -> bytes | None:
    """The attribute string of a message, None for a message without one; `time` is its `$msgTime$`, `stamp` its origin.

    A stamp that is the message's own origin counts no further hop. Raises UnicodeEncodeError for lone surrogates.
    """
    attributes = message.attributes
    if attributes is not None:
        if message.__class__ is AttributesMessage:
            return append(attributes, _unsaid_time(message, minutes) + origin_properties(message, stamp))
        if _is_unchanged(message, attributes, minutes):
            return append(attributes, _unsaid(message, minutes) + origin_properties(message, stamp))
    own, ours = _build(message, time)
    ours += origin_properties(message, stamp)
    # The broker refuses a message of no bytes at all; the marker alone makes an empty body one with bytes.
    if not (own or ours) and message.payload:
        return None
    return ",".join([*own, MARKER_TEXT, *map(escape, ours)]).encode()


def append(text: bytes, pairs: list[Pair]) -> bytes:
    """An attribute string with escaped pairs behind it."""
    tail = ",".join(map(escape, pairs)).encode()
    return text + PAIR_END + tail if text and tail else text or tail


def _is_unchanged(message: Message, attributes: bytes, minutes: Minutes) -> bool:
    """Whether the attribute string still says what the message says, and would be read as the user's.

    A route may have edited properties or type.
    """
    if OURS in attributes:
        items = attributes.split(PAIR_END)
        if MARKER in items or is_appended(items[-1], blank=not message.payload):
            return False
    pairs = read_pairs(attributes)
    return pairs == message.properties and system_fields(pairs, minutes)[0] == message.msg_type


def _unsaid(message: Message, minutes: Minutes) -> list[Pair]:
    """The fields that the attribute string does not say."""
    return carry_fields(message, ALWAYS_CARRIED) + _unsaid_time(message, minutes)


def _unsaid_time(message: Message, minutes: Minutes) -> list[Pair]:
    """The time, where the attribute string says another one, or the same digits in another zone."""
    time = message.event_time
    return [] if time is None or time == system_fields(message.properties, minutes)[1] else carry_fields(message, ("event_time",))


def _build(message: Message, time: str | None) -> tuple[list[str], list[Pair]]:
    """The items of the user's pairs, and the pairs that follow the marker."""
    properties, known = message.properties, _user_names.get
    names = dict(properties)
    system: list[Pair] = []
    if message.msg_type is None:
        if MSG_TYPE in names:
            system.append((WITHOUT, "msg_type"))
    elif MSG_TYPE not in names or message.property(MSG_TYPE) != message.msg_type:
        system.append((MSG_TYPE, message.msg_type))
    if time is not None and MSG_TIME not in names:
        system.append((MSG_TIME, time))
    own = [f"{known(name) or _user_names[name]}={value if value.isalnum() else escape_text(value)}" for name, value in properties]
    return own, system + carry_fields(message, BUILT_CARRIED)


_user_names: BoundedCache[str, str] = BoundedCache(lambda name: escape_text(escape_user_property((name, ""))[0]))
"""Names of a user's properties as they are written."""
