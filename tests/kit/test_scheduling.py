"""The distribution of tests over processes: each kind of shared cluster is used by one process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xdist.scheduler import loadscope

from tests.kit import scheduling
from tests.kit.scheduling import GroupScheduling, groups_of
from tests.kit.shared_clusters import GROUPS, OWN

UNITS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([*GROUPS, OWN, None]), st.integers(1, 5)),
    min_size=1,
    max_size=30,
    unique_by=lambda unit: unit[:2],
)
"""Number of the file, group, number of tests."""


ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
import pytest
from tests.conftest import pytest_collection_modifyitems, pytest_xdist_make_scheduler

@pytest.fixture
def pulsar():
    return "pulsar"

@pytest.fixture
def pulsar_locked():
    return "pulsar_locked"
"""
TEST_FILE = """
import os, pathlib, time, pytest

@pytest.mark.parametrize("number", range(4))
def test_note(number, {kind}):
    name = pathlib.Path(__file__).stem + str(number)
    pathlib.Path(os.environ["NOTES"], f"note-{kind}-{{os.environ['PYTEST_XDIST_WORKER']}}-{{name}}").touch()
"""


class Node:
    """A process that runs the tests that it gets, oldest first. A real one, too, runs the last only when more come or it ends."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.workerinput = {"testrunuid": "run"}
        self.shutting_down = False
        self.pending: list[int] = []
        self.done: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.pending += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        return len(self.pending) > 1 or (self.shutting_down and bool(self.pending))


class Run:
    """A run of these tests with two processes, as pytest-xdist makes it."""

    def __init__(self, collection: list[str], groups: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.collection = collection
        self.nodes, self.ended = [Node("gw0"), Node("gw1")], []
        monkeypatch.setattr(scheduling, "read_groups", lambda _: groups)
        monkeypatch.setattr(loadscope, "parse_tx_spec_config", lambda _: self.nodes)
        self.schedule: Any = GroupScheduling(SimpleNamespace(option=SimpleNamespace(loadscopereorder=True)))  # type: ignore[arg-type]
        for node in self.nodes:
            self.schedule.add_node(node)
            self.schedule.add_node_collection(node, collection)
        self.schedule.schedule()

    def next_node(self, wanted: int) -> Node | None:
        """Return a process that can run a test, None after the last test."""
        if self.schedule.tests_finished:
            for node in self.nodes:
                node.shutdown()
        able = [node for node in self.nodes if node.can_run]
        return able[wanted % len(able)] if able else None

    def run_test(self, node: Node) -> None:
        test = node.pending.pop(0)
        node.done.append(test)
        self.schedule.mark_test_complete(node, test)

    def crash(self, node: Node) -> None:
        """End a process, and start another one in its place."""
        self.nodes.remove(node)
        self.ended.append(node)
        self.schedule.remove_node(node)
        replacement = Node("gw2")
        self.nodes.append(replacement)
        self.schedule.add_node(replacement)
        self.schedule.add_node_collection(replacement, self.collection)
        self.schedule.schedule()


@example(units=[(0, "open", 1), (1, "open", 1)], turns=[0], crash_at=0)  # the replacement gets two units, or it waits for ever
@example(units=[(0, "open", 5), (1, "open", 5)], turns=[0], crash_at=1)  # the groups of a crashed process are free again
@given(units=UNITS, turns=st.lists(st.integers(0, 1), min_size=1, max_size=200), crash_at=st.none() | st.integers(0, 40))
def test_every_test_runs_once_and_every_group_in_one_process(
    units: list[tuple[int, str | None, int]], turns: list[int], crash_at: int | None
) -> None:
    """After a crash, the process that replaces it runs what was left, and starts clusters again."""
    collection: list[str] = []
    groups: dict[str, str] = {}
    for file, group, size in units:
        names = [f"tests/test_{file}.py::test_{group}_{number}" for number in range(size)]
        collection += names
        if group is not None:
            groups |= dict.fromkeys(names, group)
    with pytest.MonkeyPatch.context() as monkeypatch:
        run, step = Run(collection, groups, monkeypatch), 0
        while (node := run.next_node(turns[step % len(turns)])) is not None:
            (run.crash if step == crash_at else run.run_test)(node)
            step += 1
    assert sorted(test for node in (*run.nodes, *run.ended) for test in node.done) == list(range(len(collection)))
    if crash_at is None:
        for group in GROUPS:
            assert sum(any(groups.get(collection[test]) == group for test in node.done) for node in run.nodes) <= 1


def test_tests_without_servers_follow_the_clusters_of_their_file() -> None:
    def item(nodeid: str, *fixtures: str, markers: tuple[str, ...] = ()) -> Any:
        return SimpleNamespace(nodeid=nodeid, fixturenames=fixtures, get_closest_marker=lambda name: name in markers or None)

    items = [
        item("tests/test_a.py::test_plain"),
        item("tests/test_a.py::test_real", "pulsar", markers=("cluster",)),
        item("tests/test_a.py::test_locked", "pulsar_locked", markers=("cluster",)),
        item("tests/test_a.py::test_rocketmq", "rocketmq", markers=("cluster",)),
        item("tests/test_a.py::test_two", "rocketmq", "tubemq", markers=("cluster",)),
        item("tests/test_b.py::test_plain"),
        item("tests/test_c.py::test_own", markers=("cluster",)),
    ]
    groups = groups_of(items)
    assert [groups.get(one.nodeid) for one in items] == ["open", "open", "locked", "rocketmq", "open", None, "own"]


def test_pytest_starts_each_kind_of_cluster_in_one_process(tmp_path: Path) -> None:
    """With fixtures in place of the clusters: each test notes its process."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text(TEST_FILE.format(kind=["pulsar", "pulsar_locked"][number % 2]))
    command = [sys.executable, "-m", "pytest", "-n", "2", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "NOTES": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    notes = [path.name.split("-") for path in tmp_path.glob("note-*")]
    processes = {kind: {process for _, of_kind, process, _ in notes if of_kind == kind} for _, kind, _, _ in notes}
    assert sorted(map(len, processes.values())) == [1, 1], "each kind in one process"
    assert processes["pulsar"] != processes["pulsar_locked"], "and another one for the other group"
    assert len(notes) == 24
