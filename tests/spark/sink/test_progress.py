"""The progress of a streaming sink, with a model of Spark that crashes at any step: nothing is lost or stored twice."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mqbridge.spark.sink import checkpoint_files
from mqbridge.spark.sink.checkpoint_files import CheckpointFiles, open_checkpoint_files
from mqbridge.spark.sink.progress import Progress, Stage, load_progress, read_totals, save_progress
from mqbridge.spark.transfer.selection import Selection
from mqbridge.spark.transfer.spec import TopicEnds

TOPIC = ("here", "copy")


class SparkModel(RuleBasedStateMachine):
    """A query with one task per batch over one source. A batch is a range of numbers, and is the same when it is repeated.

    The sink behaves like `StreamWriter`: each call has its own object, which knows only the file. A crash ends everything that
    runs; then Spark plans again from its two logs. A task with a fresh batch sends all messages. A task that replays a batch
    looks up which messages the target has after a position, as `transfer.resume` does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[range] = []
        """Spark's log of planned batches."""
        self.commits = 0
        """Number of batches in Spark's log of commits."""
        self.target: list[int] = []
        self.next_number = 0
        self._temporary = TemporaryDirectory()
        self.checkpoint = self._temporary.name
        self.running: tuple[int, bytes, Stage] | None = None
        """The running batch: its id, the pickled state of its writer, and the stage."""
        self.unsent: list[int] = []
        self.written: int | None = None
        """Number of messages that the finished task wrote; None if it has not finished."""
        self.is_sink_committed = False

    def teardown(self) -> None:
        self._temporary.cleanup()

    @property
    def files(self) -> CheckpointFiles:
        files = open_checkpoint_files(self.checkpoint)
        assert files is not None
        return files

    @property
    def batch_id(self) -> int:
        return self.commits

    # --- the steps of Spark -----------------------------------------------------------------------------------------

    @precondition(lambda self: self.running is None)
    @rule(count=st.integers(0, 4))
    def plan_and_make_the_writer(self, count: int) -> None:
        if len(self.offsets) == self.commits:
            self.offsets.append(range(self.next_number, self.next_number + count))
            self.next_number += count
        progress, stage = load_progress(self.files).begin(lambda: {TOPIC: {"0": (len(self.target),)}})
        save_progress(self.files, progress)
        self.running = (self.batch_id, progress.as_json(), stage)
        self.written, self.is_sink_committed = None, False
        self.unsent = self._to_send()

    def _to_send(self) -> list[int]:
        """Return the numbers that the task has to send, according to the pickled state of its writer."""
        assert self.running is not None
        batch_id, data, stage = self.running
        progress = Progress.from_json(data)
        numbers = list(self.offsets[batch_id])
        stage = progress.decide(batch_id, stage)
        if stage is Stage.SKIP:
            return []
        if stage is Stage.FRESH:
            return numbers
        since = progress.ends_before(batch_id).get(TOPIC, {}).get("0", (0,))[0]
        stored = self.target[since:]
        return [number for number in numbers if not stored or number > max(stored)]

    @precondition(lambda self: self.running is not None and self.unsent)
    @rule(count=st.integers(1, 3))
    def send_some(self, count: int) -> None:
        self.target += self.unsent[:count]
        del self.unsent[:count]

    @precondition(lambda self: self.running is not None and not self.unsent and self.written is None)
    @rule()
    def finish_the_task(self) -> None:
        assert self.running is not None
        self.written = len(self.offsets[self.running[0]])

    @precondition(lambda self: self.written is not None and not self.is_sink_committed)
    @rule()
    def commit_in_the_sink(self) -> None:
        assert self.running is not None
        assert self.written is not None
        ends = {TOPIC: {"0": (len(self.target),)}}
        save_progress(self.files, load_progress(self.files).commit(self.running[0], ends, {"received": self.written}))
        self.is_sink_committed = True

    @precondition(lambda self: self.is_sink_committed)
    @rule()
    def commit_in_spark(self) -> None:
        self.commits += 1
        self._stop()

    # --- faults -----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.running is not None)
    @rule()
    def crash(self) -> None:
        """Crash the driver, and with it everything that runs."""
        self._stop()

    @precondition(lambda self: self.running is not None and not self.is_sink_committed)
    @rule()
    def abort(self) -> None:
        """Fail a task for good: Spark aborts the sink's batch, which changes nothing, and the query ends."""
        before = load_progress(self.files)
        self._stop()
        assert load_progress(self.files) == before

    @rule()
    def crash_while_writing_progress(self) -> None:
        """Crash while the progress is written. A draft file remains, which nobody reads."""
        path = Path(self.files.path)
        path.mkdir(exist_ok=True)
        (path / ".progress.half").write_bytes(b'{"version": 1, "comm')

    @precondition(lambda self: self.running is None and self.commits > 0)
    @rule()
    def lose_the_progress_file(self) -> None:
        """Lose the progress file. The next task then searches the target from its beginning."""
        self.files.remove({"progress"})

    def _stop(self) -> None:
        self.running, self.written, self.is_sink_committed, self.unsent = None, None, False, []

    # --- invariants -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_or_duplicated(self) -> None:
        assert self.target == list(range(len(self.target)))
        assert len(self.target) >= sum(len(batch) for batch in self.offsets[: self.commits])


TestSparkModel = SparkModel.TestCase


def test_saved_progress_is_loaded_again_and_commits_add_to_the_totals(tmp_path: Path) -> None:
    files = open_checkpoint_files(str(tmp_path))
    assert files is not None
    begun, stage = load_progress(files).begin(dict)
    assert (stage, begun.begun, begun.committed) == (Stage.FRESH, 0, -1)
    save_progress(files, begun)
    assert load_progress(files) == begun
    assert load_progress(files).begin(dict)[1] is Stage.REPLAY
    ends: TopicEnds = {TOPIC: {"a:0": (12, 3), "a:10": (5,)}, ("here", "a/b"): {"0": (1, 2, 3)}}
    save_progress(files, begun.commit(0, ends, {"stored": 5}).commit(1, {TOPIC: {"a:0": (13, 0)}}, {"stored": 2, "dead": 1}))
    loaded = load_progress(files)
    assert loaded.ends == {TOPIC: {"a:0": (13, 0)}, ("here", "a/b"): {"0": (1, 2, 3)}}
    assert read_totals(f"file:{tmp_path}") == read_totals(tmp_path.as_uri()) == {"stored": 7, "dead": 1}
    assert loaded.commit(1, {}, {"stored": 99}) == loaded, "a repeated commit changes nothing"
    assert loaded.decide(1, Stage.FRESH) is Stage.SKIP
    assert loaded.decide(2, Stage.FRESH) is Stage.FRESH
    assert loaded.decide(9, Stage.FRESH) is Stage.REPLAY, "the progress file does not know the previous batch"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 2}', b'{"version": 1, "committed": 1}', b"\xff"])
def test_an_invalid_progress_file_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each file has another message
        Progress.from_json(data)


def test_checkpoint_files_are_replaced_atomically_and_listed(tmp_path: Path) -> None:
    files = open_checkpoint_files(str(tmp_path))
    assert files is not None
    assert files.read("progress") is None
    assert files.names("claim-") == []
    for number in range(12):
        files.write("progress", b"%d" % number)
        assert files.read("progress") == b"%d" % number
    assert [path.name for path in (tmp_path / "mqbridge").iterdir()] == ["progress.12"]
    (tmp_path / "mqbridge" / "progress.11").write_bytes(b"left by a crash")
    assert files.read("progress") == b"11"
    files.write("claim-1-0.1-7", b"")
    files.write("claim-12-0.1-8", b"")
    assert files.names("claim-1-") == ["claim-1-0.1-7"]
    files.remove({"claim-1-0.1-7"})
    assert files.names("claim-") == ["claim-12-0.1-8"]


def test_checkpoints_are_relative_paths_absolute_paths_or_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def path_of(checkpoint: str) -> str:
        files = open_checkpoint_files(checkpoint)
        assert files is not None
        return files.path

    assert path_of("some/where") == f"{tmp_path}/some/where/mqbridge"
    assert path_of("file:/some/where") == path_of("file:///some/where") == "/some/where/mqbridge"
    assert path_of("file:///some%20where") == "/some where/mqbridge"


def test_a_checkpoint_that_pyarrow_cannot_access_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert open_checkpoint_files("dbfs:/some/where") is None
    assert "the sink stores no progress in dbfs:/some/where" in caplog.text


DAMAGED = [
    b"",
    b"[]",
    b"null",
    b"[" * 100_000,
    b'{"version": 1}',
    b'{"version": 1, "committed": "3", "begun": 3, "runs": 1, "ends": [], "totals": {}}',
    b'{"version": 1, "committed": 1.5, "begun": 3, "runs": 1, "ends": [], "totals": {}}',
    b'{"version": 1, "committed": 1, "begun": null, "runs": 1, "ends": [], "totals": {}}',
    b'{"version": 1, "committed": 1, "begun": 1, "runs": 1, "ends": 5, "totals": {}}',
    b'{"version": 1, "committed": 1, "begun": 1, "runs": 1, "ends": [{"cluster": []}], "totals": {}}',
    b'{"version": 1, "committed": 1, "begun": 1, "runs": 1, "ends": [], "totals": {"stored": "many"}}',
    b'{"version": 1, "committed": 1, "begun": 1, "runs": 1, "ends": [], "totals": [], "selection": {}}',
]


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: content[:70].decode())
def test_a_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the parser, or of the check
        Progress.from_json(content)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_files, "MAX_RECORD_BYTES", 1000)
    files = open_checkpoint_files(str(tmp_path))
    assert files is not None
    files.write("progress", b" " * 1001)
    with pytest.raises(ValueError, match="more than 1000 bytes, so mqbridge has not written it"):
        load_progress(files)


def test_files_with_other_names_are_ignored(tmp_path: Path) -> None:
    files = open_checkpoint_files(str(tmp_path))
    assert files is not None
    files.write("progress", b"content")
    for suffix in ("²", "x", "9" * 200):
        (tmp_path / "mqbridge" / f"progress.{suffix}").write_bytes(b"other")
    assert files.read("progress") == b"content"


@pytest.mark.parametrize("text", ["", "5", "{}", '{"msg_types": 5, "filter": {}}', '{"msg_types": [], "filter": []}', "[" * 5000])
def test_a_damaged_selection_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of the parser, or of the check
        Selection.from_json(text)
