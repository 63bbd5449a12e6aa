"""What a task does: read its range, as record batches, and see to it that nothing is missing or comes twice."""

import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator
from contextlib import aclosing

import pyarrow as pa

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import ClusterError, GapError, RemoteProtocolError
from mqbridge.message import Batch, Message, Partition, format_position
from mqbridge.spark.arrow.rows import MAX_ROWS, RowBuilder
from mqbridge.spark.portal import portal
from mqbridge.spark.pump.ranges import RangeRow, build_ranges
from mqbridge.spark.source.losses import WHAT_TO_DO
from mqbridge.spark.source.offsets import spoken
from mqbridge.spark.source.patience import Patience
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.tasks import RangeTask

log = logging.getLogger(__name__)

GATHERED_BYTES = 4 << 20
"""Small batches are read together up to this, and the portal holds a few of such ahead: memory of a task is bounded by it."""


def read_task(settings: SourceSettings, task: RangeTask) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Raises GapError, ClusterError."""
    if settings.is_ranges:
        partition = Partition(settings.cluster.name, *task.key, task.index)
        yield build_ranges([RangeRow(partition, task.begin, task.end, task.is_part, task.rows, task.size)])
        return
    rows = RowBuilder(binary_properties=settings.binary_properties, is_part=task.is_part)
    for batch in portal().iterate(_task_batches(settings, task)):
        yield from rows.pieces(batch)


async def _task_batches(settings: SourceSettings, task: RangeTask) -> AsyncGenerator[Batch, None]:
    async with (
        portal().cluster(settings.cluster) as cluster,
        aclosing(RangeReading(settings, task, cluster).batches()) as batches,
    ):
        async for batch in gathered(batches):
            yield batch


class RangeReading:
    """The reading of one range; it goes on where it was when the cluster failed for a while."""

    def __init__(self, settings: SourceSettings, task: RangeTask, cluster: Cluster) -> None:
        self._settings, self._task, self._cluster = settings, task, cluster
        self._at = task.begin
        """Everything before it was handed out, or is lost."""

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """The batches, in order and complete. Raises GapError, ClusterError; ProtocolError where they are in no order."""
        patience, is_looked_at = Patience(self._settings.retry_s), False
        while self._at < self._task.end:
            try:
                async with aclosing(self._cluster.read(*self._task.key, self._at, self._task.end)) as batches:
                    async for batch in batches:
                        self._advance(batch)
                        patience.worked()
                        yield batch
            except GapError as gap:
                self._pass_by(gap)
                continue
            except ClusterError as error:
                await patience.wait(error, f"reading {spoken(self._task.key)}")
                continue
            if self._is_read():
                return
            if is_looked_at:  # it holds the range, twice it had nothing there: compaction has left no message in it
                return
            await self._look_behind()
            is_looked_at = True

    def _advance(self, batch: Batch) -> None:
        if batch.first < self._at or batch.next <= batch.first or batch.next > self._task.end:
            raise RemoteProtocolError(
                f"{spoken(self._task.key)} was read up to {format_position(self._at)}, of {format_position(self._task.end)}, and "
                f"gave {format_position(batch.first)} to {format_position(batch.next)} next"
            )
        self._at = batch.next

    def _is_read(self) -> bool:
        """Whether it is known that nothing is missing: only where positions are dense does their end show."""
        return self._at >= self._task.end or len(self._at) > 1

    async def _look_behind(self) -> None:
        """Why the range ended early. Raises GapError where what is missing is not held any more."""
        topic, name = self._task.key
        held = (await self._cluster.bounds(topic)).get(name)
        if held is None or held.next < self._task.end:
            self._pass_by(GapError(f"{spoken(self._task.key)} ends before {format_position(self._task.end)} now"))
        elif held.first > self._at:
            self._pass_by(GapError(f"{spoken(self._task.key)} begins at {format_position(held.first)} now", held.first))

    def _pass_by(self, gap: GapError) -> None:
        """Go on behind a gap, if that is wanted."""
        begin, end = self._at, self._task.end
        if self._settings.fail_on_data_loss:
            raise GapError(
                f"{spoken(self._task.key)} was to be read from {format_position(begin)} to {format_position(end)}: {gap}. {WHAT_TO_DO}"
            ) from gap
        self._at = end if gap.resume is None or gap.resume <= begin else min(gap.resume, end)
        log.warning("going on at %s without what was lost: %s", format_position(self._at), gap)


async def gathered(batches: AsyncIterable[Batch]) -> AsyncIterator[Batch]:
    """The batches of one partition, small ones put together: a record batch of few rows costs as much as one of many."""
    waiting: list[Batch] = []
    rows = held = 0
    async for batch in batches:
        if waiting and (rows + batch.count > MAX_ROWS or held + batch.held_bytes > GATHERED_BYTES):
            yield _together(waiting)
            waiting, rows, held = [], 0, 0
        waiting.append(batch)
        rows, held = rows + batch.count, held + batch.held_bytes
    if waiting:
        yield _together(waiting)


def _together(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]

    def messages() -> list[Message]:
        return [message for batch in batches for message in batch.messages]

    count, size, held = (sum(getattr(batch, name) for batch in batches) for name in ("count", "size", "held_bytes"))
    first, last = batches[0], batches[-1]
    return Batch(first.partition, messages, count=count, size=size, first=first.first, next=last.next, held_bytes=held)
