"""The progress of a streaming sink, against a model of Spark that crashes at every step: nothing is lost or stored twice."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from mqbridge.spark.sink.checkpoint_files import Folder, open_folder
from mqbridge.spark.sink.progress import Progress, Stage, load_progress, read_totals, save_progress
from mqbridge.spark.transfer.spec import TopicEnds

TOPIC = ("here", "copy")


class SparkModel(RuleBasedStateMachine):
    """A query with one task per batch over one source; a batch is a range of numbers, which is the same when it is repeated.

    The sink is as `StreamWriter`: an object for each call, which knows nothing but the file. A crash is the end of whatever runs;
    then Spark plans again from its two logs. The target says what it holds from a position on, as `resume` does; a task that is
    told that its batch is fresh sends without asking.
    """

    def __init__(self) -> None:
        super().__init__()
        self.offsets: list[range] = []
        """Spark's log of planned batches."""
        self.commits = 0
        """How many of them Spark knows to be done."""
        self.target: list[int] = []
        self.next = 0
        self._temporary = TemporaryDirectory()
        self.checkpoint = self._temporary.name
        self.running: tuple[int, bytes, Stage] | None = None
        """A batch whose writer was made: its number, the state that was pickled, and the stage."""
        self.unsent: list[int] = []
        self.written: int | None = None
        """Its task has ended."""
        self.sink_committed = False

    def teardown(self) -> None:
        self._temporary.cleanup()

    @property
    def folder(self) -> Folder:
        folder = open_folder(self.checkpoint)
        assert folder is not None
        return folder

    @property
    def batch_id(self) -> int:
        return self.commits

    # --- what Spark does, step by step ------------------------------------------------------------------------------

    @precondition(lambda self: self.running is None)
    @rule(count=st.integers(0, 4))
    def plan_and_make_the_writer(self, count: int) -> None:
        if len(self.offsets) == self.commits:
            self.offsets.append(range(self.next, self.next + count))
            self.next += count
        progress, stage = load_progress(self.folder).begin(lambda: {TOPIC: {0: (len(self.target),)}})
        save_progress(self.folder, progress)
        self.running = (self.batch_id, progress.as_json(), stage)
        self.written, self.sink_committed = None, False
        self.unsent = self._to_send()

    def _to_send(self) -> list[int]:
        """What the task sends, as it begins: in a worker, by the state that was pickled."""
        assert self.running is not None
        batch_id, data, stage = self.running
        progress = Progress.from_json(data)
        numbers = list(self.offsets[batch_id])
        stage = progress.decide(batch_id, stage)
        if stage is Stage.SKIP:
            return []
        if stage is Stage.FRESH:
            return numbers
        since = progress.ends_before(batch_id).get(TOPIC, {}).get(0, (0,))[0]
        held = self.target[since:]
        return [number for number in numbers if not held or number > max(held)]

    @precondition(lambda self: self.running is not None and self.unsent)
    @rule(count=st.integers(1, 3))
    def send_some(self, count: int) -> None:
        self.target += self.unsent[:count]
        del self.unsent[:count]

    @precondition(lambda self: self.running is not None and not self.unsent and self.written is None)
    @rule()
    def the_task_ends(self) -> None:
        assert self.running is not None
        self.written = len(self.offsets[self.running[0]])

    @precondition(lambda self: self.written is not None and not self.sink_committed)
    @rule()
    def the_sink_commits(self) -> None:
        assert self.running is not None
        assert self.written is not None
        ends = {TOPIC: {0: (len(self.target),)}}
        save_progress(self.folder, load_progress(self.folder).commit(self.running[0], ends, {"received": self.written}))
        self.sink_committed = True

    @precondition(lambda self: self.sink_committed)
    @rule()
    def spark_commits(self) -> None:
        self.commits += 1
        self._stop()

    # --- what goes wrong --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.running is not None)
    @rule()
    def crash(self) -> None:
        """The driver ends, with everything."""
        self._stop()

    @precondition(lambda self: self.running is not None and not self.sink_committed)
    @rule()
    def abort(self) -> None:
        """A task fails for good: Spark tells the sink, which moves nothing, and the query ends."""
        before = load_progress(self.folder)
        self._stop()
        assert load_progress(self.folder) == before

    @rule()
    def write_half_a_file(self) -> None:
        """A crash in the middle of writing the state leaves a draft, which nobody reads."""
        path = Path(self.folder.path)
        path.mkdir(exist_ok=True)
        (path / ".progress.half").write_bytes(b'{"version": 1, "comm')

    @precondition(lambda self: self.running is None and self.commits > 0)
    @rule()
    def lose_the_state(self) -> None:
        """The folder is gone: what is stored is read back from the beginning."""
        self.folder.remove({"progress"})

    def _stop(self) -> None:
        self.running, self.written, self.sink_committed, self.unsent = None, None, False, []

    # --- what must hold ---------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        assert self.target == list(range(len(self.target)))
        assert len(self.target) >= sum(len(batch) for batch in self.offsets[: self.commits])


TestSparkModel = SparkModel.TestCase


def test_the_state_survives_the_file_and_totals_grow(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    assert folder is not None
    begun, stage = load_progress(folder).begin(dict)
    assert (stage, begun.begun, begun.committed) == (Stage.FRESH, 0, -1)
    save_progress(folder, begun)
    assert load_progress(folder) == begun
    assert load_progress(folder).begin(dict)[1] is Stage.REPLAY
    ends: TopicEnds = {TOPIC: {0: (12, 3), 10: (5,)}, ("here", "a/b"): {0: (1, 2, 3)}}
    save_progress(folder, begun.commit(0, ends, {"stored": 5}).commit(1, {TOPIC: {0: (13, 0)}}, {"stored": 2, "dead": 1}))
    found = load_progress(folder)
    assert found.ends == {TOPIC: {0: (13, 0)}, ("here", "a/b"): {0: (1, 2, 3)}}
    assert read_totals(f"file:{tmp_path}") == read_totals(tmp_path.as_uri()) == {"stored": 7, "dead": 1}
    assert found.commit(1, {}, {"stored": 99}) == found, "the same commit again"
    assert found.decide(1, Stage.FRESH) is Stage.SKIP
    assert found.decide(2, Stage.FRESH) is Stage.FRESH
    assert found.decide(9, Stage.FRESH) is Stage.REPLAY, "nobody knows what was before"


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"version": 2}', b'{"version": 1, "committed": 1}', b"\xff"])
def test_a_file_that_is_no_progress_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong
        Progress.from_json(data)


def test_a_folder_replaces_files_in_one_step_and_lists_them(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    assert folder is not None
    assert folder.read("progress") is None
    assert folder.names("claim-") == []
    for number in range(12):
        folder.write("progress", b"%d" % number)
        assert folder.read("progress") == b"%d" % number
    assert [path.name for path in (tmp_path / "mqbridge").iterdir()] == ["progress.12"]
    (tmp_path / "mqbridge" / "progress.11").write_bytes(b"left by a crash")
    assert folder.read("progress") == b"11"
    folder.write("claim-1-0.1-7", b"")
    folder.write("claim-12-0.1-8", b"")
    assert folder.names("claim-1-") == ["claim-1-0.1-7"]
    folder.remove({"claim-1-0.1-7"})
    assert folder.names("claim-") == ["claim-12-0.1-8"]


def test_paths_are_relative_to_the_working_directory_and_urls_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def path_of(checkpoint: str) -> str:
        folder = open_folder(checkpoint)
        assert folder is not None
        return folder.path

    assert path_of("some/where") == f"{tmp_path}/some/where/mqbridge"
    assert path_of("file:/some/where") == path_of("file:///some/where") == "/some/where/mqbridge"
    assert path_of("file:///some%20where") == "/some where/mqbridge"


def test_a_place_that_nobody_reaches_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert open_folder("dbfs:/some/where") is None
    assert "the sink keeps no progress in dbfs:/some/where" in caplog.text
