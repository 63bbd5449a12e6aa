"""Reads the range of a task as record batches, and ensures that no message is missing or repeated."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Protocol

import pyarrow as pa

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.reading import read
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.message import Batch, Message, Partition, format_position
from mqbridge.spark.arrow.rows import MAX_ROWS, RowBuilder
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.ranges.rows import RangeRow, build_ranges
from mqbridge.spark.source.data_loss import DATA_LOSS_HINT
from mqbridge.spark.source.offsets import describe_partition
from mqbridge.spark.source.retries import DELETED_TIMEOUT_S, RetryTimer
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.single_requests import find_bounds
from mqbridge.spark.source.tasks import RangeTask

log = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[Cluster]]
"""Returns a context that provides the connected cluster."""
MERGED_BATCH_BYTES = 1 << 20
"""Small batches are merged while the memory that they use together (`Batch.held_bytes`) is at most this.

Measured CPU time to read and build a row of 1 KB: 3.2 us with 1 MiB, 3.7 us with 512 KiB or 2 MiB, 4.3 us with 4 MiB. A batch of
4 MiB fits into no CPU cache, and the kernel allocates fresh pages for it every time.
"""


def read_task(settings: SourceSettings, task: RangeTask) -> Iterator[pa.RecordBatch]:
    """Read the rows of a task. Raises GapError, ClusterError."""
    if settings.reads_ranges:  # mode=ranges: one row that describes the range, whose messages the sink reads itself
        yield build_ranges([range_row(settings, task)])
        return
    # is_part: other tasks of the batch read other ranges of the same partition
    builder = RowBuilder(cluster=settings.cluster.identity, binary_properties=settings.binary_properties, is_part=task.is_part)
    for batch in background_loop().iterate(_task_batches(settings, task)):
        yield from builder.build_slices(batch)


def range_row(settings: SourceSettings, task: RangeTask) -> RangeRow:
    """Return the row that describes the range of a task, for `mode=ranges`."""
    partition = Partition(settings.cluster.name, *task.key, task.index)
    return RangeRow(
        partition, task.begin, task.end, is_part=task.is_part, estimated_messages=task.rows, estimated_bytes=task.size
    )


async def _task_batches(settings: SourceSettings, task: RangeTask) -> AsyncGenerator[Batch, None]:
    reader = RangeReader(settings, task, lambda: background_loop().cluster(settings.cluster))
    async with aclosing(reader.batches()) as batches, aclosing(merge_small_batches(batches)) as merged_batches:
        async for batch in merged_batches:
            yield batch


class ReadRules(Protocol):
    """The two options that a RangeReader obeys."""

    @property
    def fail_on_data_loss(self) -> bool:
        """Option `failOnDataLoss`: whether a gap is an error. False: the gap is logged and skipped."""

    @property
    def retry_s(self) -> float:
        """Option `retryTimeout`: how many seconds to retry while no batch arrives; then the read fails."""


class RangeReader:
    """Reads the messages of one range. After a transient failure of the cluster it resumes at its last position."""

    def __init__(self, rules: ReadRules, task: RangeTask, connect: Connect) -> None:
        self._rules, self._task, self._connect = rules, task, connect
        self._position = task.begin
        """Where the next read begins: all messages before it were returned or are lost."""
        self._missing_since: float | None = None
        """Loop time of the first attempt that found the partition missing; None if the last attempt did not."""

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Read all batches in order. Raises GapError, ClusterError.

        A read may end before the end of the range. Then the bounds of the partition show whether messages were lost. If they show
        no loss, the next step depends on the positions. If they have several numbers, the last message may end before the range
        does, so the range counts as complete. If they are single numbers, a second read must find no message either.
        """
        retry_timer, is_end_checked = RetryTimer(self._rules.retry_s), False
        while self._position < self._task.end:
            try:
                async with self._connect() as cluster:
                    async with aclosing(read(cluster, *self._task.key, self._position, self._task.end)) as batches:
                        async for batch in batches:
                            self._advance(batch)
                            retry_timer.reset()
                            is_end_checked, self._missing_since = False, None
                            yield batch
                    # If `is_end_checked`, this was the second read: compaction removed all messages up to the end of the range.
                    if is_end_checked or self._position >= self._task.end:
                        return
                    await self._check_early_end(cluster)
                    is_end_checked = True
                    if not self._has_dense_positions:
                        return
            except GapError as gap:
                self._skip_gap(gap)
            except ClusterError as error:
                if error.failure is Failure.FATAL and await self._may_be_missing():
                    if self._is_missing_too_long():
                        self._skip_gap(GapError(f"the partition does not exist any more: {error}"))
                        continue
                    error = ClusterError(str(error))  # not FATAL: the partition may return, so the read is retried
                else:
                    self._missing_since = None
                # Raises a FATAL error at once, so an error of a partition that exists is not retried.
                await retry_timer.wait(error, f"reading {describe_partition(self._task.key)}")

    def _advance(self, batch: Batch) -> None:
        """Move the position behind a batch. Raises ClusterError if it is out of order, after which the read is retried."""
        if batch.first < self._position or batch.next <= self._position or batch.next > self._task.end:
            first, following = format_position(batch.first), format_position(batch.next)
            raise ClusterError(
                f"out-of-order batch of {describe_partition(self._task.key)}: it has positions {first} to {following}, but "
                f"reading was to continue at {format_position(self._position)} and end at {format_position(self._task.end)}"
            )
        self._position = batch.next

    @property
    def _has_dense_positions(self) -> bool:
        """Whether positions are single numbers. A complete read then ends exactly at the end of the range, unless compacted.

        With positions of several numbers, the last message may end before the range does.
        """
        return len(self._position) == 1

    async def _check_early_end(self, cluster: Cluster) -> None:
        """Find out why the read ended before the end of the range. Raises GapError if messages of the range were deleted.

        Raises ClusterError, FATAL if the partition is missing.
        """
        topic, name = self._task.key
        bounds = (await cluster.bounds(topic)).get(name)  # raises a FATAL error if the whole topic is missing
        if bounds is None:
            raise ClusterError(f"{describe_partition(self._task.key)} does not exist", Failure.FATAL)
        # If the partition now ends before the end of the range, its last messages were lost, for example messages that a broker
        # had only in memory. An empty partition with positions of several numbers may report an earlier end without a loss.
        if bounds.next < self._task.end and bounds.is_known:
            raise GapError(f"{describe_partition(self._task.key)} now ends before {format_position(self._task.end)}")
        # Such an empty partition lost the range if nothing of it was read: the range had messages when the task was planned.
        if not bounds.is_known and self._position == self._task.begin:
            raise GapError(f"{describe_partition(self._task.key)} is empty now")
        # The message at the position was deleted. With positions of several numbers, a later begin is normal: the position may be
        # the end of a storage segment that was read completely and then deleted.
        if self._has_dense_positions and bounds.first > self._position:
            problem = f"{describe_partition(self._task.key)} now begins at {format_position(bounds.first)}"
            raise GapError(problem, bounds.first)

    async def _may_be_missing(self) -> bool:
        """Return whether the cluster does not list the partition now, or cannot be asked because of a transient failure.

        The partitions of a restarting server are missing for a while. A topic that does not exist has no partitions.
        """
        topic, name = self._task.key
        try:
            async with self._connect() as cluster:
                return name not in (await find_bounds(cluster, topic) or {})
        except ClusterError as error:
            return error.failure is not Failure.FATAL

    def _is_missing_too_long(self) -> bool:
        """Return whether the partition, missing now, counts as deleted: after DELETED_TIMEOUT_S, or `retry_s` if less.

        Sets `_missing_since` if the partition was not missing before.
        """
        now = asyncio.get_running_loop().time()
        self._missing_since = now if self._missing_since is None else self._missing_since
        return now - self._missing_since >= min(DELETED_TIMEOUT_S, self._rules.retry_s)

    def _skip_gap(self, gap: GapError) -> None:
        """Move the position behind a gap if failOnDataLoss=false, else raise GapError."""
        begin, end = self._position, self._task.end
        if self._rules.fail_on_data_loss:
            partition = describe_partition(self._task.key)
            failed = f"reading {partition} from {format_position(begin)} to {format_position(end)} failed"
            raise GapError(f"{failed}: {gap}. {DATA_LOSS_HINT}") from gap
        # If the gap does not say where messages follow, the remaining range counts as lost.
        self._position = end if gap.resume is None or gap.resume <= begin else min(gap.resume, end)
        partition, resume_position = describe_partition(self._task.key), format_position(self._position)
        log.warning("data loss in %s, reading continues at %s: %s", partition, resume_position, gap)


async def merge_small_batches(batches: AsyncIterable[Batch]) -> AsyncGenerator[Batch, None]:
    """Merge small batches of one partition, because a record batch of few rows costs as much as one of many."""
    pending: list[Batch] = []
    rows = held_bytes = 0
    async for batch in batches:
        if pending and (rows + batch.count > MAX_ROWS or held_bytes + batch.held_bytes > MERGED_BATCH_BYTES):
            yield _merge(pending)
            pending = []
            rows = held_bytes = 0
        pending.append(batch)
        rows, held_bytes = rows + batch.count, held_bytes + batch.held_bytes
    if pending:
        yield _merge(pending)


def _merge(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]

    def messages() -> list[Message]:
        return [message for batch in batches for message in batch.messages]

    # `messages` decodes the batches only when it is called.
    count, size, held_bytes = (sum(getattr(batch, name) for batch in batches) for name in ("count", "size", "held_bytes"))
    first, last = batches[0], batches[-1]
    return Batch(first.partition, messages, count=count, size=size, first=first.first, next=last.next, held_bytes=held_bytes)
