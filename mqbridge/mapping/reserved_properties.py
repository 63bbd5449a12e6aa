"""Reserved properties: message fields without a native field in a system travel as properties under `mqbridge.`.

They become fields again when the message is decoded. The names are part of the published mapping (`docs/reference/mapping.md`):

    mqbridge.key, mqbridge.key.b64      routing key (text; a binary key in base64)
    mqbridge.ordering_key         base64
    mqbridge.keys                 index keys, percent-encoded, joined by commas
    mqbridge.msg_type             message type, if there is no `$msgType$` pair
    mqbridge.attributes, mqbridge.attributes.b64     TubeMQ's attribute string (base64 if it is not UTF-8)
    mqbridge.event_time, mqbridge.deliver_at         ms since the epoch
    mqbridge.null                 `1` for a tombstone
    mqbridge.without              fields that are None, although a reader would find a value in other properties; joined by commas
    mqbridge.origin               cluster|topic|partition|position of the message that this one was made from; if a writer that
                                  looks for its messages wrote it, cluster|topic|partition|writer|position
    mqbridge.hops                 number of gateways that the message passed through; written only if it is 2 or more
    mqbridge.u.NAME               a user property whose own name is reserved

`mqbridge.v` marks a gateway's messages that have none of these; RocketMQ's mapping also uses `mqbridge.empty` (an empty payload)
and `mqbridge.order` (the original order of the properties). When a message is read, a reserved name with a value that no gateway
writes is a user property.
"""

import base64
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote, unquote

from mqbridge.message import RESERVED_PREFIX, Message, Pair, next_origin
from mqbridge.wire.text import encode_text

ORIGIN = "mqbridge.origin"
HOPS = "mqbridge.hops"
ATTRIBUTES = "mqbridge.attributes"
KEY = "mqbridge.key"
KEYS = "mqbridge.keys"
TYPE = "mqbridge.msg_type"
EVENT_TIME = "mqbridge.event_time"
WITHOUT = "mqbridge.without"
NULL_PAYLOAD: Pair = ("mqbridge.null", "1")
GATEWAY_MARKER: Pair = ("mqbridge.v", "1")
"""Marks a message as written by a gateway, if it has no other reserved property."""
USER_PREFIX = "mqbridge.u."

_TEXT_OR_BYTES = ("key", "key.b64", "ordering_key", "keys", "msg_type", "attributes", "attributes.b64")
CARRIED_NAMES = frozenset(
    RESERVED_PREFIX + name for name in (*_TEXT_OR_BYTES, "event_time", "deliver_at", "null", "without", "origin", "hops")
)
"""The reserved names that carry fields; `read_carried` reads them."""
RESERVED_NAMES = CARRIED_NAMES | {RESERVED_PREFIX + name for name in ("v", "empty", "order")}
"""The reserved names. User properties with one of these names are escaped when they are written."""
_PREFIXED = {name: RESERVED_PREFIX + name for name in Message.__slots__}
"""Name of the reserved property, by message field."""
_INT64 = range(-(1 << 63), 1 << 63)
WITHOUT_FIELDS = frozenset({"key", "msg_type"})
"""The fields that `mqbridge.without` may list."""


def carry_fields(message: Message, fields: Iterable[str]) -> list[Pair]:
    """Return the pairs that carry these fields. Fields that are None or () have no pair.

    The payload is the exception: it has a pair only if it is None.
    """
    pairs: list[Pair] = []
    for field in fields:
        value = getattr(message, field)
        if value is None:
            if field == "payload":
                pairs.append(NULL_PAYLOAD)
        elif value.__class__ is str:
            pairs.append((_PREFIXED[field], value))
        elif value.__class__ is int:
            pairs.append((_PREFIXED[field], str(value)))
        elif value != () and field != "payload":
            pairs.append(_encode_field(field, value))
    return pairs


def origin_properties(message: Message, stamp: str | None) -> list[Pair]:
    """Return the pairs of origin and hops; `stamp` is the new origin, or None to keep the message's origin and hops."""
    origin, hops = next_origin(message, stamp)
    if origin is None:
        return []
    return [(ORIGIN, origin), (HOPS, str(hops))] if hops > 1 else [(ORIGIN, origin)]


def _encode_field(field: str, value: Any) -> Pair:
    """Return the pair of a field whose value is not exactly a `str` or an `int`.

    Index keys are joined. Bytes are encoded in base64, and except for an ordering key the name then ends with `.b64`; attributes
    that are UTF-8 stay text.
    """
    name = _PREFIXED[field]
    if field == "attributes":
        try:
            return name, value.decode()
        except UnicodeDecodeError:
            pass
    elif field == "keys":
        return name, join_keys(value)
    if not isinstance(value, bytes):  # an instance of a subclass of str or int
        return name, str(value)
    return name if field == "ordering_key" else name + ".b64", base64.b64encode(value).decode()


def join_keys(keys: Sequence[str]) -> str:
    """Make the value of `mqbridge.keys`."""
    return ",".join(map(_quote_key, keys))


def _quote_key(key: str) -> str:
    """Percent-encode an index key, so that it contains no comma; the first test is a fast path for keys that need no encoding."""
    return key if key.isascii() and key.replace("-", "_").isidentifier() else quote(key, safe=" ", errors="surrogateescape")


def escape_user_property(pair: Pair) -> Pair:
    """Return the user's pair, renamed if its name is reserved."""
    key, value = pair
    return (USER_PREFIX + key, value) if key in RESERVED_NAMES or key.startswith(USER_PREFIX) else pair


def is_carried(pair: Pair, *, blank: bool) -> bool:
    """Return True if `read_carried` reads the pair as a field; `blank` is as in `read_carried`.

    True for every pair `mqbridge.hops`, without a check: it is a field only together with an origin, which is in another pair.
    """
    return pair[0] in CARRIED_NAMES and (pair[0] == HOPS or bool(read_carried((pair,), blank=blank)[1]))


def read_carried(pairs: Iterable[Pair], *, blank: bool) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    """Divide pairs into the user's properties, with their own names, and the carried fields of the message.

    `blank` is True if the stored payload is what the system stores for a tombstone; only then `mqbridge.null` is read as a field.
    The fields of a tombstone contain `payload`, those of a message with an origin contain `hops` (1 if there is no pair for it).
    Without an origin `mqbridge.hops` is a user property.
    """
    user_properties: list[Pair] = []
    fields: dict[str, Any] = {}
    for pair in pairs:
        key, value = pair
        if not key.startswith(RESERVED_PREFIX):
            user_properties.append(pair)
        elif key.startswith(USER_PREFIX):
            user_properties.append((key[len(USER_PREFIX) :], value))
        elif key not in CARRIED_NAMES or (key == NULL_PAYLOAD[0] and not blank):
            user_properties.append(pair)
        else:
            try:
                fields.update(_decode_field(key[len(RESERVED_PREFIX) :], value))
            except ValueError:
                user_properties.append(pair)
    if "origin" in fields:
        fields.setdefault("hops", 1)
    elif (hops := fields.pop("hops", None)) is not None:
        user_properties.append((HOPS, str(hops)))
    return tuple(user_properties), fields


def _decode_field(name: str, text: str) -> dict[str, Any]:
    """Return the message fields of a reserved property, by name; `without` gives None for each field that it lists.

    Raises ValueError if no gateway writes this value.
    """
    match name:
        case "keys":
            return {name: tuple(unquote(key, errors="surrogateescape") for key in text.split(","))}
        case "ordering_key":
            return {name: base64.b64decode(text, validate=True)}
        case "key.b64" | "attributes.b64":
            return {name.removesuffix(".b64"): base64.b64decode(text, validate=True)}
        case "attributes":
            return {name: encode_text(text)}
        case "event_time" | "deliver_at":
            return {name: read_number(text)}
        case "hops":
            if not 2 <= (hops := read_number(text)) < _INT64[-1]:  # below the maximum, because the next gateway writes one more
                raise ValueError(text)
            return {name: hops}
        case "null":
            if text != NULL_PAYLOAD[1]:
                raise ValueError(text)
            return {"payload": None}
        case "without":
            absent = text.split(",")
            if not WITHOUT_FIELDS.issuperset(absent):
                raise ValueError(text)
            return dict.fromkeys(absent)
        case _:
            return {name: text}


def read_number(text: str) -> int:
    """Parse a 64-bit integer in the form that `str` writes. Raises ValueError for any other text, also if `int` accepts it."""
    value = int(text)
    if str(value) != text or value not in _INT64:
        raise ValueError(text)
    return value
