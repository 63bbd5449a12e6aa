"""A lane: the entries of one partition as batches.

Entries that wait are handed on together, because a batch costs the gateway the same whether it holds one message or thousands;
they are taken apart into messages only when somebody asks.

Failover and exclusive subscriptions acknowledge everything up to an entry; rejecting delivers all that is not acknowledged again.
On shared and key_shared ones each message is acknowledged by itself. Where the broker keeps acknowledgements of single messages
(acknowledgmentAtBatchIndexLevelEnabled) it hears of each at once; in any case of the entry when all of its messages are done, and
until then what is acknowledged of it is left out when it comes again to this consumer.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Partition, Position
from mqbridge.pulsar.adapter.batches import MAX_ENTRIES, leave_out, make_batch, mask_of, masks_of
from mqbridge.pulsar.adapter.end_check import EndCheck
from mqbridge.pulsar.client.consumer import Consumer
from mqbridge.pulsar.wire.codes import is_missing
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId, full_mask

log = logging.getLogger(__name__)

IDLE_CHECK_S = 1.0
"""How often the broker is asked for its newest entry while none arrives."""


class Delivery:
    """What the lane knows of a batch: the consumer's run, where it ends, and where each message counts the entries not done."""

    __slots__ = ("end", "open", "run")

    def __init__(self, run: int, end: EntryId, entries: Iterable[Entry]) -> None:
        self.run, self.end = run, end
        self.open: dict[EntryId, Entry] = {entry.place: entry for entry in entries}


class PulsarLane:
    """One partition while it is ours; made by `PulsarInbound`."""

    def __init__(self, partition: Partition, consumer: Consumer, batch_bytes: int, batch_memory: int) -> None:
        self.partition = partition
        self.revoked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._consumer = consumer
        self._batch_bytes, self._batch_memory = batch_bytes, batch_memory
        self._lent: Batch | None = None
        """The last batch, while its bytes count as held by the consumer."""
        self._ordered = consumer.subscription.ordered
        self._end = EndCheck(partition, consumer)
        self._not_before = 0.0
        """When an ordered lane goes on after a rejection with a delay."""
        self._sought: Position | None = None
        """Where inside an entry a seek wants to begin."""

    @property
    def caught_up(self) -> bool:
        """The broker had nothing more the last time it was asked, and nothing has come since."""
        return self._end.reached

    # --- receiving --------------------------------------------------------------------------------------------------

    async def receive(self) -> Batch:
        """The next batch."""
        loop = self._loop
        self._give_back()
        while True:
            if self.revoked.is_set() or is_missing(self._consumer.ended):
                raise LaneRevoked(f"{self.partition} was taken away, released or deleted")
            if loop.time() < self._not_before:
                await self._consumer.changed_within(min(IDLE_CHECK_S, self._not_before - loop.time()))
            elif self._consumer.waiting:
                if entries := self._gather():
                    self._lent = batch = self._batch_of(entries)
                    return batch
                self._consumer.give_back()
            else:
                await self._idle()

    def _batch_of(self, entries: list[Entry]) -> Batch:
        """These entries, the last ones that were taken."""
        if not self._ordered:
            return make_batch(self.partition, entries, Delivery(self._consumer.run, entries[-1].place, entries))
        ledger, entry = end = self._consumer.handed_out
        return make_batch(self.partition, entries, Delivery(self._consumer.run, end, ()), (ledger, entry + 1, 0))

    def _give_back(self, batch: Batch | None = None) -> None:
        """The last batch counts somewhere else from now on, if it is this one (None: whichever it is)."""
        if self._lent is not None and (batch is None or batch is self._lent):
            self._lent = None
            self._consumer.give_back()

    async def _idle(self) -> None:
        """Wait for something to come; when nothing does, find out whether there is anything. Raises what ended the consumer."""
        if self._consumer.ended is not None:
            raise self._consumer.ended
        pause = self._end.look()
        await self._consumer.changed(IDLE_CHECK_S if pause is None else pause)

    def _gather(self) -> list[Entry]:
        """The entries that wait, within the limits; the next ones can come while this batch counts."""
        self._end.moved()
        entries = self._consumer.lend(min(self._batch_bytes, self._consumer.share // 2), self._batch_memory, MAX_ENTRIES)
        if (sought := self._sought) is not None:
            self._sought = None
            if entries[0].place == sought[:2] and not leave_out(entries[0], sought[2]):
                del entries[0]
        return entries

    # --- what becomes of batches ------------------------------------------------------------------------------------

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        """Stored."""
        self._give_back(batch)
        delivery: Delivery = batch.handle
        if self.revoked.is_set() or delivery.run != self._consumer.run:
            return
        if self._ordered:
            self._consumer.acknowledge_up_to(delivery.end)
            if batch.data[-1].place < delivery.end:  # a message that was given up late, which has its place before the others
                self._consumer.acknowledge_up_to(batch.data[-1].place)
        elif indexes is None:
            for place in delivery.open:
                self._consumer.acknowledge(place)
            delivery.open.clear()
        else:
            for place, done in masks_of(batch.data, sorted(indexes)).items():
                if (entry := delivery.open.get(place)) is not None and self._is_done(entry, done):
                    del delivery.open[place]

    def _is_done(self, entry: Entry, done: int) -> bool:
        """Acknowledge these messages of the entry; whether it is acknowledged as a whole now."""
        mask = mask_of(entry)
        if done == mask:
            self._consumer.acknowledge(entry.place)
            return True
        before = full_mask(entry.count) & ~mask
        return self._consumer.acknowledge_messages(entry.place, done | before, entry.count)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Again: what is not acknowledged of it, in order also all that was handed out after it."""
        self._give_back(batch)
        delivery: Delivery = batch.handle
        if self.revoked.is_set() or delivery.run != self._consumer.run:
            return
        self._end.comes_again(delay_s)
        if self._ordered:
            self._not_before = asyncio.get_running_loop().time() + delay_s
            self._consumer.redeliver()
        elif delay_s > 0:
            for place in delivery.open:
                self._consumer.negative_acknowledge(place, delay_s)
        else:
            self._consumer.redeliver(list(delivery.open))
        delivery.open.clear()

    # --- where it is, and its end -----------------------------------------------------------------------------------

    async def seek(self, position: Position) -> None:
        """Continue with this message; the subscription's position moves there too."""
        if self.revoked.is_set():
            raise LaneRevoked(f"{self.partition} was taken away or released")
        ledger, entry, *index = position
        self._end.moved()
        self._not_before = 0.0
        await self._consumer.seek((ledger, entry))
        self._end.moved()  # what was answered while this was under way is of before
        self._sought = position if index and index[0] > 0 else None

    def revoke(self) -> None:
        """Ours no more."""
        self.revoked.set()
        self._end.stop()
        self._give_back()
        self._consumer.wake()

    async def release(self, deadline: float | None = None) -> None:
        """Give the partition back."""
        if not self.revoked.is_set():
            self.revoke()
            await self._consumer.close(deadline)
