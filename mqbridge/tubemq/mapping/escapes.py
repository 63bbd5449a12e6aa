"""Escapes in the attribute strings that a gateway writes.

Keys and values are percent-encoded where they hold `%`, `,` or `=`, because native readers split on these, and where they are
blank, because native readers fail on that.
"""

from urllib.parse import quote, unquote

from mqbridge.mapping.reserved_properties import CARRIED_NAMES, GATEWAY_MARKER, is_carried
from mqbridge.message import MSG_TIME, MSG_TYPE, RESERVED_PREFIX, Pair
from mqbridge.tubemq.wire.attributes import read_pair

OURS = RESERVED_PREFIX.encode()
MARKER_TEXT = f"{GATEWAY_MARKER[0]}={GATEWAY_MARKER[1]}"
MARKER = MARKER_TEXT.encode()
"""The item that says that the string was built here."""

_ESCAPES = str.maketrans({"%": "%25", ",": "%2C", "=": "%3D"})
_PLAIN_KEYS = CARRIED_NAMES | {GATEWAY_MARKER[0], MSG_TYPE, MSG_TIME}


def escape(pair: Pair) -> str:
    """The item of a pair."""
    key, value = pair
    return f"{key if key in _PLAIN_KEYS else escape_text(key)}={value if value.isalnum() else escape_text(value)}"


def escape_text(text: str) -> str:
    """A key or a value as it is written."""
    if "," in text or "=" in text or "%" in text:
        return text.translate(_ESCAPES)
    # Java readers fail on blank keys and values; a lone percent sign stands for nothing at all.
    return quote(text) or "%" if not text or text.isspace() else text


def unescape(pair: Pair) -> Pair:
    """The pair that an item of a built string stands for."""
    key, value = ("" if part == "%" else unquote(part) if "%" in part else part for part in pair)
    return key, value


def is_appended(item: bytes, *, blank: bool) -> bool:
    """Whether an item is what a gateway appends to a string that it found."""
    return OURS in item and (pair := read_pair(item)) is not None and is_carried(unescape(pair), blank=blank)
