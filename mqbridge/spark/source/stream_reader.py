"""`spark.readStream`: batches between two offsets, which Spark stores in the checkpoint.

One process plans the batches and lives as long as the query. An exception there ends the query, so transient failures are
retried. Tasks read on executors. No consumer group is created: only the checkpoint records what was read.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.mirror.stop import StopFile
from mqbridge.spark.ranges.rows import build_ranges, divide_ranges
from mqbridge.spark.source.offsets import dump_offsets, load_offsets
from mqbridge.spark.source.planner import StreamPlanner
from mqbridge.spark.source.read import range_row, read_task
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.tasks import RangeRowsTask, RangeTask, plan_tasks

T = TypeVar("T")

STOP_POLL_S = 0.5
"""Interval between two checks of the stop file while a request waits for the cluster."""


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of a streaming query.

    Spark creates one instance in the planning process of a query, and one for its tasks, which call `read` only.
    """

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._created_planner: StreamPlanner | None = None
        """None in processes that only run tasks, and before the first call that needs a planner."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options as Spark's type. Spark passes it to `latestOffset`, or passes a limit of its own."""
        if self._settings.max_rows is not None:
            return ReadMaxRows(self._settings.max_rows)
        return ReadAllAvailable() if self._settings.max_bytes is None else ReadMaxBytes(self._settings.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the current end of the topics the end of the query. Raises ClusterError, ConfigError."""
        background_loop().run(self._planner.freeze())

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins, with the same result for every call. Raises ClusterError, ConfigError."""
        return dump_offsets(background_loop().run(self._planner.initial_offsets()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch, or `start` if there is nothing to read or the file of the option `stopFile` exists.

        Raises ClusterError, ConfigError, GapError.
        """
        stop = None if self._settings.stop_file is None else StopFile(Path(self._settings.stop_file))
        if stop is not None and stop.confirm():  # the file exists, and its creator is told that no further batch begins
            return start
        end = background_loop().run(_run_unless_stopped(self._planner.end_offsets(load_offsets(start), limit), stop))
        return start if end is None else dump_offsets(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known end of the topics, for the lag in Spark's progress reports; None before the first request."""
        has_bounds = self._planner.state.bounds_version > 0
        return dump_offsets(self._planner.state.latest()) if has_bounds else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch. The same two offsets always mean the same messages."""
        ends = load_offsets(end)
        begins = background_loop().run(self._planner.begin_offsets(load_offsets(start), ends))
        # A partition that was added since `start` has no begin yet: it is read from the next batch on.
        ranges = {key: (begins[key], position) for key, position in ends.items() if key in begins and begins[key] < position}
        tasks = background_loop().run(plan_tasks(self._planner.queries, self._settings, ranges))
        if self._settings.range_tasks is None or not self._settings.reads_ranges:
            return list(tasks)  # one range per task; only with mode=ranges can the option `rangeTasks` group several
        rows = [range_row(self._settings, task) for task in tasks]
        return [RangeRowsTask(tuple(group)) for group in divide_ranges(rows, self._settings.range_tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task."""
        if isinstance(partition, RangeRowsTask):
            return iter([build_ranges(partition.rows)])
        if isinstance(partition, RangeTask):
            return read_task(self._settings, partition)
        return iter(())  # Spark makes an empty partition for a batch without tasks

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: only the checkpoint records what was read. Spark calls this one batch late, and not for the last batch."""

    @property
    def _planner(self) -> StreamPlanner:
        if self._created_planner is None:
            self._created_planner = StreamPlanner(self._settings)
        return self._created_planner


async def _run_unless_stopped(work: Coroutine[Any, Any, T], stop: StopFile | None) -> T | None:
    """Return the result of `work`. After a stop request, cancel `work`, which may retry for days, and return None.

    Without a stop file, `stop` is None, and `work` is never cancelled.
    """
    task: asyncio.Task[T] = spawn(work, name="planning the end of a batch", log_errors=False)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=STOP_POLL_S)
            if not task.done() and stop is not None and stop.confirm():
                return None
        return task.result()
    finally:
        await cancel(task)
