"""Descriptions of topics and their partitions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqbridge.message import Position


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as its cluster describes it.

    `partitions` has the names of the partitions, sorted by number and then by broker. `aliases` are further names of the topic.
    Loop prevention looks for all of them in the origin, which says where a gateway read a message. `indexes` are the
    `Partition.index` of the partitions, in the same order; None means that they are 0, 1, 2 and so on. `read_only` are further
    partitions, with their indexes, that are known to be read by groups although nothing can be written there. `unreadable` says
    why the servers permit nobody to read the topic, and what to do; `partitions` is then empty.
    """

    name: str
    partitions: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    indexes: tuple[int, ...] | None = None
    read_only: Mapping[str, int] = field(default_factory=dict)
    unreadable: str | None = None

    @property
    def index_by_partition(self) -> dict[str, int]:
        """The `Partition.index` of each partition, by name, also of those in `read_only`."""
        indexes = range(len(self.partitions)) if self.indexes is None else self.indexes
        return {**dict(zip(self.partitions, indexes, strict=True)), **self.read_only}


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first position that a partition still holds, and the position that its next message will get.

    Some systems cannot tell the two positions of a partition that holds no message, see `is_known`. `left_out` are ranges of
    offsets that have no message, in ascending order: an embedded log that has lost messages, or was restored, has such. `last` is
    the position of the last stored message; None if the partition holds none, or if the system cannot tell.
    """

    first: Position
    next: Position
    left_out: tuple[tuple[int, int], ...] = ()
    last: Position | None = None

    def count_between(self, begin: Position, end: Position) -> int | None:
        """Return the number of messages from `begin` to `end`, negative if `end` is earlier.

        None if positions do not count messages: those of several numbers (a ledger and an entry, for example).
        """
        if not len(begin) == len(end) == 1:
            return None
        low, high = sorted((begin[0], end[0]))
        left_out = sum(max(0, min(after, high) - max(first, low)) for first, after in self.left_out)
        return (high - low - left_out) * (1 if begin <= end else -1)

    @property
    def message_count(self) -> int | None:
        """Number of messages in the partition; None if positions do not count messages."""
        return self.count_between(self.first, self.next)

    @property
    def is_known(self) -> bool:
        """False for an empty partition whose positions have several numbers: both bounds may be before deleted messages.

        A position that is a single number continues after deletions; one that names a storage segment is known only with the
        next message.
        """
        return len(self.first) == 1 or self.first < self.next


@dataclass(frozen=True, slots=True)
class UnitRange:
    """One or more consecutive units of a partition. A unit is the smallest amount that the system counts.

    A unit is one message on most systems; on others it holds several messages, or none. Unit k begins at `first` plus `step * k`
    in the position's component with index `component`; for k > 0 the components after it are 0. The last unit ends where the next
    unit range begins, or at the end of the measured range.
    """

    first: Position
    count: int
    step: int = 1
    component: int = 0

    def position(self, unit: int) -> Position:
        """Return the position at which this unit begins, or for `unit` equal to `count`, the position after the last unit."""
        if not unit:
            return self.first
        first, changed = self.first, self.component
        return (*first[:changed], first[changed] + self.step * unit, *(0 for _ in first[changed + 1 :]))
