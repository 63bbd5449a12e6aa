"""Acknowledgements on their way: gathered and sent as few commands.

Cumulative ones are a single entry, of which only the furthest matters. Individual ones are a list of entries, for a batch with
the mask of its messages that are still to be acknowledged. Without batch-index acknowledgement (a broker setting that is
off by default) an entry is only acknowledged when all its messages are.
"""

from collections.abc import Iterable, Iterator

from mqbridge.pulsar.client.partial_acks import PartialAcks
from mqbridge.pulsar.wire.ids import EntryId, entry_id, from_words, full_mask, message_id, to_words
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageIdData

IDS_PER_COMMAND = 1000


class Acks:
    """What is acknowledged and not yet told to the broker."""

    __slots__ = (
        "_batch_index",
        "_cumulative",
        "_due",
        "partial",
    )

    def __init__(self, batch_index: bool) -> None:
        self._batch_index = batch_index
        self._cumulative: tuple[EntryId, int] | None = None
        self._due: dict[EntryId, int] = {}
        self.partial = PartialAcks()

    def __len__(self) -> int:
        return len(self._due) + (self._cumulative is not None)

    def clear(self) -> None:
        """Forget everything: the positions have lost their meaning."""
        self._cumulative = None
        self._due.clear()
        self.partial.clear()

    def entry(self, entry: EntryId) -> None:
        """A whole entry."""
        self.partial.settle(entry)
        self._due[entry] = 0

    def messages(self, entry: EntryId, done: int, count: int) -> bool:
        """Those of the mask `done` of a batch of `count`; whether they were the last ones of it."""
        left = self.partial.left_of(entry)
        mask = (full_mask(count) if left is None else left) & ~done
        if not mask:
            self.entry(entry)
            return True
        self.partial.set(entry, mask)
        if self._batch_index:
            self._due[entry] = mask
        return False

    def message(self, entry: EntryId, index: int, count: int) -> bool:
        """One message of a batch of `count`; whether it was the last one of them."""
        return self.messages(entry, 1 << index, count)

    def cumulative(self, entry: EntryId, index: int | None = None, count: int = 1) -> None:
        """Everything up to this entry, or up to and including message `index` of it.

        In the middle of a batch without batch-index acknowledgement that is everything before the entry.
        """
        mask = 0 if index is None else full_mask(count) & ~full_mask(index + 1)
        if mask and not self._batch_index:
            entry, mask = (entry[0], entry[1] - 1), 0
        if self._cumulative is None or (entry, -mask) > (self._cumulative[0], -self._cumulative[1]):
            self._cumulative = entry, mask
        if self.partial:
            self.partial.settle_up_to((entry[0], entry[1] - 1) if mask else entry)

    def take_cumulative(self) -> MessageIdData | None:
        """The cumulative one to send now."""
        taken, self._cumulative = self._cumulative, None
        return None if taken is None else message_id(*taken[0], to_words(taken[1]))

    def take_individual(self) -> Iterator[list[MessageIdData]]:
        """The individual ones to send now, cut for commands."""
        due, self._due = self._due, {}
        found = [message_id(*entry, to_words(mask)) for entry, mask in due.items()]
        for at in range(0, len(found), IDS_PER_COMMAND):
            yield found[at : at + IDS_PER_COMMAND]

    def put_back(self, group: Iterable[MessageIdData]) -> None:
        """Individual ones that the broker has not confirmed: send them again. Messages acknowledged since then stay so."""
        for data in group:
            entry, mask = entry_id(data), from_words(data.ack_set)
            known = self._due.get(entry, mask)
            self._due[entry] = known & mask
