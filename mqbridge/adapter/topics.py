"""Descriptions of topics and their partitions."""

from dataclasses import dataclass

from mqbridge.message import Position


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as its cluster describes it; `partitions` is sorted, and `Partition.index` is an index in it.

    `aliases` are further names of the same topic that an origin may contain; loop prevention compares all of them.
    """

    name: str
    partitions: tuple[str, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first position that a partition still holds, and the position that its next message will get."""

    first: Position
    next: Position


@dataclass(frozen=True, slots=True)
class UnitRange:
    """One or more consecutive units of a partition; ranges are counted in units and split between them.

    Unit k begins at `first` plus `step * k` in the component with the index `component`; later components are 0. The last unit
    ends where the next unit range begins, or with the range. A unit is what the system counts: mostly one message, on some
    systems a few, or none.
    """

    first: Position
    count: int
    step: int = 1
    component: int = 0

    def position(self, unit: int) -> Position:
        """Return where this unit begins; `count` gives where a further unit would begin."""
        if not unit:
            return self.first
        first, at = self.first, self.component
        return (*first[:at], first[at] + self.step * unit, *(0 for _ in first[at + 1 :]))
