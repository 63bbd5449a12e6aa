r"""Escaping of user properties that the property string cannot hold as they are.

An escaped property has the name `mqbridge.x.N.NAME`, with NAME and the value percent-encoded. The number N makes every name
different. These properties are escaped: those with an empty name or value, with a separator (\x01, \x02) in a text, or with a
name that RocketMQ or the gateway reserves, and all but the last of a repeated name, because RocketMQ clients read the last one.
"""

from collections.abc import Sequence
from urllib.parse import unquote

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.message import Pair
from mqbridge.rocketmq.mapping.table import ESCAPE_PREFIX, is_plain
from mqbridge.rocketmq.wire.properties import why_invalid

_ESCAPES = str.maketrans({"%": "%25", "\x01": "%01", "\x02": "%02"})
_EMPTY = "%"
"""The escaped form of an empty text; no other text has this escaped form."""


def _is_unescaped_name(name: str) -> bool:
    """Return True if the name is not reserved, not empty and without separators."""
    return is_plain(name) and why_invalid(name, "any value") is None


_unescaped_names = BoundedCache(_is_unescaped_name)
"""The results for recent names: `[name]` computes a missing one, `get(name)` returns None for it, but is faster."""


def escape(pairs: Sequence[Pair]) -> list[Pair]:
    """Escape the pairs that need it. The pairs returned have different names, and the property string can hold them."""
    cached_is_unescaped = _unescaped_names.get
    # Pairs that need escaping for their own name or value are left out. Of the others, each name has the index of its last pair.
    last_index = {
        name: index
        for index, (name, value) in enumerate(pairs)
        if value and "\x01" not in value and "\x02" not in value and (cached_is_unescaped(name) or _unescaped_names[name])
    }
    if len(last_index) == len(pairs):  # the usual case: nothing to escape
        return list(pairs)
    escaped: list[Pair] = []
    count = 0
    for index, (name, value) in enumerate(pairs):
        if last_index.get(name) == index:
            escaped.append((name, value))
        else:
            escaped.append((f"{ESCAPE_PREFIX}{count}.{_escape_text(name)}", _escape_text(value)))
            count += 1
    return escaped


def unescape(pair: Pair) -> Pair:
    """Return the original pair of an escaped pair; return any other pair unchanged."""
    name, value = pair
    if not name.startswith(ESCAPE_PREFIX):
        return pair
    number, dot, escaped = name[len(ESCAPE_PREFIX) :].partition(".")
    if not (dot and number.isascii() and number.isdecimal() and escaped):
        return pair
    return _unescape_text(escaped), _unescape_text(value)


def _escape_text(text: str) -> str:
    return text.translate(_ESCAPES) or _EMPTY


def _unescape_text(text: str) -> str:
    return "" if text == _EMPTY else unquote(text, errors="surrogateescape") if "%" in text else text
