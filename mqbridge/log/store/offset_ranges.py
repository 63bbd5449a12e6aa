"""Sets of offsets, stored as ranges: which messages of a partition there are, and which are missing."""

from collections.abc import Iterable
from typing import NamedTuple

from mqbridge.log.store.jumps import Jump


class OffsetRange(NamedTuple):
    """Offsets from `begin` to before `end`."""

    begin: int
    end: int


class OffsetRanges:
    """A set of offsets. Adjacent ranges become one, so a partition without gaps has one range, in whatever order it is added."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        """End of each range by its begin."""
        self._begins: dict[int, int] = {}
        """Begin of each range by its end."""

    def add(self, begin: int, end: int) -> None:
        """Add the offsets of one batch."""
        if (before := self._begins.pop(begin, None)) is not None:
            begin = before
        if (after := self._ends.pop(end, None)) is not None:
            end = after
        self._ends[begin], self._begins[end] = end, begin

    def sorted(self) -> list[OffsetRange]:
        """Return the ranges in ascending order; they overlap if the batches do."""
        return [OffsetRange(begin, end) for begin, end in sorted(self._ends.items())]

    def overlaps(self) -> list[OffsetRange]:
        """Return ranges of offsets that more than one batch has."""
        found, reached = [], 0
        for begin, end in self.sorted():
            if begin < reached:
                found.append(OffsetRange(begin, min(reached, end)))
            reached = max(reached, end)
        return found

    def missing(self, begin: int, end: int) -> list[OffsetRange]:
        """Return the ranges between these offsets that are not in the set."""
        found = []
        for known_begin, known_end in self.sorted():
            if known_begin >= end:
                break
            if known_begin > begin:
                found.append(OffsetRange(begin, known_begin))
            begin = max(begin, known_end)
        if begin < end:
            found.append(OffsetRange(begin, end))
        return found


def without_jumps(missing: list[OffsetRange], jumps: Iterable[Jump]) -> list[OffsetRange]:
    """Return the ranges of missing offsets without those that the partition has jumped over."""
    for first, after, _ in jumps:
        parts = [part for each in missing for part in ((each.begin, min(each.end, first)), (max(each.begin, after), each.end))]
        missing = [OffsetRange(*part) for part in parts if part[0] < part[1]]
    return missing
