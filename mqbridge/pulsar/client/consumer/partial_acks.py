"""Masks of the unacknowledged messages of partly acknowledged batches.

A mask shows when the last message of an entry is acknowledged, so that the whole entry can be acknowledged. If the entry is
redelivered, the mask shows which messages to leave out.

A delivered entry is held by this consumer until this consumer requests its redelivery, or loses its connection. Then the entry is
released: the broker may deliver it to any consumer of the subscription. If another consumer acknowledges the entry, this consumer
does not learn that the mask is no longer needed. So only a limited number of masks of released entries is kept. If an entry whose
mask was dropped is redelivered to this consumer, all its messages are delivered again.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire.ids import EntryId

MAX_HELD_ENTRIES = 50_000
"""Maximum number of held entries; beyond it the oldest counts as released. The value is the broker's default limit of
unacknowledged messages per consumer (maxUnackedMessagesPerConsumer)."""
MAX_RELEASED_ENTRIES = 1_000
"""Maximum number of released entries; beyond it the oldest masks are dropped."""


class PartialAcks:
    """Masks of one consumer: bit i of a mask is 1 while message i of the entry is unacknowledged (see `wire.ids`)."""

    __slots__ = ("_held", "_released")

    def __init__(self) -> None:
        self._held: dict[EntryId, int] = {}
        self._released: dict[EntryId, int] = {}

    def __len__(self) -> int:
        return len(self._held) + len(self._released)

    def unacknowledged(self, entry: EntryId) -> int | None:
        """Return the mask of the entry's unacknowledged messages; None if it has no mask: all count as unacknowledged."""
        mask = self._held.get(entry)
        return self._released.get(entry) if mask is None else mask

    def set(self, entry: EntryId, mask: int) -> None:
        """Set the mask of an entry of which only some messages are acknowledged; a released entry stays released."""
        if entry in self._released:
            self._released[entry] = mask
            return
        self._held[entry] = mask
        if len(self._held) > MAX_HELD_ENTRIES:
            self.release([next(iter(self._held))])

    def complete(self, entry: EntryId) -> None:
        """Drop the mask of an entry, because the whole entry is acknowledged."""
        if self._held.pop(entry, None) is None:
            self._released.pop(entry, None)

    def complete_up_to(self, entry: EntryId) -> None:
        """Drop the masks of this entry and all before it, because they are acknowledged."""
        for table in (self._held, self._released):
            for each in [each for each in table if each <= entry]:
                del table[each]

    def on_redelivered(self, entry: EntryId) -> int | None:
        """Hold an entry again that was redelivered to this consumer; return its mask, None if it has none."""
        mask = self._released.pop(entry, None)
        if mask is None:
            return self._held.get(entry)
        self.set(entry, mask)
        return mask

    def release(self, entries: Iterable[EntryId]) -> None:
        """Release these entries, because the broker may now deliver them to any consumer of the subscription."""
        for entry in entries:
            mask = self._held.pop(entry, None)
            if mask is not None:
                self._released[entry] = mask
        while len(self._released) > MAX_RELEASED_ENTRIES:
            del self._released[next(iter(self._released))]

    def release_all(self) -> None:
        """Release all entries, because the connection was lost."""
        self.release(list(self._held))

    def clear(self) -> None:
        """Drop all masks, because all positions were discarded."""
        self._held.clear()
        self._released.clear()
