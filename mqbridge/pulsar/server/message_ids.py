"""Message ids that clients see: a ledger, an entry, and the index in a batch.

Where the backing numbers its messages one by one, every id has the ledger LEDGER, and the entry is the number of the unit's first
message. Elsewhere the id is made of the first two components of the position. So ids ascend as positions do, every gateway gives
the same ones, and nothing has to be stored.
"""

from collections.abc import Sequence
from itertools import accumulate, repeat

from mqbridge.adapter.numbering import Numbering
from mqbridge.adapter.receipt import OffsetPositions
from mqbridge.message import Position
from mqbridge.pulsar.wire.ids import EARLIEST, EntryId

LEDGER = 1
"""Ledger of all ids over a backing with dense numbers."""
MAX_NUMBER = (1 << 63) - 1
NO_ID: EntryId = (-1, -1)
"""The id in the receipt of an entry that was stored before, or whose position is not known."""


class MessageIds:
    """Converts the numbers of units to entry ids and back."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering

    def entry_id(self, number: int) -> EntryId:
        """Return the id of the unit whose first message has this number."""
        if self._numbering.dense:
            return LEDGER, number
        ledger, entry, *_ = self._numbering.position(number)
        return ledger, entry

    def id_of(self, position: Position) -> EntryId:
        """Return the id of a unit that begins at this position."""
        return self.entry_id(self._numbering.number(position))

    def ids_of(self, positions: Sequence[Position], counts: Sequence[int]) -> list[EntryId]:
        """Return the ids of stored units with these numbers of messages; NO_ID where the position is not known.

        `positions` are those of all their messages, or empty.
        """
        if self._numbering.dense and isinstance(positions, OffsetPositions) and positions.offsets.stop <= MAX_NUMBER:
            first = positions.offsets.start
            return list(zip(repeat(LEDGER), accumulate(counts[:-1], initial=first)))
        firsts = accumulate(counts[:-1], initial=0)
        return [self.id_of(position) if positions and (position := positions[at]) else NO_ID for at in firsts]

    def number_of(self, entry: EntryId) -> int:
        """Return the number of the unit with this id.

        An id that no unit can have gets the number before or after all others, so that it is ordered as clients order it.
        """
        ledger, index = entry
        if ledger < 0 or entry == EARLIEST:
            return 0
        if self._numbering.dense:
            return 0 if ledger < LEDGER else MAX_NUMBER if ledger > LEDGER else max(0, min(index, MAX_NUMBER))
        for position in ((ledger, max(0, index), 0), (ledger, max(0, index))):
            try:
                return self._numbering.number(position)
            except ValueError:
                continue
        return MAX_NUMBER

    def is_possible(self, entry: EntryId) -> bool:
        """Return False for an id that no unit can have."""
        ledger, index = entry
        is_own = ledger == LEDGER if self._numbering.dense else ledger >= 0
        return is_own and index >= 0 and self.number_of(entry) != MAX_NUMBER

    def position_of(self, entry: EntryId, skipped: int = 0) -> Position | None:
        """Return the position of a unit, or after some of its messages, where a reader can begin; None after the last number."""
        number = self.number_of(entry) + skipped
        if number >= MAX_NUMBER:
            return None
        return self._numbering.position(number)
