"""What a target cannot say natively travels as properties under `mqbridge.` and becomes native again where it can.

Shared by every system's mapping. The names are part of the published mapping (`docs/mapping.md`):

    mqbridge.key  .key.b64        routing key (text, or a binary one in base64)
    mqbridge.ordering_key         base64
    mqbridge.keys                 index keys, percent-encoded, joined by commas
    mqbridge.msg_type             message type where no `$msgType$` pair says it
    mqbridge.attributes  .b64     TubeMQ's attribute string (base64 when it is not UTF-8)
    mqbridge.event_time  mqbridge.deliver_at      ms since the epoch
    mqbridge.null                 `1` for a tombstone
    mqbridge.origin               cluster|topic|partition|position of the message that this one was made from
    mqbridge.u.NAME               a user's property whose own name is one of these
"""

import base64
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from mqbridge.message import RESERVED_PREFIX, Message, Pair

ORIGIN = "mqbridge.origin"
ATTRIBUTES = "mqbridge.attributes"
EVENT_TIME = "mqbridge.event_time"
USER_PREFIX = "mqbridge.u."

_NAMES = ("key", "key.b64", "ordering_key", "keys", "msg_type", "attributes", "attributes.b64")
CARRIED_KEYS = frozenset(RESERVED_PREFIX + name for name in (*_NAMES, "event_time", "deliver_at", "null", "origin"))


def carry(message: Message, fields: Iterable[str]) -> list[Pair]:
    """The pairs that carry these fields of the message; fields without a value give none."""
    pairs: list[Pair] = []
    for field in fields:
        if field == "null":
            if message.payload is None:
                pairs.append((RESERVED_PREFIX + "null", "1"))
            continue
        value = getattr(message, field)
        if value is not None and value != ():
            name, text = _text(field, value)
            pairs.append((RESERVED_PREFIX + name, text))
    return pairs


def _text(field: str, value: Any) -> Pair:
    if field == "keys":
        return field, ",".join(quote(key, safe=" ") for key in value)
    if field == "ordering_key":
        return field, base64.b64encode(value).decode()
    if isinstance(value, bytes):
        if field == "attributes":
            try:
                return field, value.decode()
            except UnicodeDecodeError:
                pass
        return field + ".b64", base64.b64encode(value).decode()
    return field, str(value)


def escape_user(pair: Pair) -> Pair:
    """A user's pair under a name that cannot be taken for one of ours."""
    key, value = pair
    return (USER_PREFIX + key, value) if key in CARRIED_KEYS or key.startswith(USER_PREFIX) else pair


def uncarry(pairs: Iterable[Pair]) -> tuple[tuple[Pair, ...], dict[str, Any]]:
    """Divide pairs into the user's own and the fields that were carried. A carried value that cannot be read stays a property."""
    own: list[Pair] = []
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key.startswith(USER_PREFIX):
            own.append((key[len(USER_PREFIX) :], value))
        elif key in CARRIED_KEYS:
            try:
                name, read = _read(key[len(RESERVED_PREFIX) :], value)
            except ValueError:
                own.append((key, value))
            else:
                fields[name] = read
        else:
            own.append((key, value))
    return tuple(own), fields


def _read(name: str, text: str) -> tuple[str, Any]:
    match name:
        case "keys":
            return name, tuple(unquote(key) for key in text.split(","))
        case "ordering_key":
            return name, base64.b64decode(text, validate=True)
        case "key.b64" | "attributes.b64":
            return name.removesuffix(".b64"), base64.b64decode(text, validate=True)
        case "attributes":
            return name, text.encode()
        case "event_time" | "deliver_at":
            return name, int(text)
        case _:
            return name, text
