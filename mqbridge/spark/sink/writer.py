"""The writers that Spark calls. `write` runs in a task, all other methods run in driver processes, each on its own copy.

Spark makes a streaming writer for each batch and pickles it for the tasks: the batch begins when the writer is pickled. For the
commit, Spark makes another writer and never pickles it. Both read the sink's progress file (see `progress`), which
tells the first writer its batch.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mqbridge.errors import ConfigError, RequestTimeout
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.options import Usage, parse_options
from mqbridge.spark.sink.attempt_fence import CLAIM_PREFIX, Attempt, AttemptFence, batch_of_claim
from mqbridge.spark.sink.checkpoint_files import CheckpointFiles, open_checkpoint_files
from mqbridge.spark.sink.driver import check_streams, find_topic_ends, find_unprotected, fixed_topics, written_topics
from mqbridge.spark.sink.progress import Progress, Stage, load_progress, save_progress
from mqbridge.spark.sink.settings import SinkSettings, sink_settings
from mqbridge.spark.sink.task import TaskResult
from mqbridge.spark.sink.task_attempt import CheckpointClaimFiles, TaskId
from mqbridge.spark.sink.write_task import write_rows
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.selection import Selection
from mqbridge.spark.transfer.spec import Replay, TopicEnds

log = logging.getLogger(__name__)

DRIVER_TIMEOUT_S = 120.0
"""Timeout for finding the ends of all topics on the driver. The requests of the clients have shorter timeouts of their own."""


@dataclass
class TaskMessage(WriterCommitMessage):
    """The message with which a task reports its result to the driver."""

    result: TaskResult = field(default_factory=TaskResult)


class BatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._job = settings.job or uuid4().hex
        """The name of the job. Without the option jobId it is unique, because no other write continues this job."""
        self._initial_ends: TopicEnds | None = None
        """The ends of the targets when the job began; None before that, and empty for a job that may have run before."""

    def __getstate__(self) -> dict[str, Any]:
        """Begin the job when Spark pickles the writer: record the current ends of the targets.

        A new job stores nothing before these ends. A job with a name may have run before, so its messages may be stored anywhere,
        and no ends are recorded.
        """
        if self._initial_ends is None:
            self._initial_ends = {} if self._settings.job is not None else _find_fixed_ends(self._settings)
        return self.__dict__

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task."""
        task = TaskId.current()
        # By an earlier attempt at this task, or by an earlier run of a job with a name.
        may_be_stored = task.attempt > 0 or self._settings.job is not None
        # An earlier version may have run a job of this name.
        replay = Replay(self._initial_ends or {}, may_be_unnamed=self._settings.job is not None) if may_be_stored else None
        return TaskMessage(write_rows(self._settings, self._job, iterator, replay, fence=None))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts after all tasks have finished. Raises ConfigError if several tasks wrote rows of one source."""
        results = _results(messages)
        if self._settings.spec.deduplicate:
            check_streams(results)
        counts = Counts.total(result.counts for result in results)
        log.info("the batch write of job %s is complete: %s", self._job, _describe(counts))
        _warn_unprotected(self._settings, counts)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Log the counts of a failed write. The messages that were sent remain in the targets."""
        log.warning(
            "the batch write of job %s failed; messages that were sent remain in the targets; counts of its finished tasks: %s",
            self._job,
            _describe(Counts.total(result.counts for result in _results(messages))),
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream` for one batch, or for one commit."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._files: CheckpointFiles | None = None
        """The sink's files in the checkpoint; None before the batch began, and if they cannot be accessed."""
        self._start: tuple[Progress, Stage] | None = None
        """The progress when the batch began, and its stage: send all messages, or only missing ones. None before that."""

    def __getstate__(self) -> dict[str, Any]:
        """Begin the batch when Spark pickles the writer for the first time."""
        if self._start is None:
            self._files = _open_files(self._settings)
            self._start = self._begin(self._files)
        return self.__dict__

    def _begin(self, files: CheckpointFiles | None) -> tuple[Progress, Stage]:
        """Record that the batch begins, and return the progress and the stage.

        Also remove the claims of committed batches: files with which the attempts at a task find each other. Without files,
        nothing is recorded, and every batch is replayed.
        """
        if files is None:
            return Progress(), Stage.REPLAY
        selection = self._settings.spec.selection.as_json()
        progress, stage = _load(files).begin(lambda: _find_fixed_ends(self._settings), selection)
        save_progress(files, progress)
        batches = {name: batch_of_claim(name) for name in files.names(CLAIM_PREFIX)}
        files.remove({name for name, batch in batches.items() if batch is not None and batch <= progress.committed})
        return progress, stage

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task of the batch."""
        task = TaskId.current()
        assert self._start is not None  # noqa: S101 - pickling the writer began the batch
        assert task.batch is not None  # noqa: S101 - streaming tasks have a batch
        progress, stage = self._start
        stage = progress.decide(task.batch, stage)  # a task knows its batch's id, which `begin` did not
        if stage is Stage.SKIP:
            for _ in iterator:  # Spark requires that a task reads its rows
                pass
            return TaskMessage()
        fence = None
        if self._files is not None and self._settings.spec.deduplicate:
            fence = background_loop().run(_make_fence(self._files, task.batch, task.partition, Attempt(progress.runs, task.id)))
        is_repeated = fence is not None and background_loop().run(fence.begin())
        may_be_stored = stage is Stage.REPLAY or task.attempt > 0 or is_repeated
        replay = Replay(progress.ends_before(task.batch), may_be_unnamed=not progress.names_writers) if may_be_stored else None
        job = self._settings.job or task.query  # the same in every attempt at the batch
        assert job  # noqa: S101 - Spark gives every query an id; without one, all queries would be one writer
        settings = self._settings
        if progress.selection not in ("", settings.spec.selection.as_json()):
            log.info("batch %d began with another filter: it stores the messages that pass this filter too", task.batch)
            try:
                earlier = Selection.from_json(progress.selection)
            except ValueError as error:
                raise ConfigError(
                    f"the sink's record of the filter with which batch {task.batch} began is damaged: {error}"
                ) from error
            settings = replace(settings, spec=replace(settings.spec, earlier_selection=earlier))
        return TaskMessage(write_rows(settings, job, iterator, replay, fence))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Record that all tasks of the batch have finished. Raises ConfigError if several tasks wrote rows of one source."""
        results, settings = _results(messages), self._settings
        if settings.spec.deduplicate:
            check_streams(results)
        counts = Counts.total(result.counts for result in results)
        log.info("batch %d (checkpoint %s) is complete: %s", batchId, settings.checkpoint or "unknown", _describe(counts))
        _warn_unprotected(settings, counts)
        if (files := _open_files(settings)) is None:
            return
        topics = written_topics(settings.spec, counts)
        find_ends = find_topic_ends(settings.spec, topics, background_loop().cluster)
        ends = background_loop().run(find_ends, DRIVER_TIMEOUT_S, "reading the ends of the target topics")
        save_progress(files, _load(files).commit(batchId, ends, _totals(counts)))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Log the counts of a failed batch. The progress does not change, because Spark repeats the batch."""
        log.warning(
            "batch %d (checkpoint %s) failed, and Spark repeats it after a restart; counts of its finished tasks: %s",
            batchId,
            self._settings.checkpoint or "unknown",
            _describe(Counts.total(result.counts for result in _results(messages))),
        )


def make_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Return the writer of a batch write, for options as Spark passes them. Raises ConfigError."""
    if overwrite:
        raise ConfigError("mode overwrite: messages of a topic are never replaced", hint='Write with .mode("append")')
    return BatchWriter(sink_settings(parse_options(options, Usage.WRITE), schema))


def make_stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Return a writer of a streaming query. Spark calls this for each batch, and again for its commit. Raises ConfigError."""
    if overwrite:
        raise ConfigError(
            "output mode complete: messages of a topic are never replaced",
            hint='Write with .outputMode("append"), or in foreachBatch',
        )
    return StreamWriter(sink_settings(parse_options(options, Usage.WRITE), schema))


async def _make_fence(files: CheckpointFiles, batch_id: int, partition: int, attempt: Attempt) -> AttemptFence:
    """Return the fence of a task. It is a coroutine because a fence must be created on an event loop."""
    return AttemptFence(CheckpointClaimFiles(files), batch_id, partition, attempt)


def _open_files(settings: SinkSettings) -> CheckpointFiles | None:
    """Return the sink's folder in the checkpoint. If the sink cannot use it, log a warning and return None."""
    if settings.checkpoint is not None:
        return open_checkpoint_files(settings.checkpoint)
    log.warning(
        "the sink does not know its checkpointLocation, so it stores no progress: each batch searches its targets for messages "
        "that are stored already. Set checkpointLocation with .option(...) on writeStream, not in the Spark configuration"
    )
    return None


def _load(files: CheckpointFiles) -> Progress:
    """Return the progress in the file. Raises OSError, and ConfigError for an invalid file."""
    try:
        return load_progress(files)
    except ValueError as error:
        raise ConfigError(
            f"the progress of the sink in {files.path} cannot be read: {error}",
            hint="Remove the folder: the next batch then searches its targets for messages that are stored already",
        ) from error


def _find_fixed_ends(settings: SinkSettings) -> TopicEnds:
    """Return the current ends of the topics whose names do not depend on the rows. Raises RequestTimeout."""
    spec = settings.spec
    find_ends = find_topic_ends(spec, fixed_topics(spec), background_loop().cluster)
    return background_loop().run(find_ends, DRIVER_TIMEOUT_S, "reading the ends of the target topics")


def _warn_unprotected(settings: SinkSettings, counts: Counts) -> None:
    """Log a warning for each topic that was written and whose cluster deletes messages that nobody has read."""
    find = find_unprotected(settings.spec, written_topics(settings.spec, counts), background_loop().cluster)
    try:
        unprotected = background_loop().run(find, DRIVER_TIMEOUT_S, "checking whether the target topics keep their messages")
    except RequestTimeout as error:  # the messages are stored
        log.warning("%s", error)
        return
    for label, reason in unprotected.items():
        log.warning("messages written to %s may be lost: %s; or set unread=may_be_deleted", label, reason)


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """Return the results of the finished tasks; the message of any other task is None."""
    return [message.result for message in messages if isinstance(message, TaskMessage)]


def _totals(counts: Counts) -> dict[str, int]:
    """Return the counts by field name, without the counts per target."""
    return {name: count for name, count in asdict(counts).items() if isinstance(count, int)}


def _describe(counts: Counts) -> str:
    return ", ".join(f"{count} {name}" for name, count in _totals(counts).items() if count) or "nothing"
