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
