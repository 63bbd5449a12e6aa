"""Unacknowledged messages of partly acknowledged batches.

They are needed until the last message is acknowledged, and to leave out acknowledged messages when the entry is redelivered. An
entry that was given back (redelivery, end of the connection) may be finished by another consumer of the subscription without
notice, so only some of those are kept. Forgetting one costs a repetition of its messages if it is redelivered here.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire.ids import EntryId

MAX_HELD = 50_000
"""Maximum number of entries that the application may hold: a broker's default limit of unacknowledged messages per consumer
(maxUnackedMessagesPerConsumer)."""
MAX_GIVEN_BACK = 1_000
"""Maximum number of remembered entries that were given back; the last ones are kept."""


class PartialAcks:
    """Masks of unacknowledged messages (see `ids`) of one consumer."""

    __slots__ = ("_given_back", "_held")

    def __init__(self) -> None:
        self._held: dict[EntryId, int] = {}
        self._given_back: dict[EntryId, int] = {}

    def __len__(self) -> int:
        return len(self._held) + len(self._given_back)

    def left_of(self, entry: EntryId) -> int | None:
        """Return the mask of the unacknowledged messages of an entry, None if no message of it is acknowledged."""
        mask = self._held.get(entry)
        return self._given_back.get(entry) if mask is None else mask

    def set(self, entry: EntryId, mask: int) -> None:
        """Set the mask of an entry's unacknowledged messages, which are some but not all."""
        if entry in self._given_back:
            self._given_back[entry] = mask
            return
        self._held[entry] = mask
        if len(self._held) > MAX_HELD:
            self.give_back([next(iter(self._held))])

    def settle(self, entry: EntryId) -> None:
        """Note that the whole entry is acknowledged."""
        if self._held.pop(entry, None) is None:
            self._given_back.pop(entry, None)

    def settle_up_to(self, entry: EntryId) -> None:
        """Note that this entry and all before it are acknowledged."""
        for table in (self._held, self._given_back):
            for each in [each for each in table if each <= entry]:
                del table[each]

    def redelivered(self, entry: EntryId) -> int | None:
        """Note a redelivery to this consumer; return the mask of its unacknowledged messages, None for all."""
        mask = self._given_back.pop(entry, None)
        if mask is None:
            return self._held.get(entry)
        self.set(entry, mask)
        return mask

    def give_back(self, entries: Iterable[EntryId]) -> None:
        """Note that any consumer of the subscription may get these entries now."""
        for entry in entries:
            mask = self._held.pop(entry, None)
            if mask is not None:
                self._given_back[entry] = mask
        while len(self._given_back) > MAX_GIVEN_BACK:
            del self._given_back[next(iter(self._given_back))]

    def give_all_back(self) -> None:
        """Give back all entries, because the connection has ended."""
        self.give_back(list(self._held))

    def clear(self) -> None:
        """Discard everything, because all positions are discarded."""
        self._held.clear()
        self._given_back.clear()
