r"""Properties that the property string cannot hold as they are: `mqbridge.x.N.NAME`, with name and value percent-encoded.

These are repeats, empty names and values, separators (\x01, \x02), and a user's property under one of the system's names. N tells
repeats apart. Of pairs with one name the last is the plain one, as it is what native readers find.
"""

from collections.abc import Sequence
from urllib.parse import unquote

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.message import Pair
from mqbridge.rocketmq.mapping.table import ESCAPE_PREFIX, is_plain
from mqbridge.rocketmq.wire.properties import fault

_ESCAPES = str.maketrans({"%": "%25", "\x01": "%01", "\x02": "%02"})
_NOTHING = "%"
"""Stands for an empty text; what is escaped otherwise never is a lone percent sign."""


def _is_plain(name: str) -> bool:
    return is_plain(name) and fault(name, "value") is None


_plain_names = BoundedCache(_is_plain)
"""Whether a property of this name can be written as it is, where its value can."""


def escape(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs as the property string can hold them, each under a name of its own."""
    is_plain_name = _plain_names.get
    last = {
        name: index
        for index, (name, value) in enumerate(pairs)
        if value and "\x01" not in value and "\x02" not in value and (is_plain_name(name) or _plain_names[name])
    }
    if len(last) == len(pairs):  # as usual
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
    """The pair as it was; one that is not escaped is itself."""
    name, value = pair
    if not name.startswith(ESCAPE_PREFIX):
        return pair
    number, dot, escaped = name[len(ESCAPE_PREFIX) :].partition(".")
    if not (dot and number.isascii() and number.isdecimal() and escaped):
        return pair
    return _unescaped(escaped), _unescaped(value)


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES) or _NOTHING


def _unescaped(text: str) -> str:
    return "" if text == _NOTHING else unquote(text) if "%" in text else text
