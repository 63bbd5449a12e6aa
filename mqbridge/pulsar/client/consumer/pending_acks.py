"""Pending acknowledgements of one consumer, collected so that one ACK command contains many of them.

Of the cumulative acknowledgements only the latest is stored. An individual acknowledgement is an entry with the mask of its
unacknowledged messages. With batch-index acknowledgement (a broker setting that is off by default) single messages of a batch are
acknowledged at the broker; without it, an entry is acknowledged only when all its messages are acknowledged.
"""

from collections.abc import Iterable, Iterator

from mqbridge.pulsar.client.consumer.partial_acks import PartialAcks
from mqbridge.pulsar.wire.ids import EntryId, entry_id, from_words, full_mask, message_id, to_words
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData

MAX_IDS_PER_COMMAND = 1000
"""Maximum number of entries in one command."""


class PendingAcks:
    """Acknowledgements that are not sent yet. `batch_index`: use batch-index acknowledgement, which the broker must support."""

    __slots__ = (
        "_acks_batch_indexes",
        "_cumulative",
        "_individual",
        "partial",
    )

    def __init__(self, batch_index: bool) -> None:
        self._acks_batch_indexes = batch_index
        self._cumulative: tuple[EntryId, int] | None = None
        """Entry and mask of its unacknowledged messages; the mask is 0 if the whole entry is acknowledged."""
        self._individual: dict[EntryId, int] = {}
        """Entry -> mask of its unacknowledged messages; 0 if the whole entry is acknowledged."""
        self.partial = PartialAcks()
        """Partly acknowledged entries, whether their acknowledgements were sent or not."""

    def __len__(self) -> int:
        return len(self._individual) + (self._cumulative is not None)

    def clear(self) -> None:
        """Discard all acknowledgements, after the consumer's positions were reset, for example by a seek."""
        self.discard()
        self.partial.clear()

    def discard(self) -> None:
        """Discard the acknowledgements that would be sent next, but remember which messages of an entry are acknowledged."""
        self._cumulative = None
        self._individual.clear()

    def add_entry(self, entry: EntryId) -> None:
        """Add the acknowledgement of a whole entry."""
        self.partial.complete(entry)
        self._individual[entry] = 0

    def add_messages(self, entry: EntryId, acknowledged: int, count: int) -> bool:
        """Add the acknowledgement of the messages whose bits are set in `acknowledged`, of a batch of `count` messages.

        Return True if the whole entry is acknowledged now.
        """
        unacknowledged = self.partial.unacknowledged(entry)
        mask = (full_mask(count) if unacknowledged is None else unacknowledged) & ~acknowledged
        if not mask:
            self.add_entry(entry)
            return True
        self.partial.set(entry, mask)
        if self._acks_batch_indexes:
            self._individual[entry] = mask
        return False

    def add_message(self, entry: EntryId, index: int, count: int) -> bool:
        """Add the acknowledgement of one message of a batch of `count`; return True if the whole entry is acknowledged now."""
        return self.add_messages(entry, 1 << index, count)

    def add_cumulative(self, entry: EntryId, index: int | None = None, count: int = 1) -> None:
        """Add the acknowledgement of all earlier entries and this entry; with `index`, of its messages 0 to `index` of `count`.

        If `index` is not the last message and there is no batch-index acknowledgement, only the earlier entries are acknowledged.
        """
        mask = 0 if index is None else full_mask(count) & ~full_mask(index + 1)
        if mask and not self._acks_batch_indexes:
            entry, mask = (entry[0], entry[1] - 1), 0  # entry id -1: no entry of this ledger
        # Keep the acknowledgement that reaches further. In the same entry, that is the one with the smaller mask.
        if self._cumulative is None or (entry, -mask) > (self._cumulative[0], -self._cumulative[1]):
            self._cumulative = entry, mask
        if self.partial:
            self.partial.complete_up_to((entry[0], entry[1] - 1) if mask else entry)

    def take_cumulative(self) -> MessageIdData | None:
        """Remove and return the cumulative acknowledgement; None if there is none."""
        cumulative, self._cumulative = self._cumulative, None
        return None if cumulative is None else message_id(*cumulative[0], to_words(cumulative[1]))

    def take_individual(self) -> Iterator[list[MessageIdData]]:
        """Remove and return the individual acknowledgements, in one group per command."""
        pending, self._individual = self._individual, {}
        message_ids = [message_id(*entry, to_words(mask)) for entry, mask in pending.items()]
        for start in range(0, len(message_ids), MAX_IDS_PER_COMMAND):
            yield message_ids[start : start + MAX_IDS_PER_COMMAND]

    def put_back(self, group: Iterable[MessageIdData]) -> None:
        """Add individual acknowledgements again, because the broker did not confirm them.

        A cumulative one is not put back: the caller keeps the last one that it sent. Messages that were acknowledged in the
        meantime stay acknowledged.
        """
        for data in group:
            entry, mask = entry_id(data), from_words(data.ack_set)
            self._individual[entry] = self._individual.get(entry, mask) & mask
