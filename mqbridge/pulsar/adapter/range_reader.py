"""Reads a range of a partition by positions with a non-durable reader: the broker stores nothing, and no group moves."""

import asyncio
from collections.abc import AsyncGenerator

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Batch, Partition, Position, format_position
from mqbridge.pulsar.adapter.batches import MAX_ENTRIES, keep_messages, make_batch
from mqbridge.pulsar.client.base_client import BaseClient
from mqbridge.pulsar.client.entry_consumer import EntryConsumer
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EARLIEST

EMPTY: Position = (-1, -1, 0)
"""Both bounds of a partition that never held a message: before every position."""
BATCH_BYTES = 1 << 20
END_CHECK_S = 1.0
"""Interval between checks for the end of the topic while a range is incomplete and no entry arrives, in seconds."""


async def bounds_of(client: BaseClient, topic: str, timeout_s: float) -> Bounds:
    """Return first and next position of a concrete topic. If its first message is chunked, it begins at the first chunk."""
    consumer = await client.reader(topic, EARLIEST)
    try:
        ledger, entry = await consumer.last_id()
        if entry < 0:
            return Bounds(EMPTY, EMPTY)
        after: Position = (ledger, entry + 1, 0)
        if not await consumer.has_more():
            return Bounds(after, after)
        async with asyncio.timeout(timeout_s):
            first = await consumer.receive()
        return Bounds((*(first.first_chunk or first.id), 0), after)
    except TimeoutError as error:
        raise ClusterError(f"the first entry of {topic} did not arrive within {timeout_s:g} s") from error
    finally:
        await consumer.close()


class RangeReader:
    """Reads one concrete topic from `begin` up to `end`; see `Cluster.read`."""

    def __init__(
        self, client: BaseClient, partition: Partition, topic: str, begin: Position, end: Position | None, timeout_s: float
    ) -> None:
        self._client, self._partition, self._topic, self._timeout_s = client, partition, topic, timeout_s
        self._begin, self._end = whole_position(begin), None if end is None else whole_position(end)
        self._partial_message: Entry | None = None
        """The next entry: a chunked message whose first chunks lie before the range."""

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield the batches of the range."""
        ledger, entry, _ = self._begin
        consumer = await self._client.reader(self._topic, EARLIEST if ledger < 0 else (ledger, max(entry, 0)))
        try:
            if self._end is not None:
                last = await consumer.last_id()
                self._end = min(self._end, (last[0], last[1] + 1, 0))
            position = self._begin
            while self._end is None or position < self._end:
                next_entry, self._partial_message = self._partial_message or consumer.take(), None
                if next_entry is None:
                    if self._end is not None and not await consumer.has_more() and not consumer.waiting:
                        return
                    await consumer.changed(END_CHECK_S)
                    if consumer.ended is not None and not consumer.waiting:
                        raise consumer.ended
                    continue
                if position is self._begin:
                    await self._check_gap(next_entry)
                if next_entry.chunks_before:
                    next_entry = await self._complete_message(next_entry)
                batch, position = self._collect(consumer, next_entry, position)
                if batch is not None:
                    yield batch
        finally:
            await consumer.close()

    def _collect(self, consumer: EntryConsumer, entry: Entry | None, following: Position) -> tuple[Batch | None, Position]:
        """Collect this entry and the waiting ones in the range into a batch; return it and the next position of the range.

        The next position never decreases: a message whose last chunks are missing may arrive after later entries.
        """
        entries: list[Entry] = []
        size = 0
        while entry is not None:
            following = max(following, (entry.ledger, entry.entry + 1, 0))
            is_within, is_last = self._restrict(entry)
            if is_within:
                entries.append(entry)
                size += entry.size
            if is_last:
                assert self._end is not None  # noqa: S101 - else no entry is the last
                following = self._end
            if is_last or size >= BATCH_BYTES or len(entries) >= MAX_ENTRIES:
                break
            entry = consumer.take()
            if entry is not None and entry.chunks_before:
                self._partial_message = entry
                break
        return (make_batch(self._partition, entries, following=following) if entries else None), following

    def _restrict(self, entry: Entry) -> tuple[bool, bool]:
        """Leave out the messages outside of the range; return whether any is left, and whether the range ends here."""
        begin, end = 0, None
        if entry.id == self._begin[:2]:
            begin = self._begin[2]
        elif entry.id < self._begin[:2]:
            return False, False
        is_last = False
        if self._end is not None:
            if entry.id > self._end[:2] or (entry.id == self._end[:2] and self._end[2] == 0):
                return False, True
            if entry.id == self._end[:2]:
                end = self._end[2]
                is_last = True
            else:
                is_last = (entry.ledger, entry.entry + 1, 0) >= self._end
        return keep_messages(entry, begin, end), is_last

    async def _complete_message(self, entry: Entry) -> Entry:
        """Read a chunked message whose last chunk is in the range and whose first chunks lie before it, from further back.

        Chunks of other messages may lie between its own, so it may begin before the nearest start, or in an earlier ledger.
        """
        ledger, first = entry.first_chunk or entry.id
        nearest_start = (ledger, first - entry.chunks_before)
        for start in dict.fromkeys((nearest_start, (ledger, 0), EARLIEST)):
            if start[1] < 0 and start != EARLIEST:
                continue
            consumer = await self._client.reader(self._topic, start)
            try:
                found = await self._receive(consumer)
                while found.id < entry.id:
                    found = await self._receive(consumer)
            finally:
                await consumer.close()
            if found.id == entry.id and not found.chunks_before:
                return found
        return entry

    async def _receive(self, consumer: EntryConsumer) -> Entry:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await consumer.receive()
        except TimeoutError as error:
            raise ClusterError(f"the next entry of {self._topic} did not arrive within {self._timeout_s:g} s") from error

    async def _check_gap(self, entry: Entry) -> None:
        """Raise GapError if the ledger of the range's begin is deleted; a ledger never loses single entries."""
        if 0 <= self._begin[0] < (entry.first_chunk or entry.id)[0]:
            first = (await bounds_of(self._client, self._topic, self._timeout_s)).first
            if self._begin[0] < first[0]:
                raise GapError(
                    f"{self._partition} begins at {format_position(first)}, after {format_position(self._begin)}", first
                )


def whole_position(position: Position) -> Position:
    """Return the position with its index in the batch, 0 if it has none."""
    ledger, entry, *index = position
    return (ledger, entry, index[0] if index else 0)
