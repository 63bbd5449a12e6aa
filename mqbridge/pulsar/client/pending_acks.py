"""Pending acknowledgements, collected so that few commands are sent.

Only the latest cumulative acknowledgement is stored. Individual ones are entries, each with the mask of its unacknowledged
messages. Without batch-index acknowledgement (a broker setting that is off by default) an entry is acknowledged only when all its
messages are acknowledged.
"""

from collections.abc import Iterable, Iterator

from mqbridge.pulsar.client.partial_acks import PartialAcks
from mqbridge.pulsar.wire.ids import EntryId, entry_id, from_words, full_mask, message_id, to_words
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData

IDS_PER_COMMAND = 1000


class PendingAcks:
    """Acknowledgements that are not sent yet."""

    __slots__ = (
        "_batch_index",
        "_cumulative",
        "_individual",
        "partial",
    )

    def __init__(self, batch_index: bool) -> None:
        self._batch_index = batch_index
        self._cumulative: tuple[EntryId, int] | None = None
        """Entry and mask of its unacknowledged messages."""
        self._individual: dict[EntryId, int] = {}
        """Entry -> mask of its unacknowledged messages."""
        self.partial = PartialAcks()

    def __len__(self) -> int:
        return len(self._individual) + (self._cumulative is not None)

    def clear(self) -> None:
        """Discard everything, because all positions are discarded."""
        self._cumulative = None
        self._individual.clear()
        self.partial.clear()

    def add_entry(self, entry: EntryId) -> None:
        """Acknowledge a whole entry."""
        self.partial.complete(entry)
        self._individual[entry] = 0

    def add_messages(self, entry: EntryId, done: int, count: int) -> bool:
        """Acknowledge the messages in the bit mask `done` of a batch of `count` messages.

        Return True if the whole entry is acknowledged now.
        """
        unacknowledged = self.partial.unacknowledged(entry)
        mask = (full_mask(count) if unacknowledged is None else unacknowledged) & ~done
        if not mask:
            self.add_entry(entry)
            return True
        self.partial.set(entry, mask)
        if self._batch_index:
            self._individual[entry] = mask
        return False

    def add_message(self, entry: EntryId, index: int, count: int) -> bool:
        """Acknowledge one message of a batch of `count` messages; return True if the whole entry is acknowledged now."""
        return self.add_messages(entry, 1 << index, count)

    def add_cumulative(self, entry: EntryId, index: int | None = None, count: int = 1) -> None:
        """Acknowledge everything up to this entry, or up to its message `index`.

        If `index` is in the middle of the batch and there is no batch-index acknowledgement, only the earlier entries are
        acknowledged.
        """
        mask = 0 if index is None else full_mask(count) & ~full_mask(index + 1)
        if mask and not self._batch_index:
            entry, mask = (entry[0], entry[1] - 1), 0
        if self._cumulative is None or (entry, -mask) > (self._cumulative[0], -self._cumulative[1]):
            self._cumulative = entry, mask
        if self.partial:
            self.partial.complete_up_to((entry[0], entry[1] - 1) if mask else entry)

    def take_cumulative(self) -> MessageIdData | None:
        """Take the cumulative acknowledgement to send now."""
        taken, self._cumulative = self._cumulative, None
        return None if taken is None else message_id(*taken[0], to_words(taken[1]))

    def take_individual(self) -> Iterator[list[MessageIdData]]:
        """Take the individual acknowledgements to send now, one group per command."""
        pending, self._individual = self._individual, {}
        message_ids = [message_id(*entry, to_words(mask)) for entry, mask in pending.items()]
        for start in range(0, len(message_ids), IDS_PER_COMMAND):
            yield message_ids[start : start + IDS_PER_COMMAND]

    def put_back(self, group: Iterable[MessageIdData]) -> None:
        """Add individual acknowledgements that were not confirmed. Messages acknowledged since then stay acknowledged."""
        for data in group:
            entry, mask = entry_id(data), from_words(data.ack_set)
            self._individual[entry] = self._individual.get(entry, mask) & mask
