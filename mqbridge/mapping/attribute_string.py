"""The attribute string: `key=value` pairs joined by commas, as TubeMQ's producers write it and every message may carry it.

An item without `=`, without a key or that is not UTF-8 is no pair; it stays in the string alone. A value may hold further `=`.
"""

from mqbridge.mapping.bounded_cache import remember
from mqbridge.message import Pair

_pairs: dict[bytes, Pair | None] = {}


def read_pairs(attributes: bytes) -> tuple[Pair, ...]:
    """The pairs of an attribute string in order."""
    pairs = []
    for item in attributes.split(b","):
        try:
            pair = _pairs[item]
        except KeyError:
            pair = remember(_pairs, item, read_pair(item), len(item))
        if pair is not None:
            pairs.append(pair)
    return tuple(pairs)


def read_pair(item: bytes) -> Pair | None:
    """One item of an attribute string, None when it is no pair."""
    try:
        key, equals, value = item.decode().partition("=")
    except UnicodeDecodeError:
        return None
    return (key, value) if equals and key else None
