"""The writers that Spark calls. `write` runs in a task, all other methods run in driver processes, each on its own copy.

Spark makes a streaming writer for each batch and pickles it for the tasks: the batch begins when the writer is pickled. For the
commit, Spark makes another writer and never pickles it. See `progress`.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mqbridge.errors import ConfigError
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.options import Usage, parse_options
from mqbridge.spark.sink.attempt_fence import PREFIX, Attempt, AttemptFence, batch_of_claim
from mqbridge.spark.sink.checkpoint_files import CheckpointFiles, open_checkpoint_files
from mqbridge.spark.sink.driver import check_streams, find_topic_ends, known_topics, written_topics
from mqbridge.spark.sink.progress import Progress, Stage, load_progress, save_progress
from mqbridge.spark.sink.settings import SinkSettings, sink_settings
from mqbridge.spark.sink.task import TaskResult
from mqbridge.spark.sink.task_attempt import CheckpointClaimFiles, TaskId
from mqbridge.spark.sink.write_task import write_rows
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.spec import Replay, TopicEnds

log = logging.getLogger(__name__)

DRIVER_S = 120.0
"""Timeout of requests to clusters on the driver. The clients have shorter timeouts of their own."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """The message from a task to the driver."""

    result: TaskResult = field(default_factory=TaskResult)


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._job = settings.job or uuid4().hex
        self._ends: TopicEnds | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Begin the job: record the current ends of the targets. A new job stores nothing before them.

        A job with a name may have been run before, and its messages may be stored anywhere.
        """
        if self._ends is None:
            self._ends = {} if self._settings.job is not None else _find_known_ends(self._settings)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task."""
        task = TaskId.current()
        replay = Replay(self._ends or {}) if task.attempt or self._settings.job is not None else None
        return TaskMessage(write_rows(self._settings, self._job, iterator, replay, None))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts after all tasks have finished. Raises ConfigError if several tasks wrote rows of one source."""
        results = _results(messages)
        if self._settings.spec.deduplicate:
            check_streams(results)
        log.info("stored: %s", _describe(Counts.total(result.counts for result in results)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of a failed write. The messages that were sent remain sent."""
        log.warning("the write failed after %s", _describe(Counts.total(result.counts for result in _results(messages))))


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream` for one batch, or for one commit."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._files: CheckpointFiles | None = None
        self._begun: tuple[Progress, Stage] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Begin the batch, once."""
        if self._begun is None:
            self._files = _open_files(self._settings)
            self._begun = self._begin(self._files)
        return self.__dict__

    def _begin(self, files: CheckpointFiles | None) -> tuple[Progress, Stage]:
        """Record that the batch begins, and remove the claims of committed batches."""
        if files is None:
            return Progress(), Stage.REPLAY
        begun, stage = _load(files).begin(lambda: _find_known_ends(self._settings))
        save_progress(files, begun)
        files.remove({name for name in files.names(PREFIX) if batch_of_claim(name) <= begun.committed})
        return begun, stage

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task of the batch."""
        task = TaskId.current()
        assert self._begun is not None  # noqa: S101 - pickling the writer began the batch
        assert task.batch is not None  # noqa: S101 - streaming tasks have a batch
        progress, stage = self._begun
        stage = progress.decide(task.batch, stage)
        if stage is Stage.SKIP:
            for _ in iterator:  # Spark requires that the rows are read
                pass
            return TaskMessage()
        fence = None
        if self._files is not None and self._settings.spec.deduplicate:
            fence = background_loop().run(_make_fence(self._files, task.batch, task.partition, Attempt(progress.runs, task.id)))
        is_repeated = fence is not None and background_loop().run(fence.begin())
        replay = Replay(progress.ends_before(task.batch)) if stage is Stage.REPLAY or task.attempt or is_repeated else None
        job = self._settings.job or task.query or ""
        return TaskMessage(write_rows(self._settings, job, iterator, replay, fence))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Record that all tasks of the batch have finished. Raises ConfigError if several tasks wrote rows of one source."""
        results, settings = _results(messages), self._settings
        if settings.spec.deduplicate:
            check_streams(results)
        counts = Counts.total(result.counts for result in results)
        log.info("batch %d stored: %s", batchId, _describe(counts))
        if (files := _open_files(settings)) is None:
            return
        topics = written_topics(settings.spec, counts)
        ends = background_loop().run(find_topic_ends(settings.spec, topics, background_loop().cluster), DRIVER_S)
        save_progress(files, _load(files).commit(batchId, ends, _totals(counts)))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counts of a failed batch. The progress does not change: Spark repeats the batch."""
        log.warning("batch %d failed after %s", batchId, _describe(Counts.total(result.counts for result in _results(messages))))


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Return the writer of a batch write, for options as Spark passes them. Raises ConfigError."""
    if overwrite:
        raise ConfigError("messages of a topic are never replaced", hint='Write with .mode("append")')
    return BatchWriter(sink_settings(parse_options(options, Usage.WRITE), schema))


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Return a writer of a streaming query. Spark calls this for each batch, and again for its commit. Raises ConfigError."""
    if overwrite:
        raise ConfigError("messages of a topic are never replaced", hint='Write with .outputMode("append"), or in foreachBatch')
    return StreamWriter(sink_settings(parse_options(options, Usage.WRITE), schema))


async def _make_fence(files: CheckpointFiles, batch_id: int, partition: int, attempt: Attempt) -> AttemptFence:
    return AttemptFence(CheckpointClaimFiles(files), batch_id, partition, attempt)


def _open_files(settings: SinkSettings) -> CheckpointFiles | None:
    if settings.checkpoint is not None:
        return open_checkpoint_files(settings.checkpoint)
    log.warning(
        "the sink does not know its checkpointLocation, so it stores no progress: each batch searches its targets for messages "
        "that are stored already. Give the option checkpointLocation to the query itself"
    )
    return None


def _load(files: CheckpointFiles) -> Progress:
    try:
        return load_progress(files)
    except ValueError as error:
        raise ConfigError(
            f"the progress of the sink in {files.path} cannot be read: {error}",
            hint="Remove the folder: the next batch then searches its targets for messages that are stored already",
        ) from error


def _find_known_ends(settings: SinkSettings) -> TopicEnds:
    """Return the current ends of the topics that are known without reading rows."""
    spec = settings.spec
    return background_loop().run(find_topic_ends(spec, known_topics(spec), background_loop().cluster), DRIVER_S)


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message.result for message in messages if isinstance(message, TaskMessage)]


def _totals(counts: Counts) -> dict[str, int]:
    return {name: count for name, count in asdict(counts).items() if isinstance(count, int)}


def _describe(counts: Counts) -> str:
    return ", ".join(f"{count} {name}" for name, count in _totals(counts).items() if count) or "nothing"
