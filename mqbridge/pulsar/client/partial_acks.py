"""Masks of the unacknowledged messages of partly acknowledged batches.

A mask is needed to acknowledge the entry with its last message, and to drop acknowledged messages if the entry is redelivered.

An entry is released when the broker may deliver it to any consumer of the subscription: it was sent back for redelivery, or the
connection was lost. Another consumer may then acknowledge it, and this one gets no notice. So only a limited number of released
entries is kept. If a forgotten entry is redelivered here, all its messages are delivered again.
"""

from collections.abc import Iterable

from mqbridge.pulsar.wire.ids import EntryId

MAX_HELD = 50_000
"""Maximum number of entries that are not released: the broker's default limit of unacknowledged messages per consumer
(maxUnackedMessagesPerConsumer)."""
MAX_RELEASED = 1_000
"""Maximum number of released entries; the oldest are forgotten."""


class PartialAcks:
    """Masks of unacknowledged messages (see `wire.ids`) of one consumer."""

    __slots__ = ("_held", "_released")

    def __init__(self) -> None:
        self._held: dict[EntryId, int] = {}
        self._released: dict[EntryId, int] = {}

    def __len__(self) -> int:
        return len(self._held) + len(self._released)

    def unacknowledged(self, entry: EntryId) -> int | None:
        """Return the mask of the entry's unacknowledged messages; None if none of its messages is known as acknowledged."""
        mask = self._held.get(entry)
        return self._released.get(entry) if mask is None else mask

    def set(self, entry: EntryId, mask: int) -> None:
        """Set the mask of the entry's unacknowledged messages: some of them, not all."""
        if entry in self._released:
            self._released[entry] = mask
            return
        self._held[entry] = mask
        if len(self._held) > MAX_HELD:
            self.release([next(iter(self._held))])

    def complete(self, entry: EntryId) -> None:
        """Note that the whole entry is acknowledged."""
        if self._held.pop(entry, None) is None:
            self._released.pop(entry, None)

    def complete_up_to(self, entry: EntryId) -> None:
        """Note that this entry and all before it are acknowledged."""
        for table in (self._held, self._released):
            for each in [each for each in table if each <= entry]:
                del table[each]

    def redelivered(self, entry: EntryId) -> int | None:
        """Note a redelivery to this consumer; return the mask of the entry's unacknowledged messages, None for all."""
        mask = self._released.pop(entry, None)
        if mask is None:
            return self._held.get(entry)
        self.set(entry, mask)
        return mask

    def release(self, entries: Iterable[EntryId]) -> None:
        """Note that the broker may now deliver these entries to any consumer of the subscription."""
        for entry in entries:
            mask = self._held.pop(entry, None)
            if mask is not None:
                self._released[entry] = mask
        while len(self._released) > MAX_RELEASED:
            del self._released[next(iter(self._released))]

    def release_all(self) -> None:
        """Release all entries, because the connection was lost."""
        self.release(list(self._held))

    def clear(self) -> None:
        """Discard everything, because all positions are discarded."""
        self._held.clear()
        self._released.clear()
