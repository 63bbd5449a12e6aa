"""The writers as Spark makes, pickles and calls them, without Spark: over the embedded log, in this process."""

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
from mqbridge.spark.sink.writer import StreamWriter, Written, make_stream_writer, make_writer
from tests.spark.sink.logs import Log
from tests.spark.sink.test_task import rows_of
from tests.spark.transfer.flaky import batch, message

SCHEMA = message_schema()
SOURCES = [Partition("there", "orders", str(index), index) for index in range(2)]


class Tasks:
    """What Spark does with a streaming sink: everything in its own copy."""

    def __init__(self, log: Log, checkpoint: Path | None, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self._options = {"url": log.url, "topic": "copy", **options}
        if checkpoint is not None:
            self._options["checkpointlocation"] = str(checkpoint)
        self._monkeypatch = monkeypatch
        self._id = 0

    def make(self) -> StreamWriter:
        """On the driver, for a batch or for a commit."""
        made = make_stream_writer(self._options, SCHEMA, overwrite=False)
        assert isinstance(made, StreamWriter)
        return made

    def begin(self) -> bytes:
        """What the tasks of a batch are sent."""
        writer = self.make()
        first = pickle.dumps(writer)
        assert pickle.loads(pickle.dumps(writer)).__dict__.keys() == pickle.loads(first).__dict__.keys(), "Spark does it twice"
        return first

    def write(
        self, pickled: bytes, batch_id: int, partition: int, numbers: range, attempt: int = 0, new_id: bool = True
    ) -> WriterCommitMessage:
        """In a worker."""
        self._id += new_id
        task = TaskId(partition, attempt, self._id, batch_id, "query")
        self._monkeypatch.setattr(TaskId, "current", classmethod(lambda _: task))
        rows = rows_of(batch([message(n) for n in numbers], SOURCES[partition]))
        return pickle.loads(pickle.dumps(pickle.loads(pickled).write(iter([rows]))))  # type: ignore[no-any-return]

    def commit(self, batch_id: int, *messages: WriterCommitMessage | None) -> None:
        """On the driver, in another process."""
        self.make().commit(list(messages), batch_id)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    found = Log(tmp_path / "log")
    found.create("copy", 2)
    return found


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else runs: whoever repeats need not wait for long."""
    monkeypatch.setattr(attempt_fence, "INTERVAL_S", 0.01)


def counts(written: WriterCommitMessage) -> tuple[int, int]:
    assert isinstance(written, Written)
    return written.result.counts.stored, written.result.counts.skipped


def numbers_of(log: Log) -> list[list[int]]:
    return [[int(payload or b"") for payload in some] for some in log.payloads("copy")]


def state(checkpoint: Path) -> dict[str, object]:
    (file,) = (checkpoint / "mqbridge").glob("progress.*")
    found = json.loads(file.read_text())
    return {name: found[name] for name in ("committed", "begun")}


def test_batches_are_fresh_repeated_or_skipped_by_what_the_file_says(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks, checkpoint = Tasks(log, tmp_path / "checkpoint", monkeypatch), tmp_path / "checkpoint"
    begun = tasks.begin()
    assert state(checkpoint) == {"committed": -1, "begun": 0}
    assert counts(tasks.write(begun, 0, 0, range(10))) == (10, 0)
    tasks.make().abort([None, None], 0)  # and the driver ends
    assert state(checkpoint) == {"committed": -1, "begun": 0}

    again = tasks.begin()
    first, second = tasks.write(again, 0, 0, range(10)), tasks.write(again, 0, 1, range(10))
    assert (counts(first), counts(second)) == ((0, 10), (10, 0))
    tasks.commit(0, first, second)
    assert state(checkpoint) == {"committed": 0, "begun": 0}
    assert numbers_of(log) == [list(range(10))] * 2
    assert [path.name for path in (checkpoint / "mqbridge").iterdir() if path.name.startswith("claim-0")]

    # Spark ended before it wrote its own commit, so it repeats batch 0.
    skipped = tasks.begin()
    assert counts(tasks.write(skipped, 0, 0, range(10))) == (0, 0)
    tasks.commit(0, *[Written(), Written()])
    following = tasks.begin()
    assert counts(tasks.write(following, 1, 0, range(10, 20))) == (10, 0)
    assert not [path.name for path in (checkpoint / "mqbridge").iterdir() if path.name.startswith("claim-0")]
    assert numbers_of(log) == [list(range(20)), list(range(10))]


def test_an_attempt_that_is_repeated_finds_what_is_stored(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(log, tmp_path, monkeypatch)
    begun = tasks.begin()
    tasks.write(begun, 0, 0, range(6))
    assert counts(tasks.write(begun, 0, 0, range(10), attempt=1)) == (4, 6)
    # A stage that is repeated counts its attempts from 0 again; only the claim tells.
    assert counts(tasks.write(begun, 0, 0, range(10))) == (0, 10)
    assert numbers_of(log)[0] == list(range(10))


def test_an_attempt_that_is_not_the_last_is_stopped(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(log, tmp_path, monkeypatch)
    begun = tasks.begin()
    late = tasks.begin()
    tasks.write(late, 0, 0, range(6))
    with pytest.raises(Exception, match="another attempt at claim-0-0 has begun"):
        tasks.write(begun, 0, 0, range(10))
    assert numbers_of(log)[0] == list(range(6))


def test_without_a_file_each_batch_asks_the_target(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    del tmp_path
    tasks = Tasks(log, None, monkeypatch)
    for batch_id in (0, 0, 1):
        written = tasks.write(tasks.begin(), batch_id, 0, range(10 * batch_id, 10 * batch_id + 10))
        tasks.commit(batch_id, written)
    assert numbers_of(log)[0] == list(range(20))
    assert "was not told its checkpointLocation" in caplog.text


def test_a_folder_whose_file_was_lost_asks_the_target(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(log, tmp_path, monkeypatch)
    tasks.commit(0, tasks.write(tasks.begin(), 0, 0, range(10)))
    tasks.write(tasks.begin(), 1, 0, range(10, 14))
    for path in (tmp_path / "mqbridge").iterdir():
        path.unlink()
    assert counts(tasks.write(tasks.begin(), 1, 0, range(10, 20))) == (6, 4)
    assert numbers_of(log)[0] == list(range(20))


def test_progress_of_a_query_that_is_gone_counts_for_nothing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody removes what he knows of a checkpoint, and not the sink's folder: batches begin at 0 again."""
    tasks = Tasks(log, tmp_path, monkeypatch)
    (tmp_path / "metadata").write_text('{"id":"one"}')
    for batch_id in range(2):
        tasks.commit(batch_id, tasks.write(tasks.begin(), batch_id, 0, range(10 * batch_id, 10 * batch_id + 10)))
    assert counts(tasks.write(tasks.begin(), 1, 0, range(10, 20))) == (0, 0), "of the same query"

    (tmp_path / "metadata").write_text('{"id":"two"}')
    begun = tasks.begin()
    assert counts(tasks.write(begun, 0, 0, range(20, 26))) == (6, 0)
    again = tasks.begin()
    written = tasks.write(again, 0, 0, range(20, 30))
    assert counts(written) == (4, 6)
    tasks.commit(0, written)
    tasks.commit(1, tasks.write(tasks.begin(), 1, 0, range(30, 40)))
    assert numbers_of(log)[0] == list(range(40))
    assert "the progress of the sink is of the query one, and this one is two" in caplog.text


def test_a_source_in_two_tasks_is_refused_at_the_commit(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = Tasks(log, tmp_path, monkeypatch)
    begun = tasks.begin()
    first, second = tasks.write(begun, 0, 0, range(5)), tasks.write(begun, 0, 1, range(5))
    with pytest.raises(Exception, match="were written by several tasks"):
        tasks.commit(0, first, first)
    tasks.commit(0, first, second, None)


def test_a_damaged_file_says_what_to_do(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mqbridge").mkdir()
    (tmp_path / "mqbridge" / "progress.3").write_text("?")
    with pytest.raises(Exception, match=r"cannot be read.*Remove the folder"):
        Tasks(log, tmp_path, monkeypatch).begin()


def test_a_batch_write_is_stored_once_by_all_of_its_attempts(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"url": log.url, "topic": "copy"}

    def write(pickled: bytes, numbers: range, attempt: int) -> WriterCommitMessage:
        monkeypatch.setattr(TaskId, "current", classmethod(lambda _: TaskId(0, attempt, attempt, None, None)))
        rows: Iterator[object] = iter([rows_of(batch([message(n) for n in numbers], SOURCES[0]))])
        return pickle.loads(pickled).write(rows)  # type: ignore[no-any-return]

    for job in ({}, {"jobId": "named"}):
        pickled = pickle.dumps(make_writer(options | job, SCHEMA, overwrite=False))
        assert counts(write(pickled, range(6), 0)) == ((6, 0) if not job else (0, 6))
        assert counts(write(pickled, range(10), 1)) == ((4, 6) if not job else (0, 10))
    pickled = pickle.dumps(make_writer(options, SCHEMA, overwrite=False))
    assert counts(write(pickled, range(6), 0)) == (6, 0), "another job without a name writes them again"
    pickled = pickle.dumps(make_writer(options, SCHEMA, overwrite=False))
    assert counts(write(pickled, range(6), 1)) == (6, 0), "also when its first attempt stored nothing"
