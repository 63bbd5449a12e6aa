"""`spark.read`: the messages between two positions per partition, which are resolved when the query is planned."""

import logging
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ConfigError, GapError
from mqbridge.message import Position
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.option_values import ExplicitOffsets
from mqbridge.spark.source.cluster_queries import ClusterQueries
from mqbridge.spark.source.data_loss import DATA_LOSS_HINT, detect_losses
from mqbridge.spark.source.offsets import PartitionKey
from mqbridge.spark.source.read import read_task
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.tasks import RangeTask, plan_tasks

log = logging.getLogger(__name__)


class MessageReader(DataSourceReader):
    """Plans the tasks of one `spark.read` on the driver. On executors, `read` reads the messages of a task."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings

    def partitions(self) -> list[InputPartition]:
        """Return one or several tasks for each partition with messages. Raises ConfigError, ClusterError, GapError."""
        return list(background_loop().run(self._plan_tasks()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task. If no task was planned, Spark passes an empty partition of its own, which has no rows."""
        return read_task(self._settings, partition) if isinstance(partition, RangeTask) else iter(())

    async def _plan_tasks(self) -> list[RangeTask]:
        queries = ClusterQueries(self._settings)
        topics = await queries.topics()
        if not topics:
            pattern, cluster = self._settings.topics.pattern, self._settings.cluster.name
            option = "" if pattern is None else f"option subscribePattern ({pattern.compiled.pattern})"
            selection = option or "the topic patterns of the route"
            raise ConfigError(
                f"no topic matches {selection} in cluster {cluster!r}", hint="A pattern matches whole names, as in orders_.*"
            )
        bounds = await queries.selected_bounds(topics)
        topics_with_bounds = {topic for topic, _ in bounds}
        # `bounds` leaves out topics that do not exist. `describe` raises the error that names such a topic.
        await queries.describe([topic for topic in topics if topic not in topics_with_bounds])
        begins = await self._resolve_positions(queries, bounds, Start.EARLIEST)
        ends = await self._resolve_positions(queries, bounds, Start.LATEST)
        ranges = {key: (begins[key], ends[key]) for key in bounds if begins[key] < ends[key]}
        return await plan_tasks(queries, self._settings, ranges)

    async def _resolve_positions(
        self, queries: ClusterQueries, bounds: Mapping[PartitionKey, Bounds], default: Start
    ) -> dict[PartitionKey, Position]:
        """Return where the read of each partition begins (`default` is EARLIEST) or ends (`default` is LATEST).

        An explicit position that the cluster does not store any more is a data loss. It raises GapError, or is replaced by the
        nearest stored position with failOnDataLoss=false.
        """
        is_begin = default is Start.EARLIEST
        offsets = self._settings.starting if is_begin else self._settings.ending
        positions = await queries.positions(offsets, bounds, default)
        if not isinstance(offsets, ExplicitOffsets):
            return positions
        # An end before the first stored position is no loss: the range is empty, or its begin was a loss already.
        losses = [loss for loss in detect_losses(positions, bounds) if is_begin or loss.position > bounds[loss.key].next]
        # A loss is harmless if the deleted part of the partition had no messages that the read needs.
        losses = [loss for loss in losses if not await queries.is_harmless(loss)]
        if losses and self._settings.fail_on_data_loss:
            raise GapError(f"{losses[0]}. {DATA_LOSS_HINT}")
        for loss in losses:
            log.warning("data loss, reading continues with the stored messages: %s", loss)
            stored = bounds[loss.key]
            positions[loss.key] = max(stored.first, min(stored.next, loss.position))
        return positions
