"""A bounded cache: a dict that is emptied when it is full.

The texts in messages are either few and repeated, or so many that no cache helps. So the cache keeps no LRU order, and a hit
costs as much as a dict lookup. On a hot path bind `get = cache.get` once and write `get(key) or cache[key]`
(a stored value that is false is then looked up twice).
"""

from collections.abc import Callable, Sequence, Sized
from typing import Any, Generic, TypeVar

MAX_ENTRIES = 16384
"""Default of `max_entries`: with keys of MAX_KEY_LENGTH the keys of a cache take a few megabytes."""
MAX_KEY_LENGTH = 256
"""Default of `max_length`, in bytes or characters. Longer keys (tokens, sentences) seldom repeat."""

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V], Generic[K, V]):
    """Values by key; `make` makes a value on first use (`cache[key]`), and `keep` stores a given value.

    Without `make`, `cache[key]` raises KeyError for a key that is not stored.

    The cache stores up to `max_entries` values and is emptied before the next one. A key whose `length` exceeds `max_length` is
    not stored. With `length=None` every key is stored.
    """

    __slots__ = ("_length", "_make", "_max_entries", "_max_length")

    def __init__(
        self,
        make: Callable[[K], V] | None = None,
        *,
        max_entries: int = MAX_ENTRIES,
        max_length: int = MAX_KEY_LENGTH,
        length: Callable[[Any], int] | None = len,
    ) -> None:
        super().__init__()
        self._make, self._max_entries = make, max_entries
        self._max_length, self._length = max_length, length

    def __missing__(self, key: K) -> V:
        if self._make is None:
            raise KeyError(key)
        return self.keep(key, self._make(key))

    def keep(self, key: K, value: V) -> V:
        """Store a value, unless its key is too long; return the value."""
        if self._length is None or self._length(key) <= self._max_length:
            if len(self) >= self._max_entries:
                self.clear()
            self[key] = value
        return value


def total_length(parts: Sequence[Sized]) -> int:
    """Return the total length of a key that is a tuple of texts; the `length` of a cache with such keys."""
    return sum(map(len, parts))
