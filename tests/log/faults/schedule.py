"""The kinds of faults, and the faults of a run. The same seed gives the same faults."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of fault: its name (a module of `kinds`), its share of a run, and how many faults share their preparation."""

    name: str
    weight: int
    per_scene: int = 1
    needs_trace: bool = False
    """It needs the library that a C compiler builds."""


KINDS = (
    Kind("kill", 8),
    Kind("crash", 32, 25, needs_trace=True),
    Kind("full", 8, needs_trace=True),
    Kind("bits", 34, 25),
    Kind("files", 8),
    Kind("clocks", 5),
    Kind("stopped", 5),
)
BY_NAME = {kind.name: kind for kind in KINDS}


class Job(NamedTuple):
    """Faults of one kind that share a scene."""

    kind: str
    seed: int
    scene: int
    faults: list[int]


def draw(seed: int, faults: int, only: Collection[str] = (), *, can_trace: bool = True) -> list[Job]:
    """Return the jobs of a run of about this many faults, the kinds mixed."""
    kinds = [kind for kind in KINDS if (not only or kind.name in only) and (can_trace or not kind.needs_trace)]
    total = sum(kind.weight for kind in kinds)
    jobs: list[tuple[float, Job]] = []
    for kind in kinds:
        count = max(1, round(faults * kind.weight / total))
        for scene in range(-(-count // kind.per_scene)):
            begin = scene * kind.per_scene
            numbers = list(range(begin, min(begin + kind.per_scene, count)))
            jobs.append((begin / count, Job(kind.name, seed, scene, numbers)))
    return [job for _, job in sorted(jobs, key=lambda each: each[0])]


def single(seed: int, kind: str, fault: int) -> Job:
    """Return the job of one fault."""
    return Job(kind, seed, fault // BY_NAME[kind].per_scene, [fault])
