"""The writers without Spark: the tests create, pickle and call them as Spark does, with the embedded log."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import WriterCommitMessage

from mqbridge.message import Partition
from mqbridge.spark.schema import message_schema
from mqbridge.spark.sink import attempt_fence
from mqbridge.spark.sink.task_attempt import TaskId
from mqbridge.spark.sink.writer import StreamWriter, TaskMessage, make_stream_writer, make_writer
from tests.spark.sink.logs import Log
from tests.spark.sink.test_task import rows_of
from tests.spark.transfer.flaky import batch, message

SCHEMA = message_schema()
SOURCES = [Partition("there", "orders", str(index), index) for index in range(2)]


class SparkCalls:
    """Calls a streaming sink as Spark does: each call has its own copy of the writer."""

    def __init__(self, log: Log, checkpoint: Path | None, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self._options = {"url": log.url, "topic": "copy", **options}
        if checkpoint is not None:
            self._options["checkpointlocation"] = str(checkpoint)
        self._monkeypatch = monkeypatch
        self._last_attempt_id = 0

    def make(self) -> StreamWriter:
        """Create a writer as Spark does on the driver, for a batch or for a commit."""
        writer = make_stream_writer(self._options, SCHEMA, overwrite=False)
        assert isinstance(writer, StreamWriter)
        return writer

    def begin(self) -> bytes:
        """Begin a batch, and return the pickled writer for its tasks."""
        writer = self.make()
        first = pickle.dumps(writer)
        assert pickle.loads(pickle.dumps(writer)).__dict__.keys() == pickle.loads(first).__dict__.keys(), "Spark pickles it twice"
        return first

    def write(self, pickled: bytes, batch_id: int, partition: int, numbers: range, attempt: int = 0) -> WriterCommitMessage:
        """Run a task as Spark does in a worker: write messages with these numbers."""
        self._last_attempt_id += 1
        task = TaskId(partition, attempt, self._last_attempt_id, batch_id, "query")
        self._monkeypatch.setattr(TaskId, "current", classmethod(lambda _: task))
        rows = rows_of(batch([message(n) for n in numbers], SOURCES[partition]))
        return pickle.loads(pickle.dumps(pickle.loads(pickled).write(iter([rows]))))  # type: ignore[no-any-return]

    def commit(self, batch_id: int, *messages: WriterCommitMessage | None) -> None:
        """Commit a batch as Spark does on the driver, with another copy of the writer."""
        self.make().commit(list(messages), batch_id)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    created = Log(tmp_path / "log")
    created.create("copy", 2)
    return created


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the wait of repeated attempts: no other attempt runs in these tests."""
    monkeypatch.setattr(attempt_fence, "CHECK_INTERVAL_S", 0.01)


def counts(task_message: WriterCommitMessage) -> tuple[int, int]:
    """Return how many messages a task stored, and how many it skipped."""
    assert isinstance(task_message, TaskMessage)
    return task_message.result.counts.stored, task_message.result.counts.skipped


def numbers_of(log: Log) -> list[list[int]]:
    """Return the numbers of the messages in the topic `copy`, one list per partition."""
    return [[int(payload or b"") for payload in partition] for partition in log.payloads("copy")]


def progress_of(checkpoint: Path) -> dict[str, object]:
    (file,) = (checkpoint / "mqbridge").glob("progress.*")
    progress = json.loads(file.read_text())
    return {name: progress[name] for name in ("committed", "begun")}


def test_the_progress_file_decides_whether_a_batch_is_fresh_replayed_or_skipped(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, checkpoint = SparkCalls(log, tmp_path / "checkpoint", monkeypatch), tmp_path / "checkpoint"
    pickled = spark.begin()
    assert progress_of(checkpoint) == {"committed": -1, "begun": 0}
    assert counts(spark.write(pickled, 0, 0, range(10))) == (10, 0)
    spark.make().abort([None, None], 0)  # then the driver crashes
    assert progress_of(checkpoint) == {"committed": -1, "begun": 0}

    repeated = spark.begin()
    first, second = spark.write(repeated, 0, 0, range(10)), spark.write(repeated, 0, 1, range(10))
    assert (counts(first), counts(second)) == ((0, 10), (10, 0))
    spark.commit(0, first, second)
    assert progress_of(checkpoint) == {"committed": 0, "begun": 0}
    assert numbers_of(log) == [list(range(10))] * 2
    assert [path.name for path in (checkpoint / "mqbridge").iterdir() if path.name.startswith("claim-0")]

    # Spark crashed before it wrote its own commit, so it repeats batch 0.
    skipped = spark.begin()
    assert counts(spark.write(skipped, 0, 0, range(10))) == (0, 0)
    spark.commit(0, *[TaskMessage(), TaskMessage()])
    following = spark.begin()
    assert counts(spark.write(following, 1, 0, range(10, 20))) == (10, 0)
    assert not [path.name for path in (checkpoint / "mqbridge").iterdir() if path.name.startswith("claim-0")]
    assert numbers_of(log) == [list(range(20)), list(range(10))]


def test_a_repeated_attempt_skips_messages_that_are_stored(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = SparkCalls(log, tmp_path, monkeypatch)
    pickled = spark.begin()
    spark.write(pickled, 0, 0, range(6))
    assert counts(spark.write(pickled, 0, 0, range(10), attempt=1)) == (4, 6)
    # A repeated stage counts its attempts from 0 again: only the claims show that the attempt is a repeated one.
    assert counts(spark.write(pickled, 0, 0, range(10))) == (0, 10)
    assert numbers_of(log)[0] == list(range(10))


def test_an_earlier_attempt_stops_when_a_later_one_has_begun(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = SparkCalls(log, tmp_path, monkeypatch)
    earlier = spark.begin()
    later = spark.begin()
    spark.write(later, 0, 0, range(6))
    with pytest.raises(Exception, match="a later attempt at task 0 of batch"):
        spark.write(earlier, 0, 0, range(10))
    assert numbers_of(log)[0] == list(range(6))


def test_without_a_checkpoint_each_batch_searches_the_target(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del tmp_path
    spark = SparkCalls(log, None, monkeypatch)
    for batch_id in (0, 0, 1):
        written = spark.write(spark.begin(), batch_id, 0, range(10 * batch_id, 10 * batch_id + 10))
        spark.commit(batch_id, written)
    assert numbers_of(log)[0] == list(range(20))
    assert "does not know its checkpointLocation" in caplog.text


def test_with_a_lost_progress_file_a_batch_searches_the_target(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = SparkCalls(log, tmp_path, monkeypatch)
    spark.commit(0, spark.write(spark.begin(), 0, 0, range(10)))
    spark.write(spark.begin(), 1, 0, range(10, 14))
    for path in (tmp_path / "mqbridge").iterdir():
        path.unlink()
    assert counts(spark.write(spark.begin(), 1, 0, range(10, 20))) == (6, 4)
    assert numbers_of(log)[0] == list(range(20))


def test_the_progress_of_another_query_is_ignored(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user deletes Spark's files of a checkpoint, but not the sink's folder: batch ids begin at 0 again."""
    spark = SparkCalls(log, tmp_path, monkeypatch)
    (tmp_path / "metadata").write_text('{"id":"one"}')
    for batch_id in range(2):
        spark.commit(batch_id, spark.write(spark.begin(), batch_id, 0, range(10 * batch_id, 10 * batch_id + 10)))
    assert counts(spark.write(spark.begin(), 1, 0, range(10, 20))) == (0, 0), "the same query"

    (tmp_path / "metadata").write_text('{"id":"two"}')
    pickled = spark.begin()
    assert counts(spark.write(pickled, 0, 0, range(20, 26))) == (6, 0)
    repeated = spark.write(spark.begin(), 0, 0, range(20, 30))
    assert counts(repeated) == (4, 6)
    spark.commit(0, repeated)
    spark.commit(1, spark.write(spark.begin(), 1, 0, range(30, 40)))
    assert numbers_of(log)[0] == list(range(40))
    assert "ignoring the sink's progress: it belongs to query one, not to this query two" in caplog.text


def test_a_commit_fails_if_two_tasks_wrote_rows_of_one_source(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = SparkCalls(log, tmp_path, monkeypatch)
    pickled = spark.begin()
    first, second = spark.write(pickled, 0, 0, range(5)), spark.write(pickled, 0, 1, range(5))
    with pytest.raises(Exception, match="were written by several tasks"):
        spark.commit(0, first, first)
    spark.commit(0, first, second, None)


def test_the_error_for_a_damaged_progress_file_names_the_remedy(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mqbridge").mkdir()
    (tmp_path / "mqbridge" / "progress.3").write_text("?")
    with pytest.raises(Exception, match=r"cannot be read.*Remove the folder"):
        SparkCalls(log, tmp_path, monkeypatch).begin()


def test_the_attempts_of_one_batch_write_store_each_message_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"url": log.url, "topic": "copy"}

    def write(pickled: bytes, numbers: range, attempt: int) -> WriterCommitMessage:
        monkeypatch.setattr(TaskId, "current", classmethod(lambda _: TaskId(0, attempt, attempt, None, None)))
        rows: Iterator[object] = iter([rows_of(batch([message(n) for n in numbers], SOURCES[0]))])
        return pickle.loads(pickled).write(rows)  # type: ignore[no-any-return]

    for job in ({}, {"jobId": "named"}):
        pickled = pickle.dumps(make_writer(options | job, SCHEMA, overwrite=False))
        assert counts(write(pickled, range(6), 0)) == (6, 0)
        assert counts(write(pickled, range(10), 1)) == (4, 6)
    pickled = pickle.dumps(make_writer(options | {"jobId": "named"}, SCHEMA, overwrite=False))
    assert counts(write(pickled, range(10), 0)) == (0, 10), "the job is repeated under its name"
    pickled = pickle.dumps(make_writer(options, SCHEMA, overwrite=False))
    assert counts(write(pickled, range(6), 0)) == (6, 0), "another job without a name stores them again"
    pickled = pickle.dumps(make_writer(options, SCHEMA, overwrite=False))
    assert counts(write(pickled, range(6), 1)) == (6, 0), "also if the first attempt stored nothing"


@pytest.mark.parametrize("earlier_version", [True, False])
def test_a_batch_that_an_earlier_version_began_is_stored_with_a_warning(
    earlier_version: bool, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages that name no writer may be of another job, so they are not skipped; only earlier versions wrote none."""
    spark = SparkCalls(log, tmp_path, monkeypatch)
    spark.begin()
    (file,) = (tmp_path / "mqbridge").glob("progress.*")
    if earlier_version:
        progress = json.loads(file.read_text())
        del progress["names_writers"]
        file.write_text(json.dumps(progress))
    log.fill("copy", [[message(n, origin=f"there|orders|0|{n}") for n in range(4)], []])
    again = spark.write(spark.begin(), 0, 0, range(6), attempt=1)
    assert counts(again) == (6, 0)
    assert any("origins name no writer" in record.message for record in caplog.records) is earlier_version
    spark.commit(0, again)
    assert counts(spark.write(spark.begin(), 1, 0, range(6, 9))) == (3, 0)


def test_a_wider_filter_has_no_effect_on_a_batch_that_is_repeated(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt stores no message of type b. With the new filter alone they would count as refused."""
    config = tmp_path / "config.yaml"

    def set_filter(text: str) -> None:
        config.write_text(f"""
clusters: {{there: {{system: log, path: {tmp_path / "source.db"}}}, disk: {{system: log, path: {log.url.removeprefix("log://")}}}}}
routes: [{{name: r, from: {{cluster: there, topic: orders, group: g{text}}}, to: {{cluster: disk, topic: copy}}}}]
""")

    spark = SparkCalls(log, tmp_path / "checkpoint", monkeypatch)
    spark._options = {"config": str(config), "route": "r", "checkpointlocation": str(tmp_path / "checkpoint")}

    def write(batch_id: int, numbers: range) -> WriterCommitMessage:
        task = TaskId(0, 0, numbers[-1], batch_id, "query")
        monkeypatch.setattr(TaskId, "current", classmethod(lambda _: task))
        messages = [message(n, msg_type="ab"[n % 2]) for n in numbers]
        return pickle.loads(spark.begin()).write(iter([rows_of(batch(messages, SOURCES[0]))]))  # type: ignore[no-any-return]

    set_filter(", msg_types: [a]")
    assert counts(write(0, range(6))) == (3, 0)
    set_filter("")
    repeated = write(0, range(8))
    assert counts(repeated) == (1, 3)
    spark.commit(0, repeated)
    assert counts(write(1, range(8, 12))) == (4, 0)
    set_filter(", msg_types: [b]")
    assert counts(write(1, range(8, 16))) == (2, 2), "a narrower filter has an effect at once"
    assert numbers_of(log) == [[0, 2, 4, 6, 8, 9, 10, 11, 13, 15], []]
