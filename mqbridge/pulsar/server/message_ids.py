"""Message ids of a listener: the numbers of positions as pairs of a ledger and an entry."""

from mqbridge.adapter.numbering import Numbering
from mqbridge.pulsar.wire.ids import EntryId

DENSE_LEDGER = 1
"""Ledger of every id where numbers count messages; the entry is then the number of the unit's first message."""
MAX_NUMBER = (1 << 63) - 1


class MessageIds:
    """Turns the numbers of a listener into entry ids, and back."""

    def __init__(self, numbering: Numbering) -> None:
        self._numbering = numbering

    def entry_id(self, number: int) -> EntryId:
        """Return the id of the unit whose first message has this number. Raises ValueError for a number without position."""
        if self._numbering.dense:
            return DENSE_LEDGER, number
        position = self._numbering.position(number)
        return position[0], position[1]

    def number_of(self, ledger: int, entry: int) -> int:
        """Return the number of the first message of an entry. Ids before and after all others become 0 and the largest number.

        Raises ValueError for an id that no entry has.
        """
        if ledger < 0 or (self._numbering.dense and ledger < DENSE_LEDGER):
            return 0
        if ledger >= MAX_NUMBER or (self._numbering.dense and ledger > DENSE_LEDGER):
            return MAX_NUMBER
        entry = max(0, entry)
        if self._numbering.dense:
            return min(entry, MAX_NUMBER)
        for position in ((ledger, entry), (ledger, entry, 0)):
            try:
                return self._numbering.number(position)
            except ValueError:
                continue
        raise ValueError(f"{ledger}:{entry} is not the id of a message")
