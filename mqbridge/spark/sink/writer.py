"""The writers that Spark is given: `write` runs in a task, everything else in processes of the driver, each with its own copy.

A streaming writer is made for a batch, and pickled for its tasks: that is when the batch begins. One that is made for a commit is
never pickled. See `progress`.
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
from mqbridge.spark.sink.attempt_fence import PREFIX, Attempt, Claims, batch_of
from mqbridge.spark.sink.checkpoint_files import Folder, open_folder
from mqbridge.spark.sink.driver import check_streams, find_topic_ends, known_topics, written_topics
from mqbridge.spark.sink.progress import Progress, Stage, load_progress, save_progress
from mqbridge.spark.sink.settings import SinkSettings, sink_settings
from mqbridge.spark.sink.task import TaskResult
from mqbridge.spark.sink.task_attempt import FolderClaims, TaskId
from mqbridge.spark.sink.write_task import write_rows
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.spec import Replay, TopicEnds

log = logging.getLogger(__name__)

DRIVER_S = 120.0
"""How long asking clusters may take on the driver: clients have deadlines of their own, which are shorter."""


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    result: TaskResult = field(default_factory=TaskResult)


class BatchWriter(DataSourceArrowWriter):
    """For `df.write`."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._job = settings.job or uuid4().hex
        self._ends: TopicEnds | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The job begins: what its own attempts store lies behind the ends of now; that of one with a name may lie anywhere."""
        if self._ends is None:
            self._ends = {} if self._settings.job is not None else _ends_now(self._settings)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task."""
        task = TaskId.current()
        replay = Replay(self._ends or {}) if task.attempt or self._settings.job is not None else None
        return Written(write_rows(self._settings, self._job, iterator, replay, None))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Everything is stored. Raises ConfigError when a source was written by several tasks."""
        results = _results(messages)
        if self._settings.spec.deduplicate:
            check_streams(results)
        log.info("stored: %s", _words(Counts.total(result.counts for result in results)))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was sent is sent."""
        log.warning("the write failed after %s", _words(Counts.total(result.counts for result in _results(messages))))


class StreamWriter(DataSourceStreamArrowWriter):
    """For `df.writeStream`: of one batch, or of one commit."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._folder: Folder | None = None
        self._begun: tuple[Progress, Stage] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """The batch begins."""
        if self._begun is None:
            self._folder = _folder(self._settings)
            self._begun = self._begin(self._folder)
        return self.__dict__

    def _begin(self, folder: Folder | None) -> tuple[Progress, Stage]:
        if folder is None:
            return Progress(), Stage.REPLAY
        begun, stage = _load(folder).begin(lambda: _ends_now(self._settings))
        save_progress(folder, begun)
        folder.remove({name for name in folder.names(PREFIX) if batch_of(name) <= begun.committed})
        return begun, stage

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task of the batch."""
        task = TaskId.current()
        assert self._begun is not None  # noqa: S101 - it was pickled on its way here
        assert task.batch is not None  # noqa: S101 - the same
        progress, stage = self._begun
        stage = progress.decide(task.batch, stage)
        if stage is Stage.SKIP:
            for _ in iterator:  # Spark wants it read
                pass
            return Written()
        claims = None
        if self._folder is not None and self._settings.spec.deduplicate:
            claims = background_loop().run(
                _make_claims(self._folder, task.batch, task.partition, Attempt(progress.runs, task.id))
            )
        repeated = claims is not None and background_loop().run(claims.begin())
        replay = Replay(progress.ends_before(task.batch)) if stage is Stage.REPLAY or task.attempt or repeated else None
        job = self._settings.job or task.query or ""
        return Written(write_rows(self._settings, job, iterator, replay, claims))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Everything of the batch is stored. Raises ConfigError when a source was written by several tasks."""
        results, settings = _results(messages), self._settings
        if settings.spec.deduplicate:
            check_streams(results)
        counts = Counts.total(result.counts for result in results)
        log.info("batch %d stored: %s", batchId, _words(counts))
        if (folder := _folder(settings)) is None:
            return
        topics = written_topics(settings.spec, counts)
        ends = background_loop().run(find_topic_ends(settings.spec, topics, background_loop().cluster), DRIVER_S)
        save_progress(folder, _load(folder).commit(batchId, ends, _totals(counts)))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent is sent, and the batch comes again: nothing moves."""
        log.warning("batch %d failed after %s", batchId, _words(Counts.total(one.counts for one in _results(messages))))


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """The writer of a batch write. `options` as Spark hands them over. Raises ConfigError."""
    if overwrite:
        raise ConfigError("messages of a topic are never replaced", hint='Write with .mode("append")')
    return BatchWriter(sink_settings(parse_options(options, Usage.WRITE), schema))


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """The writer of a streaming query: made anew for each batch, and again for its commit. Raises ConfigError."""
    if overwrite:
        raise ConfigError("messages of a topic are never replaced", hint='Write with .outputMode("append"), or in foreachBatch')
    return StreamWriter(sink_settings(parse_options(options, Usage.WRITE), schema))


async def _make_claims(folder: Folder, batch_id: int, partition: int, attempt: Attempt) -> Claims:
    return Claims(FolderClaims(folder), batch_id, partition, attempt)


def _folder(settings: SinkSettings) -> Folder | None:
    if settings.checkpoint is not None:
        return open_folder(settings.checkpoint)
    log.warning(
        "the sink was not told its checkpointLocation, so it keeps no progress: each batch reads back from its targets what they "
        "hold. Give the option checkpointLocation to the query itself"
    )
    return None


def _load(folder: Folder) -> Progress:
    try:
        return load_progress(folder)
    except ValueError as error:
        raise ConfigError(
            f"the progress of the sink in {folder.path} cannot be read: {error}",
            hint="Remove the folder: the next batch then reads back from its targets what they hold",
        ) from error


def _ends_now(settings: SinkSettings) -> TopicEnds:
    """Where the topics end that are known before there are rows."""
    spec = settings.spec
    return background_loop().run(find_topic_ends(spec, known_topics(spec), background_loop().cluster), DRIVER_S)


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message.result for message in messages if isinstance(message, Written)]


def _totals(counts: Counts) -> dict[str, int]:
    return {name: count for name, count in asdict(counts).items() if isinstance(count, int)}


def _words(counts: Counts) -> str:
    return ", ".join(f"{count} {name}" for name, count in _totals(counts).items() if count) or "nothing"
