"""Pending acknowledgements: collected and sent in few commands.

Of cumulative acknowledgements only the last entry matters. Individual ones are a list of entries, each with the mask of its
unacknowledged messages. Without batch-index acknowledgement (a broker setting that is off by default) an entry is only
acknowledged when all of its messages are.
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
        self._individual: dict[EntryId, int] = {}
        self.partial = PartialAcks()

    def __len__(self) -> int:
        return len(self._individual) + (self._cumulative is not None)

    def clear(self) -> None:
        """Discard everything, because all positions are discarded."""
        self._cumulative = None
        self._individual.clear()
        self.partial.clear()

    def entry(self, entry: EntryId) -> None:
        """Acknowledge a whole entry."""
        self.partial.settle(entry)
        self._individual[entry] = 0

    def messages(self, entry: EntryId, done: int, count: int) -> bool:
        """Acknowledge the messages of the mask `done` of a batch of `count`; return True if the entry is now complete."""
        left = self.partial.left_of(entry)
        mask = (full_mask(count) if left is None else left) & ~done
        if not mask:
            self.entry(entry)
            return True
        self.partial.set(entry, mask)
        if self._batch_index:
            self._individual[entry] = mask
        return False

    def message(self, entry: EntryId, index: int, count: int) -> bool:
        """Acknowledge one message of a batch of `count`; return True if the whole entry is acknowledged now."""
        return self.messages(entry, 1 << index, count)

    def cumulative(self, entry: EntryId, index: int | None = None, count: int = 1) -> None:
        """Acknowledge everything up to this entry, or up to and including message `index` of it.

        In the middle of a batch, without batch-index acknowledgement, this acknowledges everything before the entry.
        """
        mask = 0 if index is None else full_mask(count) & ~full_mask(index + 1)
        if mask and not self._batch_index:
            entry, mask = (entry[0], entry[1] - 1), 0
        if self._cumulative is None or (entry, -mask) > (self._cumulative[0], -self._cumulative[1]):
            self._cumulative = entry, mask
        if self.partial:
            self.partial.settle_up_to((entry[0], entry[1] - 1) if mask else entry)

    def take_cumulative(self) -> MessageIdData | None:
        """Take the cumulative acknowledgement to send now."""
        taken, self._cumulative = self._cumulative, None
        return None if taken is None else message_id(*taken[0], to_words(taken[1]))

    def take_individual(self) -> Iterator[list[MessageIdData]]:
        """Take the individual acknowledgements to send now, in groups per command."""
        pending, self._individual = self._individual, {}
        message_ids = [message_id(*entry, to_words(mask)) for entry, mask in pending.items()]
        for start in range(0, len(message_ids), IDS_PER_COMMAND):
            yield message_ids[start : start + IDS_PER_COMMAND]

    def put_back(self, group: Iterable[MessageIdData]) -> None:
        """Send these unconfirmed individual acknowledgements again. Messages acknowledged since then stay acknowledged."""
        for data in group:
            entry, mask = entry_id(data), from_words(data.ack_set)
            self._individual[entry] = self._individual.get(entry, mask) & mask
