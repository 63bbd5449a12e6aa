"""Many positions in little memory: those of the messages that a target holds of a source may be millions."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import overload

from mqbridge.message import Position


class _Run(Sequence[Position]):
    """Positions that ascend, with as many parts each."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.numbers = array("q")

    def __len__(self) -> int:
        return len(self.numbers) // self.width

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | Sequence[Position]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        begin = index % len(self) * self.width
        return tuple(self.numbers[begin : begin + self.width])


class Positions:
    """Positions of 64-bit numbers, 8 bytes for each number. Kept as they are added: best in ascending order, by and large."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        self._last: Position = ()

    def add(self, position: Position) -> None:
        """One more; it is not empty. One beyond 64 bits is nobody's, whatever an origin says, and is left out."""
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
        """As they were added."""
        for run in self._runs:
            yield from run

    @property
    def first(self) -> Position:
        """The lowest. Raises ValueError when there is none."""
        return min(run[0] for run in self._runs)

    @property
    def last(self) -> Position:
        """The highest; () when there is none."""
        return max((run[-1] for run in self._runs), default=())

    def between(self, first: Position, last: Position) -> set[Position]:
        """Those from `first` to `last`, both included."""
        found: set[Position] = set()
        for run in self._runs:
            found.update(run[bisect_left(run, first) : bisect_right(run, last)])
        return found
