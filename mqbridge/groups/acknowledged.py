"""What a group has acknowledged of one partition: everything before a mark, and single units behind it.

A unit is known by its number, that of its first message (see `mqbridge.adapter.numbering`). Numbers of consecutive units need not
be consecutive, so a range of acknowledged units is a pair of the numbers of its first and last unit: every unit in between is
acknowledged, too. This holds because stored units never change, and no unit is stored between two others later.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from mqbridge.message import Position, format_position, parse_position

MAX_STATE_BYTES = 4 << 20
"""Maximum size of an encoded state. 10,000 isolated units take 0.4 MB."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The state of one partition of a group, as it is stored.

    mark     position before which everything is acknowledged; the group resumes there
    ranges   (first, last) numbers of acknowledged units behind the mark, ascending, without overlaps
    partial  number of a unit -> bits of its messages that are acknowledged, for units that are acknowledged in part
    """

    mark: Position
    ranges: tuple[tuple[int, int], ...] = ()
    partial: Mapping[int, int] = field(default_factory=dict)

    def acknowledged_bits(self, number: int, message_count: int) -> int:
        """Return the bits of the messages of a unit that are acknowledged; all of them if the whole unit is."""
        index = bisect_right(self.ranges, (number, 1 << 64)) - 1
        if index >= 0 and self.ranges[index][1] >= number:
            return (1 << message_count) - 1
        return self.partial.get(number, 0)

    @property
    def last(self) -> int:
        """The largest number of a unit about which the state says something; -1 if there is none."""
        return max(self.ranges[-1][1] if self.ranges else -1, max(self.partial, default=-1))

    def encode(self) -> bytes:
        """Return the state as JSON."""
        return orjson.dumps([format_position(self.mark), self.ranges, list(self.partial.items())])

    @classmethod
    def decode(cls, data: bytes) -> "Acknowledged":
        """Parse what `encode` returned. Raises ValueError for anything else."""
        try:
            mark, ranges, partial = orjson.loads(data)
            return cls(
                parse_position(mark),
                tuple((int(first), int(last)) for first, last in ranges),
                {int(k): int(v) for k, v in partial},
            )
        except (TypeError, orjson.JSONDecodeError) as error:
            raise ValueError(f"not the state of a group: {error}") from error


def ranges_of(units: Iterable[tuple[int, bool]]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of acknowledged units among consecutive `units`: pairs of a number and whether it is acknowledged."""
    ranges: list[tuple[int, int]] = []
    first = last = -1
    for number, is_acknowledged in units:
        if is_acknowledged:
            first, last = (number if first < 0 else first), number
        elif first >= 0:
            ranges.append((first, last))
            first = -1
    if first >= 0:
        ranges.append((first, last))
    return tuple(ranges)
