"""What a task does: read its range, as record batches, and see to it that nothing is missing or comes twice."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Protocol

import pyarrow as pa

from mqbridge.adapter.cluster import Cluster
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.message import Batch, Message, Partition, format_position
from mqbridge.spark.arrow.rows import MAX_ROWS, RowBuilder
from mqbridge.spark.background_loop import portal
from mqbridge.spark.ranges.rows import RangeRow, build_ranges
from mqbridge.spark.source.cluster_queries import bounds_of
from mqbridge.spark.source.data_loss import WHAT_TO_DO
from mqbridge.spark.source.offsets import spoken
from mqbridge.spark.source.retries import GONE_S, Patience
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.tasks import RangeTask

log = logging.getLogger(__name__)

Reach = Callable[[], AbstractAsyncContextManager[Cluster]]
"""Makes the cluster available, connected."""
GATHERED_BYTES = 1 << 20
"""Small batches are read together up to this, and the portal holds a few of such ahead: memory of a task is bounded by it.

By measurement, CPU of reading and building rows of 1 KB: 3.2 us with 1 MiB, 3.7 with 512 KiB or 2 MiB, 4.3 with 4 MiB, which
no cache holds and for which the kernel hands out fresh pages every time.
"""


def read_task(settings: SourceSettings, task: RangeTask) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Raises GapError, ClusterError."""
    if settings.is_ranges:
        yield build_ranges([range_row(settings, task)])
        return
    rows = RowBuilder(binary_properties=settings.binary_properties, is_part=task.is_part)
    for batch in portal().iterate(_task_batches(settings, task)):
        yield from rows.build_slices(batch)


def range_row(settings: SourceSettings, task: RangeTask) -> RangeRow:
    """The row that says what a task has to move."""
    partition = Partition(settings.cluster.name, *task.key, task.index)
    return RangeRow(partition, task.begin, task.end, task.is_part, task.rows, task.size)


async def _task_batches(settings: SourceSettings, task: RangeTask) -> AsyncGenerator[Batch, None]:
    reading = RangeReading(settings, task, lambda: portal().cluster(settings.cluster))
    async with aclosing(reading.batches()) as batches, aclosing(gathered(batches)) as whole:
        async for batch in whole:
            yield batch


class ReadingRules(Protocol):
    """What a range is read by: the options of the same names."""

    @property
    def fail_on_data_loss(self) -> bool:
        """`failOnDataLoss`."""

    @property
    def retry_s(self) -> float:
        """`retryTimeout`."""


class RangeReading:
    """The reading of one range; it goes on where it was when the cluster failed for a while."""

    def __init__(self, settings: ReadingRules, task: RangeTask, reach: Reach) -> None:
        self._settings, self._task, self._reach = settings, task, reach
        self._at = task.begin
        """Everything before it was handed out, or is lost."""
        self._missing_since: float | None = None

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """The batches, in order and complete. Raises GapError, ClusterError."""
        patience, is_looked_at = Patience(self._settings.retry_s), False
        while self._at < self._task.end:
            try:
                async with self._reach() as cluster:
                    async with aclosing(cluster.read(*self._task.key, self._at, self._task.end)) as batches:
                        async for batch in batches:
                            self._advance(batch)
                            patience.worked()
                            is_looked_at, self._missing_since = False, None
                            yield batch
                    if is_looked_at or self._at >= self._task.end:
                        return  # where it was looked at, compaction has left nothing in the rest
                    await self._look_behind(cluster)
                    is_looked_at = True
                    if not self._is_dense:
                        return
            except GapError as gap:
                self._pass_by(gap)
            except ClusterError as error:
                if error.failure is Failure.FATAL and await self._is_missing():
                    if self._is_gone():
                        self._pass_by(GapError(f"the partition is not there any more: {error}"))
                        continue
                    error = ClusterError(str(error))
                else:
                    self._missing_since = None
                await patience.wait(error, f"reading {spoken(self._task.key)}")

    def _advance(self, batch: Batch) -> None:
        """Reading it again from there on is what helps against batches that come twice or go back."""
        if batch.first < self._at or batch.next <= self._at or batch.next > self._task.end:
            first, following = format_position(batch.first), format_position(batch.next)
            raise ClusterError(
                f"{first} to {following} came behind {format_position(self._at)}, of {format_position(self._task.end)}"
            )
        self._at = batch.next

    @property
    def _is_dense(self) -> bool:
        """Whether the last message of a range ends where the range does; elsewhere the rest may hold none."""
        return len(self._at) == 1

    async def _look_behind(self, cluster: Cluster) -> None:
        """Why the range ended early. Raises GapError where what is missing is not held any more.

        A partition that ends before the range has lost messages, as of a broker's memory, and gives their positions to others.
        """
        topic, name = self._task.key
        held = (await cluster.bounds(topic)).get(name)
        if held is None:
            raise ClusterError(f"{spoken(self._task.key)} is not there", Failure.FATAL)
        if held.next < self._task.end and (self._is_dense or held.first < held.next):
            raise GapError(f"the partition ends before {format_position(self._task.end)} now")
        if not self._is_dense and held.first == held.next and self._at == self._task.begin:
            raise GapError("the partition holds nothing now")  # while it was planned there was something
        if self._is_dense and held.first > self._at:
            raise GapError(f"the partition begins at {format_position(held.first)} now", held.first)

    async def _is_missing(self) -> bool:
        """Whether the partition is not there at the moment: a server that restarts takes its partitions along meanwhile."""
        topic, name = self._task.key
        try:
            async with self._reach() as cluster:
                return name not in (await bounds_of(cluster, topic) or {})
        except ClusterError as error:
            return error.failure is not Failure.FATAL

    def _is_gone(self) -> bool:
        """Whether the partition has been missing for so long that it is not waited for any more."""
        now = asyncio.get_running_loop().time()
        self._missing_since = now if self._missing_since is None else self._missing_since
        return now - self._missing_since >= min(GONE_S, self._settings.retry_s)

    def _pass_by(self, gap: GapError) -> None:
        """Go on behind a gap, if that is wanted."""
        begin, end = self._at, self._task.end
        if self._settings.fail_on_data_loss:
            where = f"{spoken(self._task.key)} was to be read from {format_position(begin)} to {format_position(end)}"
            raise GapError(f"{where}: {gap}. {WHAT_TO_DO}") from gap
        self._at = end if gap.resume is None or gap.resume <= begin else min(gap.resume, end)
        log.warning("going on at %s without what was lost: %s", format_position(self._at), gap)


async def gathered(batches: AsyncIterable[Batch]) -> AsyncGenerator[Batch, None]:
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
