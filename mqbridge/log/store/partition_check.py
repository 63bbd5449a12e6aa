"""Compares the bounds of a partition with its batches."""

from collections.abc import Sequence

from mqbridge.log.store.batch_scan import ScannedBatch
from mqbridge.log.store.check_result import MAX_PROBLEMS, CheckedPartition
from mqbridge.log.store.extents import Extent
from mqbridge.log.store.jumps import Jump
from mqbridge.log.store.offset_ranges import OffsetRange, OffsetRanges, without_jumps
from mqbridge.log.store.schema import JUMP_LOST


class PartitionContents:
    """The batches of a partition that were read."""

    def __init__(self) -> None:
        self._offsets = OffsetRanges()
        """Offsets of intact messages."""
        self._messages = self._bytes = self._hidden = 0
        self._all_bytes = 0
        """Size of all batches, with the damaged ones."""
        self._problems: list[str] = []

    def add(self, batch: ScannedBatch) -> None:
        """Add a batch."""
        self._all_bytes += batch.bytes
        end = batch.base + batch.messages
        if batch.problem is not None:
            if len(self._problems) < MAX_PROBLEMS:
                self._problems.append(f"the batch of offsets {batch.base} to {end - 1} is damaged: {batch.problem}")
            return
        self._offsets.add(batch.base, end)
        self._messages += batch.messages
        self._bytes += batch.bytes
        self._hidden += batch.messages if batch.is_hidden else 0

    def compare(
        self, topic: str, number: int, before: Extent | None, after: Extent | None, jumps: Sequence[Jump]
    ) -> CheckedPartition:
        """Return what is wrong. `before` and `after` are the bounds before and after the batches were read; None: damaged."""
        ranges = self._offsets.sorted()
        first, tail = (ranges[0].begin, ranges[-1].end) if ranges else (0, 0)
        bounds = Extent(first, tail, self._all_bytes)
        result = CheckedPartition(topic, number, first, tail, self._messages, self._bytes, self._hidden, [], list(self._problems))
        if before is None or after is None:
            result.problems.append(
                "the row with its bounds is damaged or missing; they are those of its batches until it is repaired"
            )
        else:
            # Appends and the retention go on during the check.
            bounds = before._replace(first=after.first)
            result.first, result.next = bounds.first, bounds.next
            self._compare_bounds(result, ranges, before)
        result.lost = without_jumps(self._offsets.missing(bounds.first, bounds.next), jumps)
        if before is not None and before == after and not result.lost and before.bytes != self._all_bytes:
            result.problems.append(f"its size is {before.bytes} bytes, but that of its batches is {self._all_bytes}")
        result.problems += [f"several batches have the offsets {begin} to {end - 1}" for begin, end in self._offsets.overlaps()]
        result.notes += _jump_notes(jumps, bounds.first)
        return result

    def _compare_bounds(self, result: CheckedPartition, ranges: list[OffsetRange], before: Extent) -> None:
        if ranges and ranges[0].begin < before.first:
            result.problems.append(f"it begins at offset {before.first}, but it has a batch at offset {ranges[0].begin}")
        if ranges and ranges[-1].end > before.next:
            result.problems.append(f"it ends at offset {before.next}, but it has a batch up to offset {ranges[-1].end}")


def _jump_notes(jumps: Sequence[Jump], first: int) -> list[str]:
    """Return notes about offsets, behind the `first` of the partition, that no message has because of a jump."""
    return [
        f"offsets {jump.first} to {jump.next - 1} have no messages: "
        + (
            "theirs were lost with the WAL"
            if jump.kind == JUMP_LOST
            else "they were left out when a backup was restored, or after a topic was deleted"
        )
        for jump in jumps
        if jump.next > first
    ]
