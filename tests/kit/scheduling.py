"""How `pytest -n` distributes tests over processes, so that each kind of shared cluster starts in as few of them as possible.

A unit is all tests of one file and one group (see `shared_clusters.py`), because they share fixtures. Each group belongs to the
process that got its first unit. A process that has nothing left of its groups gets tests that need no shared cluster, first those
that start servers of their own, which take long, so that short tests are left for the end.

pytest-xdist tells its main process only the names of tests. So each of the others writes the groups to a file, when it has
collected the tests; the main process reads it when all have collected them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.kit.shared_clusters import ALONE, GROUPS, OWN, group_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

ORDER = ("open", "spark", *ALONE, "old", "locked", OWN, None)
"""The groups that take longest come first. Those of few tests come late, because their clusters take CPU time until the end."""


def groups_of(items: list[pytest.Item]) -> dict[str, str]:
    """Return the group of each test that has one, by its name. A test without joins the first group of its file."""
    in_file: dict[str, list[str | None]] = {}
    for item in items:
        in_file.setdefault(_file(item.nodeid), []).append(group_of(item))
    groups: dict[str, str] = {}
    for item in items:
        group = group_of(item)
        if group not in GROUPS:
            group = min(in_file[_file(item.nodeid)], key=ORDER.index)
        if group is not None:
            groups[item.nodeid] = group
    return groups


def write_groups(items: list[pytest.Item], run_id: str) -> None:
    """Write the groups of the tests for the main process. All processes of a run write the same."""
    path = _groups_path(run_id)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(groups_of(items)))
    new.replace(path)


def read_groups(run_id: str) -> dict[str, str]:
    """Read the groups that the other processes have written, and remove the file."""
    path = _groups_path(run_id)
    groups: dict[str, str] = json.loads(path.read_text())
    path.unlink()
    return groups


def _groups_path(run_id: str) -> Path:
    return Path(tempfile.gettempdir()) / f"mqbridge-test-groups-{run_id}.json"


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _group(unit: str) -> str | None:
    return unit.partition("@")[2] or None


class GroupScheduling(LoadScopeScheduling):
    """Assigns units to processes. pytest-xdist calls the methods; the processes are its `nodes`."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._groups: Mapping[str, str] = {}
        """Name of a test -> group."""
        self._owners: dict[str, WorkerController] = {}
        """Group -> the process that has its clusters."""

    def schedule(self) -> None:
        """Begin to distribute the tests, which all processes have collected."""
        if self.collection is None:
            self._groups = read_groups(self.nodes[0].workerinput["testrunuid"])
        super().schedule()

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit of a test: FILE or FILE@GROUP."""
        group = self._groups.get(nodeid)
        return _file(nodeid) if group is None else f"{_file(nodeid)}@{group}"

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process at least two tests, because it runs none before it knows the next one; let it end if there is none."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a process its next unit; let it end if what is left belongs to other processes."""
        unit = self._next_unit(node)
        if unit is None:
            node.shutdown()
            return
        group = _group(unit)
        if group in GROUPS:
            self._owners.setdefault(group, node)
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)

    def _next_unit(self, node: WorkerController) -> str | None:
        owned = {group for group, owner in self._owners.items() if owner is node}
        taken = self._owners.keys() - owned

        def rank(unit: str) -> int:
            group = _group(unit)
            return -1 if group in owned else ORDER.index(group)

        return min((unit for unit in self.workqueue if _group(unit) not in taken), key=rank, default=None)

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget what a process owned that has ended: if it has crashed, another one has to start the clusters again."""
        self._owners = {group: owner for group, owner in self._owners.items() if owner is not node}
        crashed: str | None = super().remove_node(node)
        return crashed
