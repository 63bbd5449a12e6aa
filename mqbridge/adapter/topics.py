"""What a cluster says of a topic and of its partitions."""

from dataclasses import dataclass

from mqbridge.message import Position


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as its cluster describes it; `partitions` is sorted, the index of a partition is its index in it.

    `aliases` are further spellings under which the same topic may stand in an origin; loop prevention compares all of them.
    """

    name: str
    partitions: tuple[str, ...]
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first position a partition still holds and the one that its next message will get."""

    first: Position
    next: Position


@dataclass(frozen=True, slots=True)
class Stretch:
    """Units of a partition that lie one behind the other, where a range can be counted and cut: at least one.

    Unit k begins at `first` with `step * k` added at the index `part`, and zeros behind it. The last one ends where the next
    stretch begins, or with the range. A unit is what the system counts by: mostly a message, on some a few, or none.
    """

    first: Position
    count: int
    step: int = 1
    part: int = 0

    def position(self, unit: int) -> Position:
        """Where the unit of this number begins; `count` is where a further one would."""
        if not unit:
            return self.first
        first, part = self.first, self.part
        return (*first[:part], first[part] + self.step * unit, *(0 for _ in first[part + 1 :]))
