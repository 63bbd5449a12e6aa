"""`spark.read`: what lies between two edges, as they are when the query is planned."""

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ConfigError, GapError
from mqbridge.message import Position
from mqbridge.spark.background_loop import portal
from mqbridge.spark.option_values import Exact
from mqbridge.spark.source.cluster_queries import ClusterView
from mqbridge.spark.source.data_loss import WHAT_TO_DO, losses_of
from mqbridge.spark.source.offsets import Key
from mqbridge.spark.source.read import read_task
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.tasks import RangeTask, tasks_of

log = logging.getLogger(__name__)


class MessageReader(DataSourceReader):
    """Plans on the driver, reads on executors."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """One task for each partition that holds anything, or several. Raises ConfigError, ClusterError, GapError."""
        return list(portal().run(self._plan()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task; where there was nothing to plan, Spark sends a partition of its own."""
        return read_task(self._settings, partition) if isinstance(partition, RangeTask) else iter(())

    async def _plan(self) -> list[RangeTask]:
        view = ClusterView(self._settings)
        topics = await view.topics()
        if not topics:
            raise ConfigError("no topic matches option subscribePattern", hint="A pattern matches whole names, as in orders_.*")
        bounds = await view.chosen_bounds(topics)
        await view.described([topic for topic in topics if all(topic != one for one, _ in bounds)])
        begins = await self._positions(view, bounds, Start.EARLIEST)
        ends = await self._positions(view, bounds, Start.LATEST)
        ranges = {key: (begins[key], ends[key]) for key in bounds if begins[key] < ends[key]}
        return await tasks_of(view, self._settings, ranges)

    async def _positions(self, view: ClusterView, bounds: Mapping[Key, Bounds], which: Start) -> dict[Key, Position]:
        edge = self._settings.starting if which is Start.EARLIEST else self._settings.ending
        found = await view.positions(edge, bounds, which)
        if not isinstance(edge, Exact):
            return found
        losses = [loss for loss in losses_of(found, bounds) if which is Start.EARLIEST or loss.position > bounds[loss.key].next]
        losses = [loss for loss in losses if not await view.is_harmless(loss)]
        if losses and self._settings.fail_on_data_loss:
            raise GapError(f"{losses[0]}. {WHAT_TO_DO}")
        for loss in losses:
            log.warning("going on with what there is: %s", loss)
            held = bounds[loss.key]
            found[loss.key] = max(held.first, min(held.next, loss.position))
        return found
