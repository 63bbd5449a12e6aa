"""From ranges to tasks: one for each partition, or parts of it where the options ask for more or smaller ones."""

import heapq
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from mqbridge.adapter.topics import UnitRange
from mqbridge.adapter.unit_ranges import count_units, split_evenly
from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.message import Position
from mqbridge.spark.ranges.rows import RangeRow
from mqbridge.spark.source.admission import Lag
from mqbridge.spark.source.cluster_queries import ClusterView
from mqbridge.spark.source.data_loss import WHAT_TO_DO, loss_of
from mqbridge.spark.source.density_samples import Densities
from mqbridge.spark.source.offsets import Key, spoken
from mqbridge.spark.source.settings import SourceSettings

log = logging.getLogger(__name__)

Ranges = Mapping[Key, tuple[Position, Position]]


@dataclass(frozen=True)
class RangeTask(InputPartition):
    """What one task reads: a range of one partition, or with `is_part` one of several of it.

    `index` of the partition and the estimates are known with `mode=ranges` only.
    """

    key: Key
    begin: Position
    end: Position
    is_part: bool = False
    index: int = 0
    rows: int = 0
    size: int = 0


@dataclass(frozen=True)
class RangesTask(InputPartition):
    """The ranges that one task of a pump moves."""

    rows: tuple[RangeRow, ...]


async def tasks_of(view: ClusterView, settings: SourceSettings, ranges: Ranges) -> list[RangeTask]:
    """The tasks of a batch, always the same for the same ranges. Asks the cluster only where the options need it.

    Raises ClusterError, and GapError for a partition that is not there any more: where the options let it go it gets no task.
    """
    if not settings.may_cut and not settings.is_ranges:
        return [RangeTask(key, begin, end) for key, (begin, end) in sorted(ranges.items())]
    try:
        return await _measured(view, settings, ranges)
    except ClusterError as error:
        if error.failure is not Failure.FATAL or not await view.missing(ranges):
            raise
    gone = await view.gone(ranges)
    for key in sorted(gone):
        loss = loss_of(key, ranges[key][0], None)
        if settings.fail_on_data_loss:
            raise GapError(f"{loss}. {WHAT_TO_DO}")
        log.warning("going on with what there is: %s", loss)
    return await tasks_of(view, settings, {key: one for key, one in ranges.items() if key not in gone})


async def _measured(view: ClusterView, settings: SourceSettings, ranges: Ranges) -> list[RangeTask]:
    unit_ranges = await view.measure(ranges)
    densities = Densities(view)
    lags = await densities.lags(ranges, unit_ranges) if settings.max_task_rows or settings.is_ranges else _counted(unit_ranges)
    pieces = pieces_of(lags, settings.min_partitions, settings.max_task_rows)
    indexes = await _indexes(view, ranges) if settings.is_ranges else {}
    tasks: list[RangeTask] = []
    for key, (begin, end) in sorted(ranges.items()):
        cuts = split_evenly(unit_ranges[key], begin, end, pieces[key]) or [(begin, end)]
        rows, size = round(lags[key].rows / len(cuts)), round(lags[key].size / len(cuts))
        tasks += [RangeTask(key, *cut, len(cuts) > 1, indexes[key] if indexes else 0, rows, size) for cut in cuts]
    return tasks


def pieces_of(lags: Mapping[Key, Lag], least: int | None, most_rows: int | None) -> dict[Key, int]:
    """In how many pieces each range is cut: none has more than `most_rows`, and together there are at least `least`.

    The largest pieces are cut first. A unit is not cut, so there may be fewer.
    """
    pieces = {key: 1 if most_rows is None else max(1, min(lag.units, -int(-lag.rows // most_rows))) for key, lag in lags.items()}
    missing = (least or 0) - sum(pieces.values())
    largest = [(-lag.rows / pieces[key], key) for key, lag in lags.items() if lag.units > pieces[key]]
    heapq.heapify(largest)
    while missing > 0 and largest:
        _, key = heapq.heappop(largest)
        pieces[key] += 1
        missing -= 1
        if lags[key].units > pieces[key]:
            heapq.heappush(largest, (-lags[key].rows / pieces[key], key))
    return pieces


def _counted(unit_ranges: Mapping[Key, Sequence[UnitRange]]) -> dict[Key, Lag]:
    return {key: Lag(count_units(one)) for key, one in unit_ranges.items()}


async def _indexes(view: ClusterView, ranges: Ranges) -> dict[Key, int]:
    described = await view.described({topic for topic, _ in ranges})
    found = {(topic, name): index for topic, one in described.items() for index, name in enumerate(one.partitions)}
    if missing := ranges.keys() - found.keys():
        raise ClusterError(f"{spoken(min(missing))} is not there", Failure.FATAL)
    return found
