"""Plans tasks from ranges: one task per partition, or several where the options ask for more or smaller tasks."""

import heapq
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from mqbridge.adapter.tools.unit_ranges import count_units, split_evenly
from mqbridge.adapter.topics import UnitRange
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.message import Position
from mqbridge.spark.ranges.rows import RangeRow
from mqbridge.spark.source.admission import Lag
from mqbridge.spark.source.cluster_queries import ClusterQueries
from mqbridge.spark.source.data_loss import DATA_LOSS_HINT, Loss, LossKind
from mqbridge.spark.source.density_samples import DensityEstimator
from mqbridge.spark.source.offsets import PartitionKey, describe_partition
from mqbridge.spark.source.settings import SourceSettings

log = logging.getLogger(__name__)

Ranges = Mapping[PartitionKey, tuple[Position, Position]]
"""The begin and the end of one range per partition."""


@dataclass(frozen=True)
class RangeTask(InputPartition):
    """The range of one partition that a task reads, from `begin` up to, not including, `end`.

    is_part  whether other tasks of the batch read other ranges of the same partition
    index    index of the partition in its topic
    rows     estimated number of messages
    size     estimated number of bytes

    Only `mode=ranges` uses `index`, `rows` and `size`; they may be 0 otherwise.
    """

    key: PartitionKey
    begin: Position
    end: Position
    is_part: bool = False
    index: int = 0
    rows: int = 0
    size: int = 0


@dataclass(frozen=True)
class RangeRowsTask(InputPartition):
    """The ranges whose messages one task copies (`mode=ranges` with the option `rangeTasks`)."""

    rows: tuple[RangeRow, ...]


async def plan_tasks(queries: ClusterQueries, settings: SourceSettings, ranges: Ranges) -> list[RangeTask]:
    """Return the tasks of a batch. Only options that split ranges or need estimates cause requests to the cluster.

    Raises ClusterError, and GapError for a partition that does not exist any more. With failOnDataLoss=false such a partition
    gets no task.
    """
    if not settings.may_split_ranges and not settings.reads_ranges:
        return [RangeTask(key, begin, end) for key, (begin, end) in sorted(ranges.items())]
    try:
        return await _plan_measured_tasks(queries, settings, ranges)
    except ClusterError as error:
        if error.failure is not Failure.FATAL or not await queries.missing_partitions(ranges):
            raise  # the cause is not a missing partition
    # Partitions of a restarting server are missing for a while, so wait before they count as lost.
    missing = await queries.missing_after_wait(ranges)
    for key in sorted(missing):
        loss = Loss(key, LossKind.MISSING, position=ranges[key][0], bounds=None)
        if settings.fail_on_data_loss:
            raise GapError(f"{loss}. {DATA_LOSS_HINT}")
        log.warning("data loss, reading continues with the stored messages: %s", loss)
    return await plan_tasks(queries, settings, {key: ranges[key] for key in ranges if key not in missing})


async def _plan_measured_tasks(queries: ClusterQueries, settings: SourceSettings, ranges: Ranges) -> list[RangeTask]:
    """Return the tasks of a batch, split at units. Requests estimates of messages and bytes only if the options need them.

    The lag of a partition is here the size of its range: units, estimated messages and bytes.
    """
    unit_ranges = await queries.measure(ranges)
    if settings.max_task_rows or settings.reads_ranges:
        lags = await DensityEstimator(queries).lags(ranges, unit_ranges)
    else:
        lags = _lags_without_density(unit_ranges)
    counts = plan_task_counts(lags, settings.min_partitions, settings.max_task_rows)
    indexes = await _partition_indexes(queries, ranges) if settings.reads_ranges else {}
    tasks: list[RangeTask] = []
    for key, (begin, end) in sorted(ranges.items()):
        # A range without units has no parts: one task reads it.
        parts = split_evenly(unit_ranges[key], begin, end, counts[key]) or [(begin, end)]
        rows, size = round(lags[key].rows / len(parts)), round(lags[key].size / len(parts))
        index = indexes[key] if indexes else 0
        tasks += [RangeTask(key, *part, is_part=len(parts) > 1, index=index, rows=rows, size=size) for part in parts]
    return tasks


def plan_task_counts(
    lags: Mapping[PartitionKey, Lag], min_tasks: int | None, max_task_rows: int | None
) -> dict[PartitionKey, int]:
    """Return the number of tasks for each range: at least `min_tasks` in total, each with at most `max_task_rows` messages.

    None means no such limit. The range with the largest tasks gets another task first. A unit, the smallest amount that the
    system counts, is never split, so there may be fewer tasks in total.
    """
    # -int(-a // b) rounds a / b up.
    counts = {
        key: 1 if max_task_rows is None else max(1, min(lag.units, -int(-lag.rows // max_task_rows))) for key, lag in lags.items()
    }
    missing_tasks = (min_tasks or 0) - sum(counts.values())
    # A heap of the ranges that can be split further: the negative messages per task, so that the largest tasks come first.
    splittable = [(-lag.rows / counts[key], key) for key, lag in lags.items() if lag.units > counts[key]]
    heapq.heapify(splittable)
    while missing_tasks > 0 and splittable:
        _, key = heapq.heappop(splittable)
        counts[key] += 1
        missing_tasks -= 1
        if lags[key].units > counts[key]:
            heapq.heappush(splittable, (-lags[key].rows / counts[key], key))
    return counts


def _lags_without_density(unit_ranges: Mapping[PartitionKey, Sequence[UnitRange]]) -> dict[PartitionKey, Lag]:
    """Return the number of units of each range, as if each unit were one message of 0 bytes."""
    return {key: Lag(count_units(parts)) for key, parts in unit_ranges.items()}


async def _partition_indexes(queries: ClusterQueries, ranges: Ranges) -> dict[PartitionKey, int]:
    """Return the index of each partition in its topic. Raises ClusterError, FATAL for a missing partition."""
    topics = await queries.describe({topic for topic, _ in ranges})
    indexes = {(topic, name): index for topic in topics for name, index in topics[topic].index_by_partition.items()}
    if missing := ranges.keys() - indexes.keys():
        raise ClusterError(f"{describe_partition(min(missing))} does not exist", Failure.FATAL)
    return indexes
