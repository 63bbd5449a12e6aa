"""Writes the rows of a task. The rows are messages, or ranges of source partitions whose messages the task itself reads."""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from mqbridge.errors import ConfigError
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.ranges.mover import Pump
from mqbridge.spark.ranges.rows import parse_ranges
from mqbridge.spark.schema import format_source
from mqbridge.spark.sink.attempt_fence import AttemptFence
from mqbridge.spark.sink.rows import RowReader
from mqbridge.spark.sink.settings import SinkSettings
from mqbridge.spark.sink.task import TaskResult, TaskWriter
from mqbridge.spark.sink.task_attempt import raise_when_superseded, run_while_latest
from mqbridge.spark.transfer.spec import Replay


def write_rows(
    settings: SinkSettings, job: str, iterator: Iterator[pa.RecordBatch], replay: Replay | None, fence: AttemptFence | None
) -> TaskResult:
    """Store the messages of all rows, and return the result of the task. Closes all outbounds before it returns.

    job     the name of the job, which is the same in every attempt
    replay  where messages of the task may be stored already, by an earlier attempt; None: none can be stored
    fence   stops this attempt when a later one begins; None: attempts are not fenced

    Raises the errors of `Transfer.run`, `RowReader` and `AttemptFence.check`.
    """
    write = _move_ranges if settings.are_ranges else _write_messages
    return write(settings, job, iterator, replay, fence)


def _write_messages(
    settings: SinkSettings, job: str, iterator: Iterator[pa.RecordBatch], replay: Replay | None, fence: AttemptFence | None
) -> TaskResult:
    loop = background_loop()
    # The gate is awaited before each send; the watch runs in the background and stops the task when a later attempt begins.
    gate, watch = (None, None) if fence is None else (fence.check, partial(raise_when_superseded, fence))
    writer = TaskWriter(settings, job, loop.cluster, replay, gate, watch)
    reader: RowReader | None = None
    try:
        for rows in iterator:
            if reader is None:  # the schema is known from the first batch of rows on
                spec = settings.spec
                by_topic = settings.topic_from == "column"
                reader = RowReader(
                    rows.schema, by_topic=by_topic, partition_mode=spec.partition_mode, deduplicate=spec.deduplicate
                )
            loop.run(writer.write(list(reader.streams(rows))))
        return loop.run(writer.finish())
    finally:
        loop.run(writer.abort())  # after `finish`, this ends only the watch


def _move_ranges(
    settings: SinkSettings, job: str, iterator: Iterator[pa.RecordBatch], replay: Replay | None, fence: AttemptFence | None
) -> TaskResult:
    spec = settings.spec
    ranges = [row for rows in iterator for row in parse_ranges(rows)]
    if spec.deduplicate and any(row.is_part for row in ranges):
        raise ConfigError(
            "the ranges of a partition are split between tasks, and the sink cannot know which messages are stored",
            hint="Read without minPartitions and maxRecordsPerPartition, or write with deduplicate=false",
        )
    pump = Pump(spec, spec.clusters, job)
    counts = background_loop().run(run_while_latest(fence, pump.move(ranges, background_loop().cluster, replay)))
    # The topic of each stream is None: the route names the topics, the rows do not.
    return TaskResult(counts, {(format_source(row.partition), None) for row in ranges})
