"""A lane: the entries of one partition as batches.

Entries that wait are handed on together, because a batch costs the gateway the same whether it holds one message or thousands;
they are taken apart into messages only when somebody asks. Acknowledgement and redelivery are about whole entries.
"""

import asyncio
import logging
from collections.abc import Sequence

from mqbridge.adapter import MessageFailure, Receipt
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.message import Batch, Message, Partition, Position
from mqbridge.pulsar.client.consumer import Consumer
from mqbridge.pulsar.mapping.stored import decode
from mqbridge.pulsar.wire.codes import is_missing
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId, from_words, full_mask, to_words

log = logging.getLogger(__name__)

MAX_ENTRIES = 5000
"""Most entries of a batch."""
IDLE_CHECK_S = 1.0
"""How often the broker is asked for its newest entry while none arrives."""


class PulsarLane:
    """One partition while it is ours; made by `PulsarInbound`."""

    def __init__(self, partition: Partition, consumer: Consumer, batch_bytes: int) -> None:
        self.partition = partition
        self.revoked = asyncio.Event()
        self._consumer = consumer
        self._batch_bytes = batch_bytes
        self._ordered = consumer.subscription.ordered
        self._caught_up = False
        self._resume: Position | None = None
        """Where inside an entry a seek wants to begin."""
        self._unsettled: dict[EntryId, None] = {}
        """Of shared subscriptions: entries handed over and not acknowledged, in that order."""

    @property
    def caught_up(self) -> bool:
        """The broker had nothing more the last time it was asked, and nothing has come since."""
        return self._caught_up

    async def receive(self) -> Batch:
        """The next batch."""
        while True:
            if self.revoked.is_set() or is_missing(self._consumer.ended):
                raise LaneRevoked(f"{self.partition} was taken away, released or deleted")
            if (entry := self._consumer.take()) is not None:
                return self._batch(self._gather(entry))
            await self._idle()

    async def _idle(self) -> None:
        """Wait for something to come; meanwhile find out whether there is anything."""
        if not self._caught_up:
            try:
                self._caught_up = not await self._consumer.has_more()
            except ClusterError as error:
                if self._consumer.ended is not None and not self.revoked.is_set() and not is_missing(self._consumer.ended):
                    raise self._consumer.ended from error
                log.info("%s: %s", self.partition, error)
        await self._consumer.changed(IDLE_CHECK_S)

    def _gather(self, entry: Entry) -> list[Entry]:
        """This entry and those that wait behind it, within the limits."""
        self._caught_up = False
        entries, size = [entry], cost(entry)
        while size < self._batch_bytes and len(entries) < MAX_ENTRIES:
            follower = self._consumer.take()
            if follower is None:
                break
            entries.append(follower)
            size += cost(follower)
        if self._resume is not None:
            self._cut_first(entries[0], self._resume)
            self._resume = None
        return entries

    @staticmethod
    def _cut_first(entry: Entry, resume: Position) -> None:
        """Leave out the messages of the first entry that lie before the position that was sought."""
        ledger, number, index = resume
        if (entry.ledger, entry.entry) == (ledger, number) and 0 < index < entry.count:
            mask = from_words(entry.ack_set) or full_mask(entry.count)
            entry.ack_set = tuple(to_words(mask & ~full_mask(index)))

    def _batch(self, entries: list[Entry]) -> Batch:
        first, last = entries[0], entries[-1]
        count = sum(from_words(entry.ack_set).bit_count() if entry.ack_set else entry.count for entry in entries)
        places: list[EntryId] = [(entry.ledger, entry.entry) for entry in entries]
        if not self._ordered:
            self._unsettled.update(dict.fromkeys(places))
        mask = from_words(first.ack_set)
        begin = (mask & -mask).bit_length() - 1 if mask else 0
        return Batch(
            self.partition,
            lambda: _decode_all(entries),
            count=count,
            size=sum(map(cost, entries)),
            first=(first.ledger, first.entry, begin),
            next=(last.ledger, last.entry + 1, 0),
            handle=places,
        )

    # --- what becomes of batches ------------------------------------------------------------------------------------

    def acknowledge(
        self,
        batch: Batch,
        indexes: Sequence[int] | None = None,
        receipt: Receipt | None = None,
    ) -> None:
        """Stored."""
        if self.revoked.is_set():
            return
        places: Sequence[EntryId] = batch.handle
        if self._ordered:
            self._consumer.acknowledge_up_to(places[-1])
            return
        for place in places:
            self._unsettled.pop(place, None)
            self._consumer.acknowledge(place)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Again, with all that was handed over after it."""
        if self.revoked.is_set():
            return
        self._caught_up = False
        if self._ordered:
            self._consumer.redeliver()
            return
        unsettled = list(self._unsettled)
        again = unsettled[unsettled.index(batch.handle[0]) :] if batch.handle[0] in self._unsettled else list(batch.handle)
        for place in again:
            self._unsettled.pop(place, None)
        self._consumer.redeliver(again)

    async def seek(self, position: Position) -> None:
        """Continue with this message; the subscription's position moves there too."""
        if self.revoked.is_set():
            raise LaneRevoked(f"{self.partition} was taken away or released")
        ledger, entry, *_ = position
        self._caught_up = False
        self._unsettled.clear()
        await self._consumer.seek((ledger, entry))
        self._resume = position if len(position) == 3 else None

    def revoke(self) -> None:
        """Ours no more."""
        self.revoked.set()
        self._consumer.wake()

    async def release(self, deadline: float | None = None) -> None:
        """Give the partition back."""
        if not self.revoked.is_set():
            self.revoke()
            await self._consumer.close()


def cost(entry: Entry) -> int:
    """What an entry takes of a budget: its payload as it will be once somebody asks for the messages."""
    return max(len(entry.payload), entry.metadata.uncompressed_size)


def _decode_all(entries: Sequence[Entry]) -> list[Message]:
    if len(entries) == 1:
        return decode(entries[0])
    return [message for entry in entries for message in decode(entry)]


async def newest_message(consumer: Consumer, timeout: float) -> Message | None:
    """The last message of the topic, by a reader that `last_id` is asked of. Raises ClusterError, TimeoutError."""
    last = await consumer.last_id()
    if last[1] < 0:
        return None
    await consumer.seek(last)
    async with asyncio.timeout(timeout):
        messages = decode(await consumer.receive())
    return messages[-1] if messages else None
