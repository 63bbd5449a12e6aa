"""A bounded cache: a dict that is emptied when it is full.

Messages repeat either a few texts, or so many that no cache would help. Therefore there is no LRU order, and a hit costs as much
as a dict lookup. On a hot path bind `get = cache.get` once and write `get(key) or cache[key]`.
"""

from collections.abc import Callable, Sequence, Sized
from typing import Any, Generic, TypeVar

ENTRIES = 16384
LONGEST = 256
"""Maximum length of a cached key, in bytes or characters. Longer keys (tokens, sentences) seldom repeat."""

K = TypeVar("K")
V = TypeVar("V")


class BoundedCache(dict[K, V], Generic[K, V]):
    """Values by key; `make` makes a value on first use (`cache[key]`), and `keep` stores a given value.

    The cache stores up to `entries` values and is emptied before the next one. A key whose `length` exceeds `longest` is not
    stored. With `length=None` every key is stored.
    """

    __slots__ = ("_entries", "_length", "_longest", "_make")

    def __init__(
        self,
        make: Callable[[K], V] | None = None,
        *,
        entries: int = ENTRIES,
        longest: int = LONGEST,
        length: Callable[[Any], int] | None = len,
    ) -> None:
        super().__init__()
        self._make, self._entries, self._longest, self._length = make, entries, longest, length

    def __missing__(self, key: K) -> V:
        if self._make is None:
            raise KeyError(key)
        return self.keep(key, self._make(key))

    def keep(self, key: K, value: V) -> V:
        """Store a value, unless its key is too long; return the value."""
        if self._length is None or self._length(key) <= self._longest:
            if len(self) >= self._entries:
                self.clear()
            self[key] = value
        return value


def total_length(parts: Sequence[Sized]) -> int:
    """Return the total length of a key that is a tuple of texts, for `length`."""
    return sum(map(len, parts))
