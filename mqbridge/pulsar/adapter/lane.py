"""A lane: the entries of one partition as batches.

All queued entries are passed on as one batch, because a batch costs the gateway the same whether it holds one message or
thousands. Entries are decoded into messages only on demand.

Failover and exclusive subscriptions acknowledge cumulatively, whole entries only: a broker that does not store acknowledgements
of single messages would take a part of an entry for all of it. A rejection redelivers everything that is not acknowledged.
Shared and key_shared subscriptions acknowledge each message by itself. If the broker stores acknowledgements of single messages
(acknowledgmentAtBatchIndexLevelEnabled), each is sent at once; in any case the entry is acknowledged when all of its messages
are. Until then, its acknowledged messages are left out when it is redelivered to this consumer.
"""

import asyncio
import logging
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import LaneRevoked
from mqbridge.message import Batch, Partition, Position
from mqbridge.pulsar.adapter.batches import (
    MAX_ENTRIES,
    deliverable_count,
    deliverable_mask,
    keep_messages,
    make_batch,
    masks_by_entry,
)
from mqbridge.pulsar.adapter.end_check import EndCheck
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.wire.codes import is_topic_missing
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EntryId, full_mask

log = logging.getLogger(__name__)


class KeptEntry(NamedTuple):
    """What acknowledging an entry needs: its id, and the number of its messages to deliver."""

    id: EntryId
    messages: int


class KeptEntries:
    """The ids and counts of a batch's entries, whose contents may have been dropped."""

    __slots__ = ("_counts", "_entries", "_ledgers")

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._ledgers = array("q", [entry.ledger for entry in entries])
        self._entries = array("q", [entry.entry for entry in entries])
        self._counts = array("i", map(deliverable_count, entries))

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, index: int) -> KeptEntry:
        return KeptEntry((self._ledgers[index], self._entries[index]), self._counts[index])


class BatchHandle:
    """Acknowledgement handle of a batch (`Batch.handle`).

    generation      the consumer's generation at delivery, a number that changes when its position is set back, as by a seek; if
                    it has changed since, acknowledgements of the batch have no effect, because the broker redelivers it
    last_entry      on an ordered lane (failover or exclusive), acknowledging the batch acknowledges everything up to this entry
    end             the last entry of the batch
    unacknowledged  entries whose messages are not all acknowledged; empty on an ordered lane
    kept            what is kept of the entries when they are dropped; None before
    """

    __slots__ = ("_prefix_entries", "_prefix_messages", "end", "generation", "kept", "last_entry", "unacknowledged")

    def __init__(self, generation: int, last_entry: EntryId, end: EntryId, entries: Iterable[Entry] = ()) -> None:
        """`entries` are those that are acknowledged one by one."""
        self.generation, self.last_entry, self.end = generation, last_entry, end
        self.unacknowledged: dict[EntryId, Entry] = {entry.id: entry for entry in entries}
        self.kept: KeptEntries | None = None
        self._prefix_entries = self._prefix_messages = 0
        """Number of entries whose messages are acknowledged in order from the first one, and number of their messages."""

    def advance(self, entries: KeptEntries | Sequence[Entry], count: int) -> int:
        """Return how many of the batch's entries consist of its first `count` messages; 0 if they are not more than before."""
        before = self._prefix_entries
        while self._prefix_entries < len(entries):
            entry = entries[self._prefix_entries]
            messages = self._prefix_messages + (entry.messages if isinstance(entry, KeptEntry) else deliverable_count(entry))
            if messages > count:
                break
            self._prefix_entries, self._prefix_messages = self._prefix_entries + 1, messages
        return self._prefix_entries if self._prefix_entries > before else 0


class PulsarLane:
    """The lane of one assigned partition; made by `PulsarInbound`.

    A batch ends at `batch_bytes` of received payload or `batch_memory_bytes` of memory, whichever is reached first.
    """

    def __init__(self, partition: Partition, consumer: EntryConsumer, batch_bytes: int, batch_memory_bytes: int) -> None:
        self.partition = partition
        self.revoked = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._consumer = consumer
        self._batch_bytes, self._batch_memory_bytes = batch_bytes, batch_memory_bytes
        self._charged_batch: Batch | None = None
        """The last batch, while its bytes are charged to the consumer's budget."""
        self._ordered = consumer.subscription.ordered
        self._end_check = EndCheck(consumer)
        self._resume_at = 0.0
        """Loop time at which an ordered lane continues after a rejection with a delay; in the past if it need not wait."""
        self._seek_position: Position | None = None
        """Position inside an entry at which a seek begins; None once that entry was taken, or if an entry begins there."""

    @property
    def caught_up(self) -> bool:
        """True if the last `confirm_caught_up` was True, no entry has arrived since, and the connection was kept."""
        return self._end_check.reached

    async def confirm_caught_up(self) -> bool:
        """Ask the broker for the newest entry; return True if it was received. Raises ClusterError."""
        return await self._end_check.confirm()

    # --- receiving --------------------------------------------------------------------------------------------------

    async def receive(self) -> Batch:
        """Wait for the next batch and return it. Raises LaneRevoked, or the ClusterError that ended the consumer."""
        loop = self._loop
        self._release_charge()
        while True:
            if self.revoked.is_set() or is_topic_missing(self._consumer.end_error):
                raise LaneRevoked(f"partition {self.partition} was released or deleted, or may now belong to another consumer")
            if loop.time() < self._resume_at:
                await self._consumer.wait_change(self._resume_at - loop.time())
            elif self._consumer.queued:
                if entries := self._take_entries():
                    self._charged_batch = batch = self._make_batch(entries)
                    return batch
                self._consumer.release_taken()  # all messages of the entry were before the target of a seek
            elif self._consumer.end_error is not None:
                raise self._consumer.end_error
            else:
                await self._consumer.wait_available()

    def _make_batch(self, entries: list[Entry]) -> Batch:
        """Make a batch of the entries taken last, with its acknowledgement handle and the position after it."""
        generation, end = self._consumer.generation, entries[-1].id
        if not self._ordered:
            return make_batch(self.partition, entries, BatchHandle(generation, end, end, entries))
        ledger, entry = last = self._consumer.last_delivered
        return make_batch(self.partition, entries, BatchHandle(generation, last, end), (ledger, entry + 1, 0))

    def _release_charge(self, batch: Batch | None = None) -> None:
        """Stop charging the last batch to the consumer's budget; with a `batch`, only if that is the last one."""
        if self._charged_batch is not None and (batch is None or batch is self._charged_batch):
            self._charged_batch = None
            self._consumer.release_taken()

    def _take_entries(self) -> list[Entry]:
        """Take the queued entries for one batch, up to half of the consumer's share of the budget.

        The other half is for the entries that arrive meanwhile. The result is empty if the only entry taken ends before the
        position of a seek.
        """
        self._end_check.invalidate()
        entries = self._consumer.take_many(
            min(self._batch_bytes, self._consumer.share // 2), self._batch_memory_bytes, MAX_ENTRIES
        )
        if (begin := self._seek_position) is not None:
            self._seek_position = None
            # The broker seeks to the beginning of an entry; leave out the entry's messages before the position.
            if entries[0].id == begin[:2] and not keep_messages(entries[0], begin[2]):
                del entries[0]
        return entries

    # --- acknowledging ----------------------------------------------------------------------------------------------

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        """Acknowledge the whole batch, or only the messages at these indexes of the batch; `receipt` is not used.

        On an ordered lane the indexes are those of the first messages; an entry is acknowledged with its last message.
        """
        if indexes is None or not self._ordered:
            self._release_charge(batch)
        handle: BatchHandle = batch.handle
        if self.revoked.is_set() or handle.generation != self._consumer.generation:
            return
        if self._ordered and indexes is None:
            self._acknowledge_batch(handle)
        elif indexes is not None and self._ordered:
            entries: KeptEntries | Sequence[Entry] = batch.data if handle.kept is None else handle.kept
            acknowledged = handle.advance(entries, len(indexes))
            if acknowledged == len(entries):
                self._acknowledge_batch(handle)
            elif acknowledged:
                self._consumer.acknowledge_up_to(entries[acknowledged - 1].id)
        elif indexes is None:
            for entry_id in handle.unacknowledged:
                self._consumer.acknowledge(entry_id)
            handle.unacknowledged.clear()
        else:
            for entry_id, mask in masks_by_entry(batch.data, sorted(indexes)).items():
                if (entry := handle.unacknowledged.get(entry_id)) is not None and self._acknowledge_messages(entry, mask):
                    del handle.unacknowledged[entry_id]

    def _acknowledge_batch(self, handle: BatchHandle) -> None:
        """Acknowledge everything up to the end of a batch of an ordered lane, whose contents may have been dropped."""
        self._consumer.acknowledge_up_to(handle.last_entry)
        # A chunked message that expired incomplete is delivered late, with an id before `last_entry`. Until its own id is
        # acknowledged, too, a cumulative acknowledgement stops before its chunks.
        if handle.end < handle.last_entry:
            self._consumer.acknowledge_up_to(handle.end)

    def _acknowledge_messages(self, entry: Entry, mask: int) -> bool:
        """Acknowledge the messages whose bits are 1 in this mask; return True if the whole entry is acknowledged now."""
        delivered_mask = deliverable_mask(entry)
        if entry.defect is not None:  # its messages are chunks: entries of their own, which are acknowledged together
            entry.acked_chunks |= mask
            mask = entry.acked_chunks
            if mask != delivered_mask:
                return False
        if mask == delivered_mask:
            self._consumer.acknowledge(entry.id)
            return True
        acknowledged_before = full_mask(entry.count) & ~delivered_mask
        return self._consumer.acknowledge_messages(entry.id, mask | acknowledged_before, entry.count)

    def keep_prefixes(self, batch: Batch) -> None:
        """Note the entries of the batch, so that a prefix of it can be acknowledged when they are dropped."""
        handle: BatchHandle = batch.handle
        if self._ordered and handle.kept is None:
            handle.kept = KeptEntries(batch.data)

    def counted(self, batch: Batch) -> None:
        """Stop charging the batch to the consumer's budget."""
        self._release_charge(batch)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        """Have the unacknowledged messages redelivered after `delay_s`; an ordered lane also gets everything after them again.

        `failures` is not used.
        """
        self._release_charge(batch)
        handle: BatchHandle = batch.handle
        if self.revoked.is_set() or handle.generation != self._consumer.generation:
            return
        self._end_check.expect_redelivery(delay_s)
        if self._ordered:
            self._resume_at = asyncio.get_running_loop().time() + delay_s
            self._consumer.redeliver()
        elif delay_s > 0:
            for entry_id in handle.unacknowledged:
                self._consumer.negative_acknowledge(entry_id, delay_s)
        else:
            self._consumer.redeliver(list(handle.unacknowledged))
        handle.unacknowledged.clear()

    # --- position and release ---------------------------------------------------------------------------------------

    async def seek(self, position: Position) -> None:
        """Continue with the message at this position; moves the subscription's cursor, too. Raises LaneRevoked, ClusterError."""
        if self.revoked.is_set():
            raise LaneRevoked(f"partition {self.partition} was released, or may now belong to another consumer")
        ledger, entry, *index = position
        self._end_check.invalidate()
        self._resume_at = 0.0
        await self._consumer.seek((ledger, entry))
        self._end_check.invalidate()  # a check that was answered during the seek is outdated
        self._seek_position = position if index and index[0] > 0 else None

    def revoke(self) -> None:
        """End the assignment: `receive` raises LaneRevoked from now on."""
        self.revoked.set()
        self._release_charge()
        self._consumer.wake()

    async def release(self, deadline: float | None = None) -> None:
        """Revoke the lane, and close the consumer, which sends the pending acknowledgements.

        `deadline` is a loop time; None: wait for one request timeout. Does nothing if the lane is revoked: the inbound then keeps
        or closes the consumer.
        """
        if not self.revoked.is_set():
            self.revoke()
            await self._consumer.close(deadline)
