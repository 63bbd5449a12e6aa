"""Reading a partition by positions, with a reader: the broker keeps nothing of it, and no group moves."""

import asyncio
from collections.abc import AsyncGenerator

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Batch, Partition, Position, format_position
from mqbridge.pulsar.adapter.batches import MAX_ENTRIES, leave_out, make_batch
from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.consumer import Consumer
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EARLIEST

EMPTY: Position = (-1, -1, 0)
"""Both bounds of a partition that never held anything: before every position."""
BATCH_BYTES = 1 << 20
END_CHECK_S = 1.0
"""How often the broker is asked whether there is more, while a range is not complete and nothing comes."""


async def bounds_of(client: PulsarClient, topic: str, timeout_s: float) -> Bounds:
    """First and next position of a concrete topic. A topic that begins with a message in chunks begins at the first of them."""
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
        return Bounds((*(first.first_chunk or first.place), 0), after)
    except TimeoutError as error:
        raise ClusterError(f"the first entry of {topic} did not come") from error
    finally:
        await consumer.close()


class RangeReader:
    """Reads one concrete topic from `begin` up to `end`; see `Cluster.read`."""

    def __init__(
        self, client: PulsarClient, partition: Partition, topic: str, begin: Position, end: Position | None, timeout_s: float
    ) -> None:
        self._client, self._partition, self._topic, self._timeout_s = client, partition, topic, timeout_s
        self._begin, self._end = whole_position(begin), None if end is None else whole_position(end)
        self._cut_off: Entry | None = None
        """A message in chunks that comes next, and of which the first lie before the range."""

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """The batches."""
        ledger, entry, _ = self._begin
        consumer = await self._client.reader(self._topic, EARLIEST if ledger < 0 else (ledger, max(entry, 0)))
        try:
            if self._end is not None:
                last = await consumer.last_id()
                self._end = min(self._end, (last[0], last[1] + 1, 0))
            position = self._begin
            while self._end is None or position < self._end:
                entry_, self._cut_off = self._cut_off or consumer.take(), None
                if entry_ is None:
                    if self._end is not None and not await consumer.has_more() and not consumer.waiting:
                        return
                    await consumer.changed(END_CHECK_S)
                    if consumer.ended is not None and not consumer.waiting:
                        raise consumer.ended
                    continue
                if position is self._begin:
                    await self._check_gap(entry_)
                if entry_.chunks_before:
                    entry_ = await self._joined(entry_)
                batch, position = self._gather(consumer, entry_, position)
                if batch is not None:
                    yield batch
        finally:
            await consumer.close()

    def _gather(self, consumer: Consumer, entry: Entry | None, following: Position) -> tuple[Batch | None, Position]:
        """This entry and those that wait behind it, as far as they are in the range; and where the range goes on.

        That never goes back: a message whose last chunks never came may come behind later ones.
        """
        entries: list[Entry] = []
        size = 0
        while entry is not None:
            following = max(following, (entry.ledger, entry.entry + 1, 0))
            is_within, is_last = self._cut(entry)
            if is_within:
                entries.append(entry)
                size += entry.size
            if is_last:
                assert self._end is not None  # noqa: S101 - or none would be the last
                following = self._end
            if is_last or size >= BATCH_BYTES or len(entries) >= MAX_ENTRIES:
                break
            entry = consumer.take()
            if entry is not None and entry.chunks_before:
                self._cut_off = entry
                break
        return (make_batch(self._partition, entries, following=following) if entries else None), following

    def _cut(self, entry: Entry) -> tuple[bool, bool]:
        """Leave out of it what is not in the range: whether anything is left, and whether the range ends here."""
        begin, end = 0, None
        if entry.place == self._begin[:2]:
            begin = self._begin[2]
        elif entry.place < self._begin[:2]:
            return False, False
        is_last = False
        if self._end is not None:
            if entry.place > self._end[:2] or (entry.place == self._end[:2] and self._end[2] == 0):
                return False, True
            if entry.place == self._end[:2]:
                end = self._end[2]
                is_last = True
            else:
                is_last = (entry.ledger, entry.entry + 1, 0) >= self._end
        return leave_out(entry, begin, end), is_last

    async def _joined(self, entry: Entry) -> Entry:
        """A message in chunks of which the first lie before the range, to which its last one belongs: read from further back.

        Chunks of others may lie between its own, so it may begin before the nearest place; and in the ledger before.
        """
        ledger, first = entry.first_chunk or entry.place
        nearest = (ledger, first - entry.chunks_before)
        for start in dict.fromkeys((nearest, (ledger, 0), EARLIEST)):
            if start[1] < 0 and start != EARLIEST:
                continue
            consumer = await self._client.reader(self._topic, start)
            try:
                found = await self._receive(consumer)
                while found.place < entry.place:
                    found = await self._receive(consumer)
            finally:
                await consumer.close()
            if found.place == entry.place and not found.chunks_before:
                return found
        return entry

    async def _receive(self, consumer: Consumer) -> Entry:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await consumer.receive()
        except TimeoutError as error:
            raise ClusterError(f"an entry of {self._topic} did not come") from error

    async def _check_gap(self, entry: Entry) -> None:
        """A ledger loses nothing of itself: only one that is gone, with the beginning in it, is a gap."""
        if 0 <= self._begin[0] < (entry.first_chunk or entry.place)[0]:
            first = (await bounds_of(self._client, self._topic, self._timeout_s)).first
            if self._begin[0] < first[0]:
                raise GapError(
                    f"{self._partition} begins at {format_position(first)}, behind {format_position(self._begin)}", first
                )


def whole_position(position: Position) -> Position:
    """With its index in the batch, which may be left out."""
    ledger, entry, *index = position
    return (ledger, entry, index[0] if index else 0)
