"""Divides rows by source partition and target topic. Each group of rows is one batch of one transfer."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mqbridge.errors import ConfigError
from mqbridge.message import NO_SOURCE, Batch, Partition, Position, format_position
from mqbridge.spark.arrow.messages import MessageDecoder
from mqbridge.spark.schema import format_source
from mqbridge.spark.transfer.spec import PartitionMode
from mqbridge.spark.transfer.target_partitions import BatchPartition, RowPartitions

MESSAGE_OVERHEAD_BYTES = 400
"""Memory of a message in addition to the bytes of its row: the objects of the message and of its fields."""


class Stream(NamedTuple):
    """Identifies the rows of one source partition for one topic, which are written in order.

    `cluster` is the identity of the source's cluster (`RowSource.cluster`): two clusters may have the same name.

    `topic` is None if the spec of the targets names the topic. It is empty if the column `topic` must name it, but is NULL:
    the transfer then refuses the rows.
    """

    source: Partition
    topic: str | None
    cluster: str = ""

    @property
    def label(self) -> tuple[str, str | None]:
        """The source partition as text, as in the column `source`, and the topic."""
        return format_source(self.source, self.cluster or None), self.topic


class RowReader:
    """Reads the rows of one task.

    by_topic        the column `topic` names the target topic; False: the spec of the targets names it
    partition_mode  how target partitions are chosen; without a column `partition` it is always `rule`
    deduplicate     the positions of the rows of a source must ascend; rows of a range that several tasks have read are an error
    """

    def __init__(self, schema: pa.Schema, *, by_topic: bool, partition_mode: PartitionMode, deduplicate: bool) -> None:
        self._messages = MessageDecoder(schema)
        names = set(schema.names)
        self._partition_mode = partition_mode if "partition" in names else "rule"
        self._group_columns = [name for name in ("source", "topic") if name in names and (by_topic or name != "topic")]
        self._by_topic, self._deduplicate = by_topic, deduplicate
        self._last_positions: dict[Stream, Position] = {}

    def streams(self, rows: pa.RecordBatch) -> Iterator[tuple[Stream, Batch]]:
        """Yield the batches of these rows with their streams. Raises ConfigError for rows that cannot be written."""
        for group in self._group_rows(rows):
            topic = (group.column("topic")[0].as_py() or "") if self._by_topic else None
            for run in self._messages.read_runs(group):  # a run has consecutive rows of one source partition
                batch = run.batch
                if run.is_part and self._deduplicate:
                    raise ConfigError(
                        f"these rows are only a part of a range of {batch.partition}, and another task has the other rows: the "
                        "sink cannot know which rows are stored",
                        hint="Read without minPartitions and maxRecordsPerPartition, or write with deduplicate=false",
                    )
                batch.held_bytes = group.slice(run.first_row, batch.count).nbytes + MESSAGE_OVERHEAD_BYTES * batch.count
                stream = Stream(batch.partition, topic, run.cluster)
                if self._deduplicate and batch.partition is not NO_SOURCE:
                    self._check_order(stream, batch)
                if self._partition_mode != "rule":
                    values = group.column("partition").slice(run.first_row, batch.count).to_pylist()
                    # The source fills the column with its own partition index. In `auto`, that value is no choice of the user.
                    is_from_source = self._partition_mode == "auto" and batch.partition is not NO_SOURCE
                    batch.handle = _partition_handle(values, batch.partition.index if is_from_source else None)
                yield stream, batch

    def _group_rows(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each source and topic, in order. Usually all rows have the same source and topic."""
        if not rows.num_rows:
            return
        codes = [_find_value_codes(rows.column(name)) for name in self._group_columns]
        varying = [column for column in codes if column is not None]
        if not varying:
            yield rows
            return
        groups: dict[tuple[int | None, ...], list[int]] = {}
        for index, key in enumerate(zip(*(column.to_pylist() for column in varying), strict=True)):
            groups.setdefault(key, []).append(index)
        for indexes in groups.values():
            yield rows.take(pa.array(indexes, pa.int64()))

    def _check_order(self, stream: Stream, batch: Batch) -> None:
        """Raise ConfigError if the positions do not ascend, from the end of the stream's previous batch on."""
        positions = [self._last_positions.get(stream, ()), *(message.position for message in batch.messages)]
        for previous, position in pairwise(positions):
            if position <= previous:
                raise ConfigError(
                    f"rows of {stream.source} do not ascend: position {format_position(position)} follows "
                    f"{format_position(previous)}, so the sink cannot know which of them are stored",
                    hint='Write .repartition("source").sortWithinPartitions("source", "position"), or set deduplicate=false',
                )
        self._last_positions[stream] = positions[-1]


def _find_value_codes(column: pa.Array) -> pa.Array | None:
    """Return a number for each row, the same for equal values; None if all rows have the same value."""
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return encoded.indices if len(encoded.dictionary) > 1 else None


def _partition_handle(values: Sequence[int | None], ignored: int | None) -> BatchPartition | RowPartitions | None:
    """Return the handle of a batch with these values of the column `partition`; None if no row names a partition.

    The value `ignored` counts as NULL.
    """
    partitions = [None if partition == ignored else partition for partition in values]
    distinct = set(partitions)
    if distinct == {None}:
        return None
    return BatchPartition(partitions[0]) if len(distinct) == 1 else RowPartitions(partitions)
