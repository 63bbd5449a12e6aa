"""Attribute string <-> message, for strings that SDKs or gateways wrote.

A string written by an SDK consists of `key=value` pairs joined by commas. Its pairs become properties of the same names,
`$msgType$` and `$msgTime$` included, and the message also keeps the string, byte for byte. A gateway writes one of two forms:

    appended    the user's string unchanged , mqbridge.… = …
    built       user pairs , mqbridge.v=1 , $msgType$=… , $msgTime$=… , mqbridge.… = …

It appends if the message has an attribute string, and this string agrees with the message's properties and type. Keys and values
of a built string are escaped (see `escapes`); the item `mqbridge.v=1` marks a built string.
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
from mqbridge.tubemq.mapping.escapes import MARKER, MARKER_TEXT, RESERVED_PREFIX_BYTES, escape, escape_text, is_appended, unescape
from mqbridge.tubemq.mapping.table import TABLE
from mqbridge.tubemq.mapping.times import Minutes
from mqbridge.tubemq.wire.attributes import PAIR_SEPARATOR, parse_pair

ALWAYS_CARRIED = (*(field for field in TABLE.carried_fields() if field not in {"origin", "hops"}), "payload")
"""Fields that TubeMQ has no pair for, a missing payload included; `origin_properties` writes `origin` and `hops`."""

BUILT_CARRIED = (*ALWAYS_CARRIED, "event_time", "attributes")
"""Fields that a built string carries in reserved pairs."""

_PAIRS = re.compile(r"(?:^|,)([^=,]++)=([^,]*+)")
"""Matches the items that are pairs. Splitting takes a tenth longer; a cache by item is faster only if nearly all items repeat."""

# --- attribute string -> message --------------------------------------------------------------------------------------


class AttributesMessage(Message):
    """A message that contains only a body and the attribute string of an SDK; this string is written back unchanged."""

    __slots__ = ()


def read_message(attributes: bytes, body: bytes, position: Position, minutes: Minutes) -> Message:
    """Return the message with this attribute string and body."""
    if attributes.find(RESERVED_PREFIX_BYTES) < 0:  # `find` takes half the time of `in`
        properties = parse_pairs(attributes)
        msg_type, event_time = system_fields(properties, minutes)
        # Positional arguments: keywords take 300 ns more.
        return AttributesMessage(body, properties, None, None, (), msg_type, attributes, event_time, None, None, 0, position)
    items, blank = attributes.split(PAIR_SEPARATOR), not body
    read = _read_built if MARKER in items else _read_appended  # see the module's docstring
    properties, fields = read(items, minutes, blank=blank)
    return Message(fields.pop("payload", body), properties, position=position, **fields)


def parse_pairs(attributes: bytes) -> tuple[Pair, ...]:
    """Return the pairs of an attribute string, in order, without items that are not pairs according to `parse_pair`."""
    try:
        text = attributes.decode()
    except UnicodeDecodeError:
        return tuple(filter(None, map(parse_pair, attributes.split(PAIR_SEPARATOR))))
    return tuple(_PAIRS.findall(text))


def _read_plain(attributes: bytes, minutes: Minutes) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    properties = parse_pairs(attributes)
    msg_type, event_time = system_fields(properties, minutes)
    return properties, {"attributes": attributes, "msg_type": msg_type, "event_time": event_time}


def _read_built(items: list[bytes], minutes: Minutes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    at = items.index(MARKER)
    user_pairs = [_without_prefix(unescape(pair)) for pair in parse_pairs(PAIR_SEPARATOR.join(items[:at]))]
    rest, fields = read_carried([unescape(pair) for pair in parse_pairs(PAIR_SEPARATOR.join(items[at + 1 :]))], blank=blank)
    # Unknown pairs after the marker were appended by others: they are user properties, except $msgType$ and $msgTime$, which
    # the gateway wrote there from fields of the message.
    properties = (*user_pairs, *(pair for pair in rest if pair[0] not in {MSG_TYPE, MSG_TIME}))
    msg_type = dict(rest).get(MSG_TYPE, system_fields(properties, minutes)[0])
    return properties, {"msg_type": msg_type} | fields


def _read_appended(items: list[bytes], minutes: Minutes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    at = len(items)
    while at and is_appended(items[at - 1], blank=blank):
        at -= 1
    rest, fields = read_carried([unescape(pair) for pair in parse_pairs(PAIR_SEPARATOR.join(items[at:]))], blank=blank)
    if rest:
        at, fields = len(items), {}
    properties, own_fields = _read_plain(PAIR_SEPARATOR.join(items[:at]), minutes)
    return properties, own_fields | fields


def _without_prefix(pair: Pair) -> Pair:
    return (pair[0].removeprefix(USER_PREFIX), pair[1])


def system_fields(properties: tuple[Pair, ...], minutes: Minutes) -> tuple[str | None, int | None]:
    """Return message type and time, each from its first pair, as SDKs do. SDKs write these pairs first: the loop ends early."""
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


# --- message -> attribute string --------------------------------------------------------------------------------------


def write_attributes(message: Message, stamp: str | None, time: str | None, minutes: Minutes) -> bytes | None:
    """Return the attribute string of a message, None if it needs none.

    `time` is the value of `$msgTime$`, `stamp` the origin to write; a stamp that equals the message's own origin adds no hop.
    Raises UnicodeEncodeError for lone surrogates.
    """
    attributes = message.attributes
    if attributes is not None:
        if message.__class__ is AttributesMessage:
            return append(attributes, _missing_time(message, minutes) + origin_properties(message, stamp))
        if _is_unchanged(message, attributes, minutes):
            return append(attributes, _missing_fields(message, minutes) + origin_properties(message, stamp))
    user_items, reserved = _build(message, time)
    reserved += origin_properties(message, stamp)
    # The Broker refuses a message of zero bytes; if the body is empty, at least the marker is written.
    if not (user_items or reserved) and message.payload:
        return None
    return ",".join([*user_items, MARKER_TEXT, *map(escape, reserved)]).encode()


def append(text: bytes, pairs: list[Pair]) -> bytes:
    """Append escaped pairs to an attribute string."""
    tail = ",".join(map(escape, pairs)).encode()
    return text + PAIR_SEPARATOR + tail if text and tail else text or tail


def _is_unchanged(message: Message, attributes: bytes, minutes: Minutes) -> bool:
    """Return True if the attribute string agrees with the message's properties and type, and would be read back the same.

    It does not agree if a route has edited the properties or the type.
    """
    if RESERVED_PREFIX_BYTES in attributes:
        items = attributes.split(PAIR_SEPARATOR)
        if MARKER in items or is_appended(items[-1], blank=not message.payload):
            return False
    pairs = parse_pairs(attributes)
    return pairs == message.properties and system_fields(pairs, minutes)[0] == message.msg_type


def _missing_fields(message: Message, minutes: Minutes) -> list[Pair]:
    """Return reserved pairs for the fields that the attribute string does not contain."""
    return carry_fields(message, ALWAYS_CARRIED) + _missing_time(message, minutes)


def _missing_time(message: Message, minutes: Minutes) -> list[Pair]:
    """Return a reserved pair for the event time, unless the attribute string contains the same time in this zone."""
    time = message.event_time
    return [] if time is None or time == system_fields(message.properties, minutes)[1] else carry_fields(message, ("event_time",))


def _build(message: Message, time: str | None) -> tuple[list[str], list[Pair]]:
    """Return the items of the user's pairs, and the reserved pairs that follow the marker."""
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
    user_items = [
        f"{known(name) or _user_names[name]}={value if value.isalnum() else escape_text(value)}" for name, value in properties
    ]
    return user_items, system + carry_fields(message, BUILT_CARRIED)


_user_names: BoundedCache[str, str] = BoundedCache(lambda name: escape_text(escape_user_property((name, ""))[0]))
"""Cache from the name of a user property to its escaped form in an attribute string."""
