"""A compact list of positions (tuples of integers): a target may have stored messages from millions of source positions."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from mqbridge.message import Position


class _Run(Sequence[Position]):
    """Ascending positions with the same number of components (`width`), stored one after the other in one array."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.numbers = array("q")
        """The components of all positions, in order."""

    def __len__(self) -> int:
        return len(self.numbers) // self.width

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | Sequence[Position]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        begin = index % len(self) * self.width
        return tuple(self.numbers[begin : begin + self.width])


class PackedPositions:
    """A list of positions in insertion order; each component takes 8 bytes."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        """All positions, in insertion order. A position not above the previous one, or of another width, begins a run: `between`
        uses binary search, for which the positions of a run must ascend."""
        self._last: Position = ()
        """The position that was added last."""

    def add(self, position: Position) -> None:
        """Append a position, which must not be empty; ignore one with a component beyond 64 bits, which no source has."""
        try:
            numbers = array("q", position)
        except OverflowError:
            return
        if not self._runs or position <= self._last or len(position) != self._runs[-1].width:
            self._runs.append(_Run(len(position)))
        self._runs[-1].numbers.extend(numbers)
        self._last = position

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def __iter__(self) -> Iterator[Position]:
        """Iterate in insertion order."""
        for run in self._runs:
            yield from run

    @property
    def lowest(self) -> Position:
        """The lowest position. Raises ValueError if there is none."""
        return min(run[0] for run in self._runs)

    @property
    def highest(self) -> Position:
        """The highest position; () if there is none."""
        return max((run[-1] for run in self._runs), default=())

    def between(self, first: Position, last: Position) -> set[Position]:
        """Return the positions from `first` to `last`, both included."""
        positions: set[Position] = set()
        for run in self._runs:
            positions.update(run[bisect_left(run, first) : bisect_right(run, last)])
        return positions
