"""Parse templates: byte strings that split at the same offsets as an earlier one.

Most messages of one producer have the same properties, with values of the same lengths: the same bytes at the same offsets, but
for the values. One `struct` splits such a string in less than half of the time that a search for separators takes. A template is
tried on every string of its length.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

MAX_BYTES = 2048
"""One template is kept for each length up to this."""
PRICE, MAX_CREDIT = 64, 64 * 64
"""In messages, see `ParseTemplates`."""


class ParseTemplate:
    """Fixed bytes and values in turn: `unpack` gives bytes that must equal `fixed` at even indexes, and values at odd ones."""

    __slots__ = ("fixed", "unpack")

    def __init__(self, data: bytes, lengths: Sequence[int]) -> None:
        splitter = struct.Struct("".join([f"{length}s" for length in lengths]))
        self.unpack = splitter.unpack_from
        self.fixed = splitter.unpack(data)[::2]


T = TypeVar("T")


class ParseTemplates(Generic[T]):
    """The templates in use, `by_length` of the strings that they fit.

    Making a template takes as long as reading several messages, and is useless where no two messages are alike. So templates are
    paid for: each message that was read earns one credit, and a new template costs PRICE. Who reads messages adds to `read`.
    """

    __slots__ = ("_spent", "by_length", "read")

    def __init__(self) -> None:
        self.by_length: dict[int, T] = {}
        self.read, self._spent = MAX_CREDIT, 0

    def learn(self, length: int, make: Callable[[], T | None]) -> None:
        """Make the template of strings of this length if the credit suffices; `make` gives None for a string without one."""
        self._spent = max(self._spent, self.read - MAX_CREDIT)
        if self.read - self._spent >= PRICE and length <= MAX_BYTES:
            self._spent += PRICE
            if (template := make()) is not None:
                self.by_length[length] = template
