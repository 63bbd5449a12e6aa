r"""Escapes properties that the property string cannot hold: `mqbridge.x.N.NAME`, with name and value percent-encoded.

Escaped are repeated names, empty names and values, texts with a separator (\x01, \x02), and user properties with a system name.
N distinguishes repeated names. The last pair of a repeated name stays plain, because RocketMQ clients read the last one.
"""

from collections.abc import Sequence
from urllib.parse import unquote

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.message import Pair
from mqbridge.rocketmq.mapping.table import ESCAPE_PREFIX, is_plain
from mqbridge.rocketmq.wire.properties import why_invalid

_ESCAPES = str.maketrans({"%": "%25", "\x01": "%01", "\x02": "%02"})
_EMPTY = "%"
"""Stands for an empty text; no other escaped text is a lone percent sign."""


def _is_plain(name: str) -> bool:
    return is_plain(name) and why_invalid(name, "value") is None


_plain_names = BoundedCache(_is_plain)
"""By name: True if the name needs no escaping."""


def escape(pairs: Sequence[Pair]) -> list[Pair]:
    """Return pairs that the property string can hold, each with a different name."""
    is_plain_name = _plain_names.get
    last = {
        name: index
        for index, (name, value) in enumerate(pairs)
        if value and "\x01" not in value and "\x02" not in value and (is_plain_name(name) or _plain_names[name])
    }
    if len(last) == len(pairs):  # the usual case: nothing to escape
        return list(pairs)
    escaped: list[Pair] = []
    count = 0
    for index, (name, value) in enumerate(pairs):
        if last.get(name) == index:
            escaped.append((name, value))
        else:
            escaped.append((f"{ESCAPE_PREFIX}{count}.{_escaped(name)}", _escaped(value)))
            count += 1
    return escaped


def unescape(pair: Pair) -> Pair:
    """Return the original pair; a pair that is not escaped stays unchanged."""
    name, value = pair
    if not name.startswith(ESCAPE_PREFIX):
        return pair
    number, dot, escaped = name[len(ESCAPE_PREFIX) :].partition(".")
    if not (dot and number.isascii() and number.isdecimal() and escaped):
        return pair
    return _unescaped(escaped), _unescaped(value)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES) or _EMPTY


def _unescaped(text: str) -> str:
    return "" if text == _EMPTY else unquote(text) if "%" in text else text
