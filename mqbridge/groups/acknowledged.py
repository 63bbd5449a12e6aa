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


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The state of one partition of a group, as it is stored.

    mark       position before which everything is acknowledged; the group resumes there
    confirmed  an earlier mark, which the source of the group must know by now: a source that resumes before it was moved back
    ranges     (first, last) numbers of acknowledged units behind the mark, ascending, without overlaps
    partial    number of a unit -> bits of its messages that are acknowledged, for units that are acknowledged in part
    """

    mark: Position
    confirmed: Position
    ranges: tuple[tuple[int, int], ...] = ()
    partial: Mapping[int, int] = field(default_factory=dict)

    def acknowledged_bits(self, number: int, message_count: int) -> int:
        """Return the bits of the messages of a unit behind the mark that are acknowledged; all of them if the whole unit is."""
        index = bisect_right(self.ranges, (number, 1 << 64)) - 1
        if index >= 0 and self.ranges[index][1] >= number:
            return (1 << message_count) - 1
        return self.partial.get(number, 0)

    @property
    def last(self) -> int:
        """The largest number of a unit behind the mark about which the state says something; -1 if there is none."""
        return max(self.ranges[-1][1] if self.ranges else -1, max(self.partial, default=-1))

    def behind(self, number: int) -> tuple[tuple[tuple[int, int], ...], dict[int, int]]:
        """Return the ranges and the partial units with numbers larger than this one."""
        ranges = tuple((max(first, number + 1), last) for first, last in self.ranges if last > number)
        return ranges, {unit: bits for unit, bits in self.partial.items() if unit > number}

    def encode(self) -> bytes:
        """Return the state as JSON. Bits are hexadecimal text: a unit may have any number of messages."""
        partial = [(number, f"{bits:x}") for number, bits in self.partial.items()]
        return orjson.dumps([format_position(self.mark), format_position(self.confirmed), self.ranges, partial])

    @classmethod
    def decode(cls, data: bytes) -> "Acknowledged":
        """Parse what `encode` returned. Raises ValueError for anything else."""
        try:
            mark, confirmed, ranges, partial = orjson.loads(data)
            parsed = tuple((int(first), int(last)) for first, last in ranges)
            bits = {int(number): int(text, 16) for number, text in partial}
            return cls(parse_position(mark), parse_position(confirmed), parsed, bits)
        except (TypeError, AttributeError, orjson.JSONDecodeError) as error:
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
