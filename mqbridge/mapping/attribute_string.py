"""The attribute string: `key=value` pairs joined by commas, as TubeMQ's producers write it and every message may carry it.

An item without `=`, without a key or that is not UTF-8 is no pair; it stays in the string alone. A value may hold further `=`.
"""

from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.message import Pair


def read_pairs(attributes: bytes) -> tuple[Pair, ...]:
    """The pairs of an attribute string in order."""
    pairs, known = [], _pairs.get
    for item in attributes.split(b","):
        pair = known(item) or _pairs[item]
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


_pairs: BoundedCache[bytes, Pair | None] = BoundedCache(read_pair)
