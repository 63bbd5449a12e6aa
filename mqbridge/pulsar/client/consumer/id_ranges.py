"""A set of entry ids that are added in ascending order, stored as ranges of consecutive ids."""

from collections.abc import Iterator

from mqbridge.pulsar.wire.ids import EntryId

MAX_RANGES = 10_000
"""Maximum number of ranges; further ids are not added. A broker stores as many ranges of acknowledged entries by default
(managedLedgerMaxUnackedRangesToPersist)."""


class IdRanges:
    """Ascending entry ids. An id up to the last one is not added, because it was added before, or must be added in order."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
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
        if self._ranges:
            last_ledger, first, last = self._ranges[-1]
            if entry_id <= (last_ledger, last):
                return
            if entry_id == (last_ledger, last + 1):
                self._ranges[-1] = ledger, first, entry
                return
        if len(self._ranges) < MAX_RANGES:
            self._ranges.append((ledger, entry, entry))

    def discard_up_to(self, entry_id: EntryId) -> None:
        """Remove the ids up to this one."""
        ledger, entry = entry_id
        cut = ((each, max(first, entry + 1) if each == ledger else first, last) for each, first, last in self._ranges)
        self._ranges = [(each, first, last) for each, first, last in cut if each >= ledger and first <= last]

    def discard_after(self, entry_id: EntryId) -> None:
        """Remove the ids after this one."""
        ledger, entry = entry_id
        cut = ((each, first, min(last, entry) if each == ledger else last) for each, first, last in self._ranges)
        self._ranges = [(each, first, last) for each, first, last in cut if each <= ledger and first <= last]

    def clear(self) -> None:
        """Remove all ids."""
        self._ranges.clear()
