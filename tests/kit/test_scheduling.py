"""The distribution of tests over processes: each kind of shared cluster is used by one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xdist.scheduler import loadscope

from tests.kit.scheduling import GroupScheduling, append_groups, remove_group
from tests.kit.shared_clusters import GROUPS, OWN

UNITS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from([*GROUPS, OWN, None]), st.integers(1, 5)),
    min_size=1,
    max_size=30,
    unique_by=lambda unit: unit[:2],
)
"""Number of the file, group, number of tests."""


class Node:
    """A process that runs the tests that it gets, oldest first. A real one, too, runs the last only when more come or it ends."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
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

    def __init__(self, collection: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.collection = collection
        self.nodes, self.ended = [Node("gw0"), Node("gw1")], []
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


@given(units=UNITS, turns=st.lists(st.integers(0, 1), min_size=1, max_size=200), crash_at=st.none() | st.integers(0, 40))
def test_every_test_runs_once_and_every_group_in_one_process(
    units: list[tuple[int, str | None, int]], turns: list[int], crash_at: int | None
) -> None:
    """After a crash, the process that replaces it runs what was left, and starts clusters again."""
    collection = [
        f"tests/test_{file}.py::test_{number}" + (f"@{group}" if group else "")
        for file, group, size in units
        for number in range(size)
    ]
    with pytest.MonkeyPatch.context() as monkeypatch:
        run, step = Run(collection, monkeypatch), 0
        while (node := run.next_node(turns[step % len(turns)])) is not None:
            (run.crash if step == crash_at else run.run_test)(node)
            step += 1
    assert sorted(test for node in (*run.nodes, *run.ended) for test in node.done) == list(range(len(collection)))
    if crash_at is None:
        for group in GROUPS:
            assert sum(any(collection[test].endswith(f"@{group}") for test in node.done) for node in run.nodes) <= 1


def test_a_name_keeps_what_only_looks_like_a_group() -> None:
    assert remove_group("tests/test_a.py::test_b[x@y]@open") == "tests/test_a.py::test_b[x@y]"
    assert remove_group("tests/test_a.py::test_b[x@open.example]") == "tests/test_a.py::test_b[x@open.example]"


def test_tests_without_servers_follow_the_clusters_of_their_file() -> None:
    def item(nodeid: str, *fixtures: str, markers: tuple[str, ...] = ()) -> Any:
        return SimpleNamespace(
            nodeid=nodeid, fixturenames=fixtures, get_closest_marker=lambda name: name in markers or None, _nodeid=nodeid
        )

    items = [
        item("tests/test_a.py::test_plain"),
        item("tests/test_a.py::test_real", "pulsar", markers=("cluster",)),
        item("tests/test_a.py::test_locked", "pulsar_locked", markers=("cluster",)),
        item("tests/test_b.py::test_plain"),
        item("tests/test_c.py::test_own", markers=("cluster",)),
    ]
    append_groups(items)
    assert [one._nodeid.partition("@")[2] for one in items] == ["open", "open", "locked", "", "own"]
