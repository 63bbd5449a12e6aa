"""Reads a range of a partition by positions with a non-durable reader: the broker stores nothing, and no group moves.

A chunked message is at the position of its last chunk. So the range that contains this position has the whole message, wherever
it begins, and a message whose last chunk does not exist is in no range: it may still become complete. A consumer gives up an
incomplete message after some time, or for others; if its last chunk follows nevertheless, the message is read again by itself.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from dataclasses import replace

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Batch, Partition, Position, format_position
from mqbridge.pulsar.adapter.batches import MAX_ENTRIES, keep_messages, make_batch
from mqbridge.pulsar.adapter.known_entries import KnownEntries
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, identity_of
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EARLIEST, EntryId

log = logging.getLogger(__name__)

EMPTY_PARTITION: Position = (-1, -1, 0)
"""Both bounds of a partition that never held a message; it sorts before every position."""
MAX_BATCH_BYTES = 1 << 20
"""A batch ends with the entry that reaches this payload size."""
END_CHECK_INTERVAL_S = 1.0
"""Minimum interval between two checks whether the topic has ended before the range, while no entry is queued. Each is a request,
and the queue runs empty often while entries arrive one by one."""


async def request_bounds(client: ClusterClient, topic: str, timeout_s: float) -> Bounds:
    """Return the first and next position of a partition, by its full topic name. Raises ClusterError.

    If the first entry is a chunk, the first position is that of this chunk, which is not joined: its message may be incomplete.
    """
    # The first entry may be a chunk of a message that will never be complete.
    subscription = replace(await client.reader_subscription(EARLIEST), joins_chunks=False)
    consumer = await client.consumer(topic, subscription)
    try:
        ledger, entry = await consumer.last_id()
        if entry < 0:
            return Bounds(EMPTY_PARTITION, EMPTY_PARTITION)
        after: Position = (ledger, entry + 1, 0)
        if not await consumer.has_more():  # all entries were deleted
            return Bounds(after, after)
        async with asyncio.timeout(timeout_s):
            first = await consumer.receive()
        return Bounds((*first.id, 0), after)
    except TimeoutError as error:
        raise ClusterError(f"the first entry of topic {topic} did not arrive within {timeout_s:g} s") from error
    finally:
        await consumer.close()


class RangeReader:
    """Reads a partition from `begin` up to, not including, `end`; see `Cluster.read`. Without `end` it reads on forever.

    `topic` is the partition's full topic name. `timeout_s` is the time to wait for an entry that is known to exist.
    `known_entries` are those of the cluster; without, only the range itself tells which entries existed.
    """

    def __init__(
        self,
        client: ClusterClient,
        partition: Partition,
        topic: str,
        begin: Position,
        end: Position | None,
        timeout_s: float,
        known_entries: KnownEntries | None = None,
    ) -> None:
        self._client, self._partition = client, partition
        self._topic, self._timeout_s = topic, timeout_s
        self._begin, self._end = with_batch_index(begin), None if end is None else with_batch_index(end)
        self._known_entries = known_entries or KnownEntries()
        if self._begin[1] == 0:  # positions after a message have a higher entry number, so this one is of a message
            self._known_entries.add(topic, self._begin[0], 1)
        self._deferred_entry: Entry | None = None
        """An entry that was taken from the consumer, but begins the next batch: a chunked message without its first chunks, which
        lie before the entry at which the consumer started. `_complete_message` must read it again first."""
        self._next_check_at = 0.0
        """Loop time from which the next check for the end of the partition may be made."""

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield the batches of the range; end early if the partition ends before the range.

        Raises ClusterError, and GapError if messages at the start of the range were deleted.
        """
        ledger, entry, _ = self._begin
        consumer = await self._client.reader(self._topic, EARLIEST if ledger < 0 else (ledger, max(entry, 0)))
        try:
            if self._end is not None:  # end at the present newest entry: a later end might never be reached
                last = await consumer.last_id()
                if last[1] < 0:
                    self._known_entries.add_before(self._topic, self._end)
                    self._check_deleted(EMPTY_PARTITION)
                self._end = min(self._end, (last[0], last[1] + 1, 0))
                self._known_entries.add_before(self._topic, self._end)
            position = self._begin
            while self._end is None or position < self._end:
                next_entry = self._deferred_entry or consumer.take()
                self._deferred_entry = None
                if next_entry is None:
                    if self._ends_at(consumer.last_chunk) or not await self._wait_for_entry(consumer):
                        break
                    continue
                if position is self._begin:  # nothing of the range was read yet
                    await self._check_gap(next_entry.first_chunk or next_entry.id)
                if next_entry.chunks_before:
                    completed = await self._complete_message(next_entry)
                    if completed is None:
                        continue
                    next_entry = completed
                batch, position = self._collect(consumer, next_entry, position)
                if batch is not None:
                    yield batch
            if position is self._begin and (chunks := consumer.incomplete.first_chunk_ids()):
                await self._check_gap(min(chunks))
            self._log_incomplete(consumer)
        finally:
            await consumer.close()

    def _ends_at(self, chunk: EntryId) -> bool:
        """Return True if the range ends with this chunk or before it."""
        return self._end is not None and (chunk[0], chunk[1] + 1, 0) >= self._end

    def _log_incomplete(self, consumer: EntryConsumer) -> None:
        """Log that chunked messages of the range are left out because they are not complete.

        It is a WARNING if the latest of them is so old that its remaining chunks will hardly come.
        """
        chunks = [each for each in consumer.incomplete.first_chunk_ids() if self._end is None or (*each, 0) < self._end]
        if not chunks:
            return
        age_s = time.time() - consumer.incomplete.last_publish_time() / 1000
        log.log(
            logging.WARNING if age_s > consumer.subscription.chunk_limits.expiry_s else logging.INFO,
            "partition %s: %d chunked messages are incomplete at the end of the range and left out, the first begins at position "
            "%s; each of them can be read together with its last chunk",
            self._partition,
            len(chunks),
            format_position((*min(chunks), 0)),
        )

    def _log_given_up(self, entry: Entry) -> None:
        """Log that a message which the consumer has given up is left out; of a message that began earlier, only for debugging."""
        log.log(
            logging.WARNING if entry.chunks[0][0].chunk_id == 0 else logging.DEBUG,
            "partition %s: the chunked message that begins at position %s is left out unless its last chunk follows: %s",
            self._partition,
            format_position((*(entry.first_chunk or entry.id), 0)),
            entry.defect,
        )

    async def _wait_for_entry(self, consumer: EntryConsumer) -> bool:
        """Wait for an entry, or at most until the next check; return False if the partition has ended before the range.

        Raises the ClusterError that ended the consumer.
        """
        if self._end is None:
            await consumer.wait_available()
        else:
            loop = asyncio.get_running_loop()
            if loop.time() >= self._next_check_at:
                if not await consumer.has_unreceived() and not consumer.queued:
                    return False
                self._next_check_at = loop.time() + END_CHECK_INTERVAL_S
            await consumer.wait_available(self._next_check_at - loop.time())
        if consumer.end_error is not None and not consumer.queued:
            raise consumer.end_error
        return True

    def _collect(self, consumer: EntryConsumer, entry: Entry | None, position: Position) -> tuple[Batch | None, Position]:
        """Collect this entry and the queued ones into a batch, as far as they are in the range.

        Return the batch (None if it would be empty) and the position where reading continues. The argument `position` is that
        position before this call. It never decreases: a chunked message whose last chunks are missing may arrive after later
        entries.
        """
        entries: list[Entry] = []
        size = 0
        while entry is not None:
            position = max(position, (entry.ledger, entry.entry + 1, 0))
            is_within, is_last = self._restrict(entry)
            if is_within:
                entries.append(entry)
                size += entry.size
            if is_last:
                assert self._end is not None  # noqa: S101 - without an end no entry is the last
                position = self._end
            if is_last or size >= MAX_BATCH_BYTES or len(entries) >= MAX_ENTRIES:
                break
            entry = consumer.take()
            if entry is not None and entry.chunks_before:
                self._deferred_entry = entry
                break
        return (make_batch(self._partition, entries, following=position) if entries else None), position

    def _restrict(self, entry: Entry) -> tuple[bool, bool]:
        """Leave out the messages of the entry that are outside of the range.

        Return two flags: a message is left; the range ends with this entry or before it.
        """
        begin, end = 0, None
        if _lacks_last_chunk(entry):
            self._log_given_up(entry)
            return False, self._ends_at(entry.id)
        if entry.id == self._begin[:2]:
            begin = self._begin[2]
        elif entry.id < self._begin[:2]:
            return False, False
        is_last = False
        if self._end is not None:
            if entry.id > self._end[:2] or (entry.id == self._end[:2] and self._end[2] == 0):
                return False, True
            if entry.id == self._end[:2]:
                end = self._end[2]  # the range ends inside this entry
                is_last = True
            else:
                is_last = (entry.ledger, entry.entry + 1, 0) >= self._end
        return keep_messages(entry, begin, end), is_last

    async def _complete_message(self, entry: Entry) -> Entry | None:
        """Read a chunked message again with a reader that starts early enough to receive its first chunks too.

        The message begins at `nearest_start`, or earlier, perhaps in an earlier ledger, if chunks of other messages lie between
        its own. Returns an entry with a defect, and with all chunks that exist, if some are missing. Returns None if the chunks
        of the given entry are repetitions: the message was complete before, in an earlier range.
        """
        ledger, first = entry.first_chunk or entry.id
        nearest_start = (ledger, first - entry.chunks_before)
        for start in dict.fromkeys((nearest_start, (ledger, 0), EARLIEST)):
            if start[1] < 0 and start != EARLIEST:
                continue  # the ledger has too few entries before the given one
            subscription = replace(await self._client.reader_subscription(start), joins_chunks=False)
            consumer = await self._client.consumer(self._topic, subscription)
            try:
                candidate = await self._join_up_to(consumer, entry)
            finally:
                await consumer.close()
            if candidate is None or not candidate.chunks_before:
                return candidate
            entry = candidate
        return entry

    async def _join_up_to(self, consumer: EntryConsumer, message: Entry) -> Entry | None:
        """Join the chunks of this message that the consumer receives, which joins none; None if the message ended before.

        Other messages do not count against the limits. Each entry must arrive within `timeout_s`, because it exists. Raises
        ClusterError.
        """
        joiner, identity = ChunkJoiner(consumer.subscription.chunk_limits, begins_inside=True), identity_of(message.chunks[0][0])
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    chunk = await consumer.receive()
            except TimeoutError as error:
                raise ClusterError(
                    f"the next entry of topic {self._topic} did not arrive within {self._timeout_s:g} s"
                ) from error
            if chunk.id > message.id:  # its ledger was deleted meanwhile
                return message
            if not describes_chunk(chunk.metadata) or identity_of(chunk.metadata) != identity:
                continue
            chunk.defect = None  # it has one because the consumer does not join it
            results = joiner.add(chunk, now=0.0)
            if chunk.id == message.id:
                joined = results[-1].entry
                if joined is not None:
                    joined.first_chunk = results[-1].chunk_ids[0]
                return joined

    async def _check_gap(self, first: EntryId) -> None:
        """Raise GapError if a message of the range was deleted. `first` is the first entry or chunk read.

        Only whole ledgers are deleted, so an entry of the ledger in which the range begins proves that nothing is missing.
        """
        if self._begin[0] < first[0]:
            self._check_deleted((await request_bounds(self._client, self._topic, self._timeout_s)).first)

    def _check_deleted(self, first: Position) -> None:
        """Raise GapError if a message of the range was before `first`, the first stored position (or EMPTY_PARTITION).

        If this cannot be known, log a warning. A range that begins with ledger -1 begins at the oldest entry, so it has no gap.
        """
        is_empty = first == EMPTY_PARTITION
        if self._begin[0] < 0 or not (is_empty or self._begin[0] < first[0]):
            return
        if self._known_entries.deleted_from(self._topic, self._begin, None if is_empty else first[0]):
            until = "" if is_empty else f" up to, but not including, {format_position(first)}"
            raise GapError(
                f"partition {self._partition}: the messages from position {format_position(self._begin)}{until} were deleted "
                "before they were read",
                None if is_empty else first,
            )
        self._known_entries.warn_unknown(self._topic, self._begin)


def _lacks_last_chunk(entry: Entry) -> bool:
    """Return True for a chunked message that the consumer has given up before its last chunk."""
    if entry.defect is None or not entry.chunks:
        return False
    last, _ = entry.chunks[-1]
    return last.chunk_id + 1 < last.num_chunks_from_msg


def with_batch_index(position: Position) -> Position:
    """Return a position of three components: add the index 0 in the batch if it is missing."""
    ledger, entry, *index = position
    return (ledger, entry, index[0] if index else 0)
