"""Bytes that are cut like others that came before.

Of one producer's messages most have the same properties, with values that differ but are as long as those before: the same bytes
at the same places, but for the values. Such a message is cut by one `struct`, at less than half of what it takes to look for the
separators. A shape is tried on all bytes of its length.
"""

import struct
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

MAX_BYTES = 2048
"""One shape is remembered for each length up to here."""
PRICE, MOST_CREDIT = 64, 64 * 64
"""See `Shapes`."""


class Shape:
    """Where values begin and end: `unpack` gives bytes that have to be `fixed` at even places, and values at odd ones."""

    __slots__ = ("fixed", "unpack")

    def __init__(self, data: bytes, lengths: Sequence[int]) -> None:
        cut = struct.Struct("".join([f"{length}s" for length in lengths]))
        self.unpack = cut.unpack_from
        self.fixed = cut.unpack(data)[::2]


S = TypeVar("S")


class Shapes(Generic[S]):
    """The shapes that are remembered, `by_length` of what they fit.

    Learning one takes as long as reading several messages, and is in vain where every message has another one. So it is paid for:
    a message that was read brings one, of whatever shape, and a new shape costs PRICE.
    """

    __slots__ = ("_credit", "by_length")

    def __init__(self) -> None:
        self.by_length: dict[int, S] = {}
        self._credit = MOST_CREDIT

    def earn(self, messages: int) -> None:
        """So many messages were read."""
        self._credit = min(MOST_CREDIT, self._credit + messages)

    def learn(self, length: int, make: Callable[[], S | None]) -> None:
        """Remember the shape of bytes of this length, if they have one and it can be paid."""
        if self._credit >= PRICE and length <= MAX_BYTES:
            self._credit -= PRICE
            if (shape := make()) is not None:
                self.by_length[length] = shape
