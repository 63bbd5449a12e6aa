"""Message ids that clients see: a ledger, an entry, and the index in a batch.

Where the backing numbers its messages one by one, every id has the ledger LEDGER, and the entry is the number of the unit's first
message; messages that were parked have the ledger DUE_LEDGER. Elsewhere the id is made of the first two components of the
position; for messages that were parked, FIRST_NUMBER is added to the ledger. So ids ascend as positions do, every gateway gives
the same ones, and nothing has to be stored.
"""

from collections.abc import Sequence
from itertools import accumulate, repeat

from mqbridge.adapter.numbering import Numbering
from mqbridge.adapter.receipt import OffsetPositions
from mqbridge.listener.parked import FIRST_NUMBER
from mqbridge.message import Position
from mqbridge.pulsar.wire.ids import EARLIEST, EntryId

LEDGER = 1
"""Ledger of ids over a backing with dense numbers."""
DUE_LEDGER = 2
"""Ledger of the ids of messages that were parked, and come from a topic of their own."""
MAX_NUMBER = (1 << 63) - 1
LAST_NUMBER = FIRST_NUMBER - 1
"""A number that no message of a partition has, where numbers are dense."""
NO_ID: EntryId = (-1, -1)
"""The id in the receipt of an entry that was stored before, or whose position is not known."""


class MessageIds:
    """Converts the numbers of units to entry ids and back."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering
        try:
            numbering.position(FIRST_NUMBER)
        except ValueError:
            self._is_below = True
        else:
            self._is_below = False
        """True if all numbers of positions are below FIRST_NUMBER; otherwise, unless they are dense, nothing is parked."""

    def entry_id(self, number: int) -> EntryId:
        """Return the id of the unit whose first message has this number."""
        if self._numbering.dense:
            return (LEDGER, number) if number < FIRST_NUMBER else (DUE_LEDGER, number - FIRST_NUMBER)
        added = FIRST_NUMBER if self._is_below and number >= FIRST_NUMBER else 0
        ledger, entry, *_ = self._numbering.position(number - added)
        return ledger + added, entry

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
            begin = {LEDGER: 0, DUE_LEDGER: FIRST_NUMBER}.get(ledger)
            if begin is None:
                return 0 if ledger < LEDGER else MAX_NUMBER
            return begin + max(0, min(index, LAST_NUMBER))
        added = FIRST_NUMBER if self._is_below and ledger >= FIRST_NUMBER else 0
        for position in ((ledger - added, max(0, index), 0), (ledger - added, max(0, index))):
            try:
                return self._numbering.number(position) + added
            except ValueError:
                continue
        return MAX_NUMBER

    def is_possible(self, entry: EntryId) -> bool:
        """Return False for an id that no unit can have."""
        ledger, index = entry
        is_own = LEDGER <= ledger <= DUE_LEDGER if self._numbering.dense else ledger >= 0
        return is_own and index >= 0 and self.number_of(entry) not in (LAST_NUMBER, MAX_NUMBER)

    def is_parked(self, entry: EntryId) -> bool:
        """Return True for the id of a message that was parked."""
        return (self._numbering.dense or self._is_below) and self.is_possible(entry) and self.number_of(entry) >= FIRST_NUMBER

    def position_of(self, entry: EntryId, skipped: int = 0) -> Position | None:
        """Return the position of a unit, or after some of its messages, where a reader can begin.

        None after the last number, and for messages that were parked: they are nowhere in the partition.
        """
        number = self.number_of(entry) + skipped
        if number >= (LAST_NUMBER if self._numbering.dense or self._is_below else MAX_NUMBER):
            return None
        return self._numbering.position(number)
