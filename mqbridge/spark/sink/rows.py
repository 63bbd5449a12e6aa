"""Divides rows by where they come from and where they go: each part is one batch of one transfer."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from mqbridge.errors import ConfigError
from mqbridge.message import NO_SOURCE, Batch, Partition, Position, format_position
from mqbridge.spark.arrow.messages import MessageReader
from mqbridge.spark.transfer.spec import PartitionMode
from mqbridge.spark.transfer.target_partitions import BatchPartition, RowPartitions

MESSAGE_BYTES = 400
"""What a message of a row holds beside the bytes of the row: its object, and those of its fields."""


class Stream(NamedTuple):
    """Rows of one source partition that go to one topic, in order.

    `topic` is None where the spec of the targets says it; empty where the column, which should, is NULL.
    """

    source: Partition
    topic: str | None


class RowReader:
    """Reads the rows of one task. `deduplicate`: rows of a source must ascend by their positions."""

    def __init__(self, schema: pa.Schema, *, by_topic: bool, partition_mode: PartitionMode, deduplicate: bool) -> None:
        self._messages = MessageReader(schema)
        names = set(schema.names)
        self._partition_mode = partition_mode if "partition" in names else "rule"
        self._columns = [name for name in ("source", "topic") if name in names and (by_topic or name != "topic")]
        self._by_topic, self._deduplicate = by_topic, deduplicate
        self._last: dict[Stream, Position] = {}

    def streams(self, rows: pa.RecordBatch) -> Iterator[tuple[Stream, Batch]]:
        """The batches of these rows. Raises ConfigError for rows that cannot be written as they are."""
        for part in self._parts(rows):
            topic = (part.column("topic")[0].as_py() or "") if self._by_topic else None
            for run in self._messages.read_runs(part):
                batch = run.batch
                if run.is_part and self._deduplicate:
                    raise ConfigError(
                        f"rows of {batch.partition} are of a part of its range, which another task has the rest of: nobody could "
                        "tell what of it is stored",
                        hint="Read without minPartitions and maxRecordsPerPartition, or write with deduplicate=false",
                    )
                batch.held_bytes = part.slice(run.first_row, batch.count).nbytes + MESSAGE_BYTES * batch.count
                stream = Stream(batch.partition, topic)
                if self._deduplicate and batch.partition is not NO_SOURCE:
                    self._check_order(stream, batch)
                if self._partition_mode != "rule":
                    wanted = part.column("partition").slice(run.first_row, batch.count).to_pylist()
                    batch.handle = _partition_handle(wanted, batch.partition.index if self._is_known(batch) else None)
                yield stream, batch

    def _is_known(self, batch: Batch) -> bool:
        """Whether a partition that is the source's own says nothing."""
        return self._partition_mode == "auto" and batch.partition is not NO_SOURCE

    def _parts(self, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows by source and topic, in order. Mostly there is one of each."""
        if not rows.num_rows:
            return
        codes = [_codes(rows.column(name)) for name in self._columns]
        several = [code for code in codes if code is not None]
        if not several:
            yield rows
            return
        places: dict[tuple[int | None, ...], list[int]] = {}
        for index, key in enumerate(zip(*(code.to_pylist() for code in several), strict=True)):
            places.setdefault(key, []).append(index)
        for indexes in places.values():
            yield rows.take(pa.array(indexes, pa.int64()))

    def _check_order(self, stream: Stream, batch: Batch) -> None:
        positions = [self._last.get(stream, ()), *(message.position for message in batch.messages)]
        for before, position in pairwise(positions):
            if position <= before:
                raise ConfigError(
                    f"rows of {stream.source} do not ascend: position {format_position(position)} comes behind "
                    f"{format_position(before)}, so nobody could tell what of them is stored",
                    hint='Write .repartition("source").sortWithinPartitions("source", "position"), or set deduplicate=false',
                )
        self._last[stream] = positions[-1]


def _codes(column: pa.Array) -> pa.Array | None:
    """A number for each different value; None where there is only one."""
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return encoded.indices if len(encoded.dictionary) > 1 else None


def _partition_handle(wanted: Sequence[int | None], own: int | None) -> BatchPartition | RowPartitions | None:
    """Where rows are to go; None where nothing says it. `own` is the partition that says nothing."""
    said = [None if partition == own else partition for partition in wanted]
    different = set(said)
    if different == {None}:
        return None
    return BatchPartition(said[0]) if len(different) == 1 else RowPartitions(said)
