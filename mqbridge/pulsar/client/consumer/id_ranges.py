"""A set of entry ids that are added in ascending order, stored as ranges of consecutive ids."""

from collections.abc import Iterator

from mqbridge.pulsar.wire.ids import EntryId

MAX_RANGES = 10_000
"""Maximum number of ranges; further ids are not added. A broker stores as many ranges of acknowledged entries by default
(managedLedgerMaxUnackedRangesToPersist)."""

MAX_IDS = 200_000
"""Maximum number of ids; further ids are not added. To acknowledge as many one by one takes the event loop half a second."""


class IdRanges:
    """Ascending entry ids. An id up to the last one is not added, because it was added before, or must be added in order."""

    __slots__ = ("_count", "_ranges")

    def __init__(self) -> None:
        self._count = 0
        """Number of ids."""
        self._ranges: list[tuple[int, int, int]] = []
        """(ledger, first entry, last entry), in ascending order."""

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def __iter__(self) -> Iterator[EntryId]:
        for ledger, first, last in self._ranges:
            for entry in range(first, last + 1):
                yield ledger, entry

    def add(self, entry_id: EntryId) -> None:
        """Add an id after all others."""
        ledger, entry = entry_id
        last_ledger, first, last = self._ranges[-1] if self._ranges else (-1, 0, -1)
        if entry_id <= (last_ledger, last) or self._count == MAX_IDS:
            return
        if entry_id == (last_ledger, last + 1):
            self._ranges[-1] = ledger, first, entry
        elif len(self._ranges) < MAX_RANGES:
            self._ranges.append((ledger, entry, entry))
        else:
            return
        self._count += 1

    def discard_up_to(self, entry_id: EntryId) -> None:
        """Remove the ids up to this one."""
        ledger, entry = entry_id
        cut = ((each, max(first, entry + 1) if each == ledger else first, last) for each, first, last in self._ranges)
        self._keep([(each, first, last) for each, first, last in cut if each >= ledger and first <= last])

    def discard_after(self, entry_id: EntryId) -> None:
        """Remove the ids after this one."""
        ledger, entry = entry_id
        cut = ((each, first, min(last, entry) if each == ledger else last) for each, first, last in self._ranges)
        self._keep([(each, first, last) for each, first, last in cut if each <= ledger and first <= last])

    def _keep(self, ranges: list[tuple[int, int, int]]) -> None:
        self._ranges, self._count = ranges, sum(last - first + 1 for _, first, last in ranges)

    def clear(self) -> None:
        """Remove all ids."""
        self._keep([])
