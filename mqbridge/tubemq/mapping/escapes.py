"""Escapes in the attribute strings that a gateway writes.

`%`, `,` and `=` in keys and values are percent-encoded, because SDKs split the string at commas and equals signs. Blank keys and
values are encoded, too, because SDKs fail on them.
"""

from urllib.parse import quote, unquote

from mqbridge.mapping.reserved_properties import CARRIED_NAMES, GATEWAY_MARKER, is_carried
from mqbridge.message import MSG_TIME, MSG_TYPE, RESERVED_PREFIX, Pair
from mqbridge.tubemq.wire.attributes import parse_pair

RESERVED_PREFIX_BYTES = RESERVED_PREFIX.encode()
MARKER_TEXT = f"{GATEWAY_MARKER[0]}={GATEWAY_MARKER[1]}"
MARKER = MARKER_TEXT.encode()
"""The item that marks an attribute string as built by a gateway."""

_ESCAPES = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D"})
_PLAIN_KEYS = CARRIED_NAMES | {GATEWAY_MARKER[0], MSG_TYPE, MSG_TIME}


def escape(pair: Pair) -> str:
    """Return the item for a pair in an attribute string: `key=value`, escaped."""
    key, value = pair
    return f"{key if key in _PLAIN_KEYS else escape_text(key)}={value if value.isalnum() else escape_text(value)}"


def escape_text(text: str) -> str:
    """Return a key or a value as it is written in an attribute string."""
    if "," in text or "=" in text or "%" in text:
        return text.translate(_ESCAPES)
    # Java readers fail on blank keys and values. A single percent sign encodes the empty text.
    return quote(text) or "%" if not text or text.isspace() else text


def unescape(pair: Pair) -> Pair:
    """Return the original pair for an escaped pair of a built string."""
    key, value = ("" if part == "%" else unquote(part) if "%" in part else part for part in pair)
    return key, value


def is_appended(item: bytes, *, blank: bool) -> bool:
    """Return True for an item that a gateway appended to a string that it did not build."""
    return RESERVED_PREFIX_BYTES in item and (pair := parse_pair(item)) is not None and is_carried(unescape(pair), blank=blank)
