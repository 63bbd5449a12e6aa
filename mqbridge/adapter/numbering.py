"""Positions as numbers, for protocols whose clients know only numbers.

Numbers are ordered as positions are, lie between 0 and 2^63 - 1, and are the same at every gateway; nothing is stored for them.
"""

from typing import Protocol

from mqbridge.errors import ClusterError
from mqbridge.mapping.sequences import position_of_sequence, sequence_of
from mqbridge.message import Position


class Numbering(Protocol):
    """How the positions of a system become numbers, and back."""

    dense: bool
    """True if numbers count messages: the next message of a partition has the next number, except where messages are missing."""

    def number(self, position: Position) -> int:
        """Return the number of a position. Raises ValueError if it has none."""

    def position(self, number: int) -> Position:
        """Return the position with this number. Raises ValueError for a number that no position has."""


class OffsetNumbering:
    """The number of a position (offset,) is its offset."""

    dense = True

    def number(self, position: Position) -> int:
        """Return the offset."""
        if len(position) != 1 or not 0 <= position[0] < 1 << 63:
            raise ValueError(f"{position} is not the position of an offset")
        return position[0]

    def position(self, number: int) -> Position:
        """Return the position of the offset."""
        if not 0 <= number < 1 << 63:
            raise ValueError(f"{number} is not an offset: offsets go from 0 to {(1 << 63) - 1}")
        return (number,)


class PackedNumbering:
    """The number of a position is its components, packed into 63 bits (see `mqbridge.mapping.sequences`)."""

    dense = False

    def __init__(self, components: int, begin: Position | None = None) -> None:
        """`components` is the number of components that positions of the system have.

        `begin` is the position before all messages of a partition that the system gives for an empty one; its first component
        is negative, and its number is 0. None if the system has no such position.
        """
        self._components, self._begin = components, begin

    def number(self, position: Position) -> int:
        """Return the packed position."""
        if len(position) != self._components:
            raise ValueError(f"{position} is not a position of {self._components} components")
        if position[0] < 0 and self._begin is not None:
            return 0
        try:
            return sequence_of(position)
        except ClusterError as error:
            raise ValueError(str(error)) from error

    def position(self, number: int) -> Position:
        """Return the position of a packed number."""
        if number == 0 and self._begin is not None:
            return self._begin
        position = position_of_sequence(number) if 0 <= number < 1 << 63 else ()
        if len(position) != self._components:
            raise ValueError(f"{number} is not the number of a position of {self._components} components")
        return position
