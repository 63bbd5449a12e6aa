"""`spark.readStream`: batches between two offsets, which Spark keeps in the checkpoint.

Offsets are found in one process that lives as long as the query; an exception there ends the query, so failures that may pass are
waited for. Tasks read on executors. A group is never made: the checkpoint alone says what was read.
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
from mqbridge.spark.background_loop import portal
from mqbridge.spark.mirror.stop import StopFile
from mqbridge.spark.ranges.rows import build_ranges, divide_ranges
from mqbridge.spark.source.offsets import dump_offsets, load_offsets
from mqbridge.spark.source.planner import StreamPlanner
from mqbridge.spark.source.read import range_row, read_task
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.tasks import RangesTask, RangeTask, tasks_of

T = TypeVar("T")

LOOK_S = 0.5
"""Between two looks for a stop while the cluster is waited for."""


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One is made in the source's process of a query, and one for its tasks, which only read."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._made: StreamPlanner | None = None

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; Spark hands it back to `latestOffset`, or a limit of its own."""
        if self._settings.max_rows is not None:
            return ReadMaxRows(self._settings.max_rows)
        return ReadAllAvailable() if self._settings.max_bytes is None else ReadMaxBytes(self._settings.max_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read what is there now, and end. Raises ClusterError, ConfigError."""
        portal().run(self._planner.freeze())

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins, the same each time. Raises ClusterError, ConfigError."""
        return dump_offsets(portal().run(self._planner.initial()))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; `start` where there is nothing. Raises ClusterError, ConfigError, GapError."""
        stop = None if self._settings.stop_file is None else StopFile(Path(self._settings.stop_file))
        if stop is not None and stop.obey():
            return start
        end = portal().run(_unless_stopped(self._planner.end(load_offsets(start), limit), stop))
        return start if end is None else dump_offsets(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What was there when the cluster was asked last, for people who watch the lag."""
        return dump_offsets(self._planner.state.latest()) if self._planner.state.looks else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of a batch: whatever the cluster holds now, the same two offsets are the same messages."""
        ends = load_offsets(end)
        begins = portal().run(self._planner.begins(load_offsets(start), ends))
        ranges = {key: (begins[key], position) for key, position in ends.items() if key in begins and begins[key] < position}
        tasks = portal().run(tasks_of(self._planner.view, self._settings, ranges))
        if self._settings.range_tasks is None or not self._settings.is_ranges:
            return list(tasks)
        rows = [range_row(self._settings, task) for task in tasks]
        return [RangesTask(tuple(ranges)) for ranges in divide_ranges(rows, self._settings.range_tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        if isinstance(partition, RangesTask):
            return iter([build_ranges(partition.rows)])
        return read_task(self._settings, partition) if isinstance(partition, RangeTask) else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: Spark calls it one batch late, and never for the last one of a run."""

    @property
    def _planner(self) -> StreamPlanner:
        if self._made is None:
            self._made = StreamPlanner(self._settings)
        return self._made


async def _unless_stopped(work: Coroutine[Any, Any, T], stop: StopFile | None) -> T | None:
    """Its result; None once a stop was asked for: a cluster that is away may be waited for for days."""
    working: asyncio.Task[T] = spawn(work, "the end of a batch", quiet=True)
    try:
        while not working.done():
            await asyncio.wait([working], timeout=LOOK_S)
            if not working.done() and stop is not None and stop.obey():
                return None
        return working.result()
    finally:
        await cancel(working)
