"""Attribute string <-> message, for strings that SDKs or gateways wrote.

A string written by an SDK consists of `key=value` pairs joined by commas. Its pairs become properties of the same names,
`$msgType$` and `$msgTime$` included, and the message also keeps the string, byte for byte. A gateway writes one of two forms,
both with reserved pairs (`mqbridge.…`) for the fields that TubeMQ has no pair for:

    appended    the user's string unchanged , mqbridge.… = …
    built       user pairs , mqbridge.v=1 , $msgType$=… , $msgTime$=… , mqbridge.… = …

It appends if the message has an attribute string, and this string agrees with the message's properties and type. Keys and values
of a built string are escaped (see `escapes`); the item `mqbridge.v=1` marks a built string.

Parameters: `blank` is True for a message with an empty body: only then is the reserved pair of a tombstone valid. `msg_times` is
the cache that parses `$msgTime$` values in the cluster's time zone.
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
from mqbridge.tubemq.mapping.escapes import (
    MARKER,
    MARKER_TEXT,
    RESERVED_PREFIX_BYTES,
    escape_text,
    format_item,
    is_appended,
    unescape_pair,
)
from mqbridge.tubemq.mapping.table import TABLE
from mqbridge.tubemq.mapping.times import MsgTimes
from mqbridge.tubemq.wire.attributes import PAIR_SEPARATOR, parse_pair
from mqbridge.wire.text import encode_text

ALWAYS_CARRIED = (*(field for field in TABLE.carried_fields() if field not in {"origin", "hops"}), "payload")
"""Fields that both forms write as reserved pairs, "payload" for a tombstone only; `origin_properties` writes origin and hops."""

BUILT_CARRIED = (*ALWAYS_CARRIED, "event_time", "attributes")
"""Fields that a built string carries in reserved pairs."""

_PAIRS = re.compile(r"(?:^|,)([^=,]++)=([^,]*+)")
"""Matches items that are pairs. Measured: `split` takes a tenth longer; a cache by item helps only if nearly all items repeat."""

# --- attribute string -> message --------------------------------------------------------------------------------------


class AttributesMessage(Message):
    """A message that contains only a body and the attribute string of an SDK, and fields read from that string.

    `replace` returns a plain `Message`. So the string of an AttributesMessage always agrees with its properties and type.
    """

    __slots__ = ()


def read_message(attributes: bytes, body: bytes, position: Position, msg_times: MsgTimes) -> Message:
    """Return the message with this attribute string and body, whether an SDK or a gateway wrote them."""
    if attributes.find(RESERVED_PREFIX_BYTES) < 0:  # no reserved pair: an SDK's string. `find` takes half the time of `in`
        properties = parse_pairs(attributes)
        msg_type, event_time = system_fields(properties, msg_times)
        # Positional arguments: keywords take 300 ns more.
        return AttributesMessage(body, properties, None, None, (), msg_type, attributes, event_time, None, None, 0, position)
    items, blank = attributes.split(PAIR_SEPARATOR), not body
    read = _read_built if MARKER in items else _read_appended
    properties, fields = read(items, msg_times, blank=blank)
    return Message(fields.pop("payload", body), properties, position=position, **fields)


def parse_pairs(attributes: bytes) -> tuple[Pair, ...]:
    """Return the pairs of an attribute string, in order. Items that are not pairs (see `parse_pair`) are left out."""
    try:
        text = attributes.decode()
    except UnicodeDecodeError:
        return tuple(filter(None, map(parse_pair, attributes.split(PAIR_SEPARATOR))))
    return tuple(_PAIRS.findall(text))


def _read_unreserved(attributes: bytes, msg_times: MsgTimes) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    """Return (properties, other message fields) of a string, or part of one, that has no reserved pairs of a gateway."""
    properties = parse_pairs(attributes)
    msg_type, event_time = system_fields(properties, msg_times)
    return properties, {"attributes": attributes, "msg_type": msg_type, "event_time": event_time}


def _read_built(items: list[bytes], msg_times: MsgTimes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    """Return (properties, other message fields) of a built string."""
    marker_at = items.index(MARKER)
    user_pairs = [_without_prefix(pair) for pair in _unescaped_pairs(items[:marker_at])]
    # Unknown pairs after the marker were appended by others: they are user properties. But $msgType$ and $msgTime$ are the
    # gateway's, written from message fields; a reserved pair has the exact event time.
    other_pairs, fields = read_carried(_unescaped_pairs(items[marker_at + 1 :]), blank=blank)
    properties = (*user_pairs, *(pair for pair in other_pairs if pair[0] not in {MSG_TYPE, MSG_TIME}))
    msg_type = dict(other_pairs).get(MSG_TYPE, system_fields(properties, msg_times)[0])
    return properties, {"msg_type": msg_type} | fields


def _read_appended(items: list[bytes], msg_times: MsgTimes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    """Return (properties, other message fields) of a string whose last items may be appended reserved pairs."""
    appended_from = len(items)
    while appended_from and is_appended(items[appended_from - 1], blank=blank):
        appended_from -= 1
    other_pairs, fields = read_carried(_unescaped_pairs(items[appended_from:]), blank=blank)
    if other_pairs:  # a gateway appends only pairs that carry fields, so it did not write these items: all are the user's
        appended_from, fields = len(items), {}
    properties, user_fields = _read_unreserved(PAIR_SEPARATOR.join(items[:appended_from]), msg_times)
    return properties, user_fields | fields


def _unescaped_pairs(items: list[bytes]) -> list[Pair]:
    return [unescape_pair(pair) for pair in parse_pairs(PAIR_SEPARATOR.join(items))]


def _without_prefix(pair: Pair) -> Pair:
    """Return the user's pair; `escape_user_property` gave it a prefix if its name is reserved."""
    return (pair[0].removeprefix(USER_PREFIX), pair[1])


def system_fields(properties: tuple[Pair, ...], msg_times: MsgTimes) -> tuple[str | None, int | None]:
    """Return message type and event time, each from the first pair of its name, as SDKs do.

    SDKs write these two pairs first, so the loop mostly ends early.
    """
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
    return msg_type, None if minute is None else msg_times[encode_text(minute)]


# --- message -> attribute string --------------------------------------------------------------------------------------


def write_attributes(message: Message, stamp: str | None, msg_time: str | None, msg_times: MsgTimes) -> bytes | None:
    """Return the attribute string of a message, None if it needs none.

    `msg_time` is the value of `$msgTime$` in a built string, None for no such pair. `stamp` is the origin to write, None to keep
    the message's own; a stamp that equals the message's own origin adds no hop. Raises UnicodeEncodeError for lone surrogates.
    """
    attributes = message.attributes
    if attributes is not None:
        if message.__class__ is AttributesMessage:
            return append_pairs(attributes, _missing_time(message, msg_times) + origin_properties(message, stamp))
        if _is_unchanged(message, attributes, msg_times):
            return append_pairs(attributes, _missing_fields(message, msg_times) + origin_properties(message, stamp))
    user_items, reserved = _build(message, msg_time)
    reserved += origin_properties(message, stamp)
    # The Broker refuses a message of zero bytes; if the body is empty, at least the marker is written.
    if not (user_items or reserved) and message.payload:
        return None
    return ",".join([*user_items, MARKER_TEXT, *map(format_item, reserved)]).encode()


def append_pairs(attributes: bytes, pairs: list[Pair]) -> bytes:
    """Append escaped pairs to an attribute string."""
    items = ",".join(map(format_item, pairs)).encode()
    return attributes + PAIR_SEPARATOR + items if attributes and items else attributes or items


def _is_unchanged(message: Message, attributes: bytes, msg_times: MsgTimes) -> bool:
    """Return True if the attribute string agrees with the message's properties and type, and would be read back the same.

    It does not agree if a route has edited the properties or the type. It would be read differently if it has the marker or ends
    with a pair that looks appended.
    """
    if RESERVED_PREFIX_BYTES in attributes:
        items = attributes.split(PAIR_SEPARATOR)
        if MARKER in items or is_appended(items[-1], blank=not message.payload):
            return False
    return is_string_of(message, attributes, msg_times)


def is_string_of(message: Message, attributes: bytes, msg_times: MsgTimes) -> bool:
    """Return True if the pairs of an attribute string are the message's properties, and its type that of the message."""
    pairs = parse_pairs(attributes)
    return pairs == message.properties and system_fields(pairs, msg_times)[0] == message.msg_type


def _missing_fields(message: Message, msg_times: MsgTimes) -> list[Pair]:
    """Return reserved pairs for the fields that TubeMQ has no pair for, and for the event time if `$msgTime$` differs from it."""
    return carry_fields(message, ALWAYS_CARRIED) + _missing_time(message, msg_times)


def _missing_time(message: Message, msg_times: MsgTimes) -> list[Pair]:
    """Return a reserved pair for the event time, if `$msgTime$`, read in the cluster's time zone, is another time."""
    time = message.event_time
    if time is None or time == system_fields(message.properties, msg_times)[1]:
        return []
    return carry_fields(message, ("event_time",))


def _build(message: Message, msg_time: str | None) -> tuple[list[str], list[Pair]]:
    """Return the items of the user's pairs, and the pairs that follow the marker."""
    properties, escaped_name = message.properties, _escaped_names.get
    names = dict(properties)  # only to look up which names exist
    system: list[Pair] = []
    if message.msg_type is None:
        if MSG_TYPE in names:  # a property of this name, although the message has no type
            system.append((WITHOUT, "msg_type"))
    elif MSG_TYPE not in names or message.property(MSG_TYPE) != message.msg_type:
        system.append((MSG_TYPE, message.msg_type))
    if msg_time is not None and MSG_TIME not in names:
        system.append((MSG_TIME, msg_time))
    user_items = [
        f"{escaped_name(name) or _escaped_names[name]}={value if value.isalnum() else escape_text(value)}"
        for name, value in properties
    ]
    return user_items, system + carry_fields(message, BUILT_CARRIED)


_escaped_names: BoundedCache[str, str] = BoundedCache(lambda name: escape_text(escape_user_property((name, ""))[0]))
"""Escaped names of user properties in an attribute string, by name. `[name]` computes a missing one, `get` does not."""
