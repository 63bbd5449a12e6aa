"""Reads a partition from one position on, until it is stopped: a seek of a reader stops it and begins another one.

A chunked message is at the position of its last chunk, see `chunk_completion`. A consumer gives up an incomplete message after
some time, or for others; if its last chunk follows nevertheless, the message is read again by itself.

Everything that awaits a broker runs in a task, the step, which ends with a batch. A step changes only the `Reading` that it
belongs to, so one that ends late changes nothing of the reading that has followed.
"""

import asyncio
import logging
import time
from dataclasses import replace

from mqbridge.errors import GapError
from mqbridge.message import Batch, Partition, Position, format_position
from mqbridge.net.tasks import mark_error_retrieved, spawn
from mqbridge.pulsar.adapter.batches import MAX_ENTRIES, keep_messages, make_batch
from mqbridge.pulsar.adapter.bounds import EMPTY_PARTITION, request_bounds, with_batch_index
from mqbridge.pulsar.adapter.chunk_completion import complete_message, lacks_last_chunk
from mqbridge.pulsar.adapter.end_check import EndCheck
from mqbridge.pulsar.adapter.known_entries import KnownEntries
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EARLIEST, EntryId

log = logging.getLogger(__name__)

MAX_BATCH_BYTES = 1 << 20
"""A batch ends with the entry that reaches this payload size."""
END_CHECK_INTERVAL_S = 1.0
"""Minimum interval between two checks whether the topic has ended before the range, while no entry is queued. Each is a request,
and the queue runs empty often while entries arrive one by one."""


class Reading:
    """Reads from `begin` up to `range_end`, not included; None: without an end. Its parameters are those of `PulsarReader`."""

    def __init__(
        self,
        client: ClusterClient,
        partition: Partition,
        topic: str,
        begin: Position,
        range_end: Position | None,
        timeout_s: float,
        known_entries: KnownEntries,
        max_bytes: int,
    ) -> None:
        self.partition = partition
        self._client, self._topic, self._timeout_s = client, topic, timeout_s
        self._known_entries, self._max_bytes, self._range_end = known_entries, max_bytes, range_end
        self._consumer: EntryConsumer | None = None
        self._end_check: EndCheck | None = None
        """The check of the consumer; None without one."""
        self._step: asyncio.Task[Batch | None] | None = None
        """The task that reads the next batch; None if no `receive` has needed one, or its result was received."""
        self._is_stopped = False
        self._begin = self._next = with_batch_index(begin)
        """`_begin` is the position of the first message to read, `_next` the one where reading continues."""
        if self._begin[1] == 0:  # positions after a message have a higher entry number, so this one is of a message
            known_entries.add(topic, self._begin[0], 1)
        self._end: Position | None = None
        """End of the range, or of the partition if that was earlier when reading began; None without an end, or before that."""
        self._has_begun = self._has_ended = False
        """Whether an entry was read, and whether the end was reached."""
        self._taken: list[Entry] = []
        """Entries that were taken from the consumer and are in no batch yet."""
        self._next_check_at = 0.0
        """Loop time from which the next check for the end of the partition may be made."""

    @property
    def caught_up(self) -> bool:
        """True if the last `confirm_caught_up` was True, no entry has arrived since, and the connection was kept."""
        return self._end_check is not None and self._end_check.reached and not self._holds_batch

    async def confirm_caught_up(self) -> bool:
        """Ask the broker for the newest entry; return True if it was received. Raises ClusterError.

        False while no consumer is open, which the first `receive` opens.
        """
        return self._end_check is not None and await self._end_check.confirm() and not self._holds_batch

    async def receive(self) -> Batch | None:
        """Wait for the next batch and return it; None at the end, and once the reading is stopped."""
        if self._step is None:
            if (batch := self._collect_queued()) is not None:
                return self._hand_over(batch)
            self._step = spawn(self._read_batch(), f"reader {self.partition}", log_errors=False)
            self._step.add_done_callback(mark_error_retrieved)
        step = self._step
        if not step.done():  # a finished one has its result at once, however short the caller's time limit is
            await asyncio.wait([step])
        if self._is_stopped:
            return None
        self._step = None
        received = step.result()
        return None if received is None else self._hand_over(received)

    def cancel(self) -> None:
        """Stop reading at once; `close` waits for it. A step whose wake-up is queued does not run any further, either."""
        self._is_stopped = True
        if self._step is not None:
            self._step.cancel()

    async def close(self, deadline: float | None = None) -> None:
        """Close the consumer of a cancelled reading by `deadline` (loop time; None: in one request timeout)."""
        if self._step is not None:
            await asyncio.wait([self._step])
        if self._consumer is not None:
            await self._consumer.close(deadline)

    @property
    def _holds_batch(self) -> bool:
        """True if the step has ended with a batch that was not received."""
        step = self._step
        return step is not None and step.done() and not step.cancelled() and not step.exception() and step.result() is not None

    def _hand_over(self, batch: Batch) -> Batch:
        """Stop charging the entries of a batch to the read-ahead, because the caller counts them from now on."""
        if self._consumer is not None:
            self._consumer.release_taken()
        return batch

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read_batch(self) -> Batch | None:
        """Return the next batch; None at the end, also if the partition ends before the range."""
        if self._has_ended:
            return None
        consumer = self._consumer or await self._open()
        assert self._end_check is not None  # noqa: S101 - opened with the consumer
        if self._range_end is not None and self._end is None:
            await self._find_end(consumer, self._range_end)
        while self._end is None or self._next < self._end:
            if not self._taken and not self._take(consumer):
                if self._ends_at(consumer.last_chunk) or not await self._wait_for_entry(consumer):
                    break
                continue
            first = self._taken[0]
            if not self._has_begun:
                await self._check_gap(first.first_chunk or first.id)
            if first.chunks_before:  # it was joined from chunks, so it was taken alone
                completed = await complete_message(self._client, self._topic, first, self._timeout_s)
                self._taken = [] if completed is None else [completed]
            if (batch := self._collect(consumer)) is not None:
                self._end_check.invalidate()  # it is not received before somebody asks for it
                return batch
        if not self._has_begun and (chunks := consumer.incomplete.first_chunk_ids()):
            await self._check_gap(min(chunks))
        self._log_incomplete(consumer)
        self._has_ended = True
        return None

    async def _open(self) -> EntryConsumer:
        """Open the consumer at the position where reading begins."""
        ledger, entry, _ = self._begin
        start = EARLIEST if ledger < 0 else (ledger, max(entry, 0))
        subscription = replace(await self._client.reader_subscription(start), keeps_packed=True, max_bytes=self._max_bytes)
        consumer = await self._client.consumer(self._topic, subscription)
        if self._is_stopped:  # the cancellation came too late for the client, which would have closed the consumer
            await consumer.close()
            raise asyncio.CancelledError
        self._consumer = consumer
        self._end_check = EndCheck(consumer, self._has_more)
        return consumer

    async def _find_end(self, consumer: EntryConsumer, end: Position) -> None:
        """Set the end: at the present newest entry, if that is earlier, because a later end might never be reached."""
        last = await consumer.last_id()
        if last[1] < 0:
            self._known_entries.add_before(self._topic, end)
            self._check_deleted(EMPTY_PARTITION)
        self._end = min(end, (last[0], last[1] + 1, 0))
        self._known_entries.add_before(self._topic, self._end)

    def _take(self, consumer: EntryConsumer) -> list[Entry]:
        """Take the queued entries for one batch, up to half of the limit: the other half is for those that arrive meanwhile."""
        if consumer.queued:
            assert self._end_check is not None  # noqa: S101 - opened with the consumer
            self._end_check.invalidate()
            limit = max(1, self._max_bytes // 2)
            self._taken = consumer.take_many(min(MAX_BATCH_BYTES, limit), limit, MAX_ENTRIES)
        return self._taken

    def _collect_queued(self) -> Batch | None:
        """Return the next batch if that needs no task: entries are queued, and nothing has to be asked or completed first."""
        consumer = self._consumer
        if consumer is None or not self._has_begun or self._has_ended or self._taken or not self._take(consumer):
            return None
        if self._taken[0].chunks_before or (self._end is not None and self._next >= self._end):
            return None
        return self._collect(consumer)

    def _collect(self, consumer: EntryConsumer) -> Batch | None:
        """Make a batch of the taken entries, as far as they are in the range; None if none is.

        `_next` never decreases: a chunked message whose last chunks are missing may arrive after later entries.
        """
        taken, self._taken = self._taken, []
        entries: list[Entry] = []
        self._has_begun = self._has_begun or bool(taken)
        for entry in taken:
            self._next = max(self._next, (entry.ledger, entry.entry + 1, 0))
            is_within, is_last = self._restrict(entry)
            if is_within:
                entries.append(entry)
            if is_last:
                assert self._end is not None  # noqa: S101 - without an end no entry is the last
                self._next = self._end
                break
        if not entries:
            consumer.release_taken()
            return None
        return make_batch(self.partition, entries, following=self._next)

    def _restrict(self, entry: Entry) -> tuple[bool, bool]:
        """Leave out the messages of the entry that are outside of the range.

        Return two flags: a message is left; the range ends with this entry or before it.
        """
        begin, end = 0, None
        if lacks_last_chunk(entry):
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

    def _ends_at(self, chunk: EntryId) -> bool:
        """Return True if the range ends with this chunk or before it."""
        return self._end is not None and (chunk[0], chunk[1] + 1, 0) >= self._end

    # --- waiting and the end ----------------------------------------------------------------------------------------

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

    async def _has_more(self) -> bool:
        """Return True if a batch or an entry is not received, a message is incomplete, or the topic has more from `_next` on."""
        consumer = self._consumer
        if consumer is None or self._taken or self._holds_batch or consumer.queued or consumer.incomplete:
            return True
        last = await consumer.last_id()
        return bool(self._taken or consumer.queued or consumer.incomplete) or (last[1] >= 0 and last >= self._next[:2])

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
            self.partition,
            len(chunks),
            format_position((*min(chunks), 0)),
        )

    def _log_given_up(self, entry: Entry) -> None:
        """Log that a message which the consumer has given up is left out; of a message that began earlier, only for debugging."""
        log.log(
            logging.WARNING if entry.chunks[0][0].chunk_id == 0 else logging.DEBUG,
            "partition %s: the chunked message that begins at position %s is left out unless its last chunk follows: %s",
            self.partition,
            format_position((*(entry.first_chunk or entry.id), 0)),
            entry.defect,
        )

    # --- gaps -------------------------------------------------------------------------------------------------------

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
                f"partition {self.partition}: the messages from position {format_position(self._begin)}{until} were deleted "
                "before they were read",
                None if is_empty else first,
            )
        self._known_entries.warn_unknown(self._topic, self._begin)
