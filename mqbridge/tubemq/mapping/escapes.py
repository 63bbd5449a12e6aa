"""Escapes in the attribute strings of TubeMQ messages that mqbridge writes.

`%`, `,` and `=` in keys and values are percent-encoded, because SDKs split the string at commas and equals signs. Keys and values
that are empty or only white space are encoded, too, because Java SDKs fail on them. So are bytes that are not UTF-8.
"""

from urllib.parse import quote, unquote

from mqbridge.mapping.reserved_properties import CARRIED_NAMES, GATEWAY_MARKER, is_carried
from mqbridge.message import MSG_TIME, MSG_TYPE, RESERVED_PREFIX, Pair
from mqbridge.tubemq.wire.attributes import parse_pair
from mqbridge.wire.text import percent_encode_raw

RESERVED_PREFIX_BYTES = RESERVED_PREFIX.encode()
MARKER_TEXT = f"{GATEWAY_MARKER[0]}={GATEWAY_MARKER[1]}"
MARKER = MARKER_TEXT.encode()
"""The item that marks an attribute string as built by mqbridge."""

_ESCAPES = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D"})
_PLAIN_KEYS = CARRIED_NAMES | {GATEWAY_MARKER[0], MSG_TYPE, MSG_TIME}
"""Keys of the gateway, which contain nothing to escape."""


def format_item(pair: Pair) -> str:
    """Return the item for a pair in an attribute string: `key=value`, both escaped. Letters and digits need no escape."""
    key, value = pair
    return f"{key if key in _PLAIN_KEYS else escape_text(key)}={value if value.isalnum() else escape_text(value)}"


def escape_text(text: str) -> str:
    """Return a key or a value as it is written in an attribute string. The empty text is written as a single percent sign."""
    if "," in text or "=" in text or "%" in text:
        return percent_encode_raw(text.translate(_ESCAPES))
    if not text:
        return "%"
    return quote(text) if text.isspace() else percent_encode_raw(text)


def unescape_pair(pair: Pair) -> Pair:
    """Return the original pair for an escaped pair of an attribute string."""
    key, value = ("" if part == "%" else unquote(part, errors="surrogateescape") if "%" in part else part for part in pair)
    return key, value


def is_appended(item: bytes, *, blank: bool) -> bool:
    """Return True for an item that mqbridge appended to a user's attribute string: a reserved pair that carries a field.

    `blank`: the message has an empty body. Only then `mqbridge.null`, the mark of a tombstone, counts.
    """
    if RESERVED_PREFIX_BYTES not in item:
        return False
    pair = parse_pair(item)
    return pair is not None and is_carried(unescape_pair(pair), blank=blank)
