"""CPU time of a process and its descendants, as reported by the kernel."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_s(root: int, without: Collection[int] = ()) -> float:
    """Return the user and system time of a process and its descendants, including ended ones whose parent waited for them.

    The processes `without` and their descendants are excluded.
    """
    children: dict[int, list[tuple[int, float]]] = {}
    used = 0.0
    for pid, parent, seconds in _processes():
        children.setdefault(parent, []).append((pid, seconds))
        if pid == root:
            used = seconds
    waiting = [root]
    while waiting:
        for pid, seconds in children.get(waiting.pop(), ()):
            if pid not in without:
                used += seconds
                waiting.append(pid)
    return used


def _processes() -> list[tuple[int, int, float]]:
    """Return for each process its id, its parent, and its CPU-seconds including those of ended children."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        found.append((int(path.name), int(fields[1]), sum(map(int, fields[11:15])) / TICKS))
    return found
