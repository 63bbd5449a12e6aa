"""Batches of which some messages are acknowledged: which ones are left.

It is needed until the last message is acknowledged, and to leave out what is acknowledged when such an entry comes again. An
entry that was given back (redelivery, the end of a session) may be finished by another consumer of the subscription, and nobody
tells that: so only some of those are kept. To forget one costs a repetition of its messages, should it come here again.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire.ids import EntryId

MAX_HELD = 50_000
"""Entries that the application has, as far as is known: a broker lets a consumer have so many messages without acknowledgement
(maxUnackedMessagesPerConsumer)."""
MAX_GIVEN_BACK = 1_000
"""Entries that anybody may have; those that were given back last are kept."""


class PartialAcks:
    """The masks of what is not acknowledged (see `ids`), of one consumer."""

    __slots__ = ("_given_back", "_held")

    def __init__(self) -> None:
        self._held: dict[EntryId, int] = {}
        self._given_back: dict[EntryId, int] = {}

    def __len__(self) -> int:
        return len(self._held) + len(self._given_back)

    def left_of(self, entry: EntryId) -> int | None:
        """The mask of the messages of this entry that are not acknowledged, None when none is."""
        mask = self._held.get(entry)
        return self._given_back.get(entry) if mask is None else mask

    def set(self, entry: EntryId, mask: int) -> None:
        """These messages of the entry, and not all of them, are left."""
        if entry in self._given_back:
            self._given_back[entry] = mask
            return
        self._held[entry] = mask
        if len(self._held) > MAX_HELD:
            self.give_back([next(iter(self._held))])

    def settle(self, entry: EntryId) -> None:
        """All of it is acknowledged."""
        if self._held.pop(entry, None) is None:
            self._given_back.pop(entry, None)

    def settle_up_to(self, entry: EntryId) -> None:
        """This entry and all before it are acknowledged."""
        for table in (self._held, self._given_back):
            for each in [each for each in table if each <= entry]:
                del table[each]

    def came_again(self, entry: EntryId) -> int | None:
        """It was delivered to this consumer; what is left of it, None for all."""
        mask = self._given_back.pop(entry, None)
        if mask is None:
            return self._held.get(entry)
        self.set(entry, mask)
        return mask

    def give_back(self, entries: Iterable[EntryId]) -> None:
        """Any consumer of the subscription may get these now."""
        for entry in entries:
            mask = self._held.pop(entry, None)
            if mask is not None:
                self._given_back[entry] = mask
        while len(self._given_back) > MAX_GIVEN_BACK:
            del self._given_back[next(iter(self._given_back))]

    def give_all_back(self) -> None:
        """The session is over."""
        self.give_back(list(self._held))

    def clear(self) -> None:
        """Forget everything: the positions have lost their meaning."""
        self._held.clear()
        self._given_back.clear()
