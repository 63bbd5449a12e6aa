"""How `pytest -n 2` distributes tests over processes, so that each kind of shared cluster starts in only one of them.

A unit is all tests of one file and one group (see `shared_clusters.py`), because they share fixtures. Each group belongs to the
process that got its first unit. A process that has nothing left of its groups gets tests that need no shared cluster, first those
that start servers of their own, which take long, so that short tests are left for the end.

pytest-xdist knows only names of tests, so a process appends the group to them: `test_that_sends[pulsar]@open`. Reports do not
show it, so that the name of a failed test can be copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.kit.shared_clusters import GROUPS, OWN, group_of

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

ORDER = (*GROUPS, OWN, None)


def append_groups(items: list[pytest.Item]) -> None:
    """Append its group to the name of each test with real servers. A test without joins the first group of its file."""
    groups: dict[str, list[str | None]] = {}
    for item in items:
        groups.setdefault(item.nodeid.split("::")[0], []).append(group_of(item))
    for item in items:
        group, of_file = group_of(item), groups[item.nodeid.split("::")[0]]
        if group in (OWN, None):
            group = min(of_file, key=ORDER.index)
        if group is not None:
            item._nodeid = f"{item.nodeid}@{group}"


def remove_group(nodeid: str) -> str:
    """Return the name of a test without its group."""
    test, _, group = nodeid.rpartition("@")
    return test if group in (*GROUPS, OWN) else nodeid


def _group(unit: str) -> str | None:
    return unit.partition("@")[2] or None


class GroupScheduling(LoadScopeScheduling):
    """Assigns units to processes. pytest-xdist calls the methods; the processes are its `nodes`."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._owners: dict[str, WorkerController] = {}
        """Group -> the process that has its clusters."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit of a test: FILE or FILE@GROUP."""
        return nodeid.partition("::")[0] + nodeid[len(remove_group(nodeid)) :]

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
