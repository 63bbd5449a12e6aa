"""Attribute strings -> `Message`, the plain way: every string, whoever wrote it.

A string that a gateway built has the marker; to any other one a gateway may have appended pairs. What is left is the user's, and
`$msgType$` and `$msgTime$` are the system's own pairs among those.
"""

from typing import Any

from mqbridge.mapping.attribute_string import read_pairs
from mqbridge.mapping.lazy_properties import LazyMessage, is_utf8, split_properties
from mqbridge.mapping.reserved_properties import USER_PREFIX, read_carried
from mqbridge.message import MSG_TIME, MSG_TYPE, Message, Pair, Position
from mqbridge.tubemq.mapping.escapes import MARKER, OURS, is_appended, unescape
from mqbridge.tubemq.mapping.times import Minutes


class NativeMessage(LazyMessage):
    """A message as it came from a TubeMQ producer: its attribute string, which is text, says all there is besides the body."""

    __slots__ = ()

    from_attributes = True
    key = publish_time = None
    keys: tuple[str, ...] = ()
    delivery_count = 0


def read(body: bytes, attributes: bytes, position: Position, minutes: Minutes) -> Message:
    """The message of a body and an attribute string."""
    if OURS not in attributes:
        return _read_native(body, attributes, position, minutes)
    items = attributes.split(b",")
    if MARKER in items:
        properties, fields = _read_built(items, minutes, blank=not body)
    else:
        properties, fields = _read_appended(items, minutes, blank=not body)
    return Message(fields.pop("payload", body), properties, position=position, **fields)


def _read_native(body: bytes, attributes: bytes, position: Position, minutes: Minutes) -> Message:
    """Whatever the string is: items that are no pairs, values with equals signs, bytes that are no text."""
    properties = read_pairs(attributes)
    msg_type, event_time = system_fields(properties, minutes)
    if not is_utf8(attributes):
        return Message(body, properties, attributes=attributes, msg_type=msg_type, event_time=event_time, position=position)
    message = NativeMessage.__new__(NativeMessage)
    message.payload, message.attributes, message.position = body, attributes, position
    message.property_names, message.values = split_properties(properties)
    message.lengths = None
    message.msg_type, message.event_time = msg_type, event_time
    return message


def _read_built(items: list[bytes], minutes: Minutes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    at = items.index(MARKER)
    own = [_without_prefix(unescape(pair)) for pair in read_pairs(b",".join(items[:at]))]
    rest, fields = read_carried([unescape(pair) for pair in read_pairs(b",".join(items[at + 1 :]))], blank=blank)
    # What somebody else appended is the user's; the system's own pairs stand there because no property says the same.
    properties = (*own, *(pair for pair in rest if pair[0] not in {MSG_TYPE, MSG_TIME}))
    msg_type = dict(rest).get(MSG_TYPE, system_fields(properties, minutes)[0])
    return properties, {"msg_type": msg_type} | fields


def _read_appended(items: list[bytes], minutes: Minutes, *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    at = len(items)
    while at and is_appended(items[at - 1], blank=blank):
        at -= 1
    rest, fields = read_carried([unescape(pair) for pair in read_pairs(b",".join(items[at:]))], blank=blank)
    if rest:
        at, fields = len(items), {}
    attributes = b",".join(items[:at])
    properties = read_pairs(attributes)
    msg_type, event_time = system_fields(properties, minutes)
    return properties, {"attributes": attributes, "msg_type": msg_type, "event_time": event_time} | fields


def _without_prefix(pair: Pair) -> Pair:
    return (pair[0].removeprefix(USER_PREFIX), pair[1])


def system_fields(properties: tuple[Pair, ...], minutes: Minutes) -> tuple[str | None, int | None]:
    """Type and time: the first of each, as native readers take them. SDKs write them first, so the rest is seldom looked at."""
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
