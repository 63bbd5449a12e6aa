"""The results of a run as text: a table with one line per kind of fault, and the command that repeats each failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.log.faults.judge import Verdict, merge

COLUMNS = ("faults", "failed", "acknowledged", "lost, allowed", "lost, said", "silent", "intact, not delivered")
MAX_FAILURES = 5
"""Maximum number of failures of each kind that are shown at the end."""


@dataclass(frozen=True, slots=True)
class Result:
    """One executed fault."""

    kind: str
    seed: int
    fault: int
    seconds: float
    verdict: Verdict

    @property
    def command(self) -> str:
        """The command that repeats the fault."""
        return f"python -m tests.log.faults --seed {self.seed} --only {self.kind} --fault {self.fault}"


def failure(result: Result) -> list[str]:
    """Describe a failed fault."""
    counts = ", ".join(f"{count} x {name}" for name, count in result.verdict.problems.most_common())
    return [
        f"  {result.kind} {result.fault}: {counts}",
        f"    {result.command}",
        *(f"    {each}" for each in result.verdict.examples),
    ]


def table(results: Sequence[Result]) -> list[str]:
    """Return the figures by kind."""
    by_kind: dict[str, dict[int, Verdict]] = {}
    for result in results:
        by_kind.setdefault(result.kind, {})[result.fault] = result.verdict
    lines = [f"{'kind':<8} " + " ".join(f"{name:>{max(len(name), 8)}}" for name in COLUMNS)]
    for kind, verdicts in by_kind.items():
        total = merge(verdicts)
        failed = sum(bool(verdict.problems) for verdict in verdicts.values())
        figures = (len(verdicts), failed, total.acknowledged, total.lost_allowed, total.lost_said, total.silent, total.intact)
        columns = zip(COLUMNS, figures, strict=True)
        lines.append(f"{kind:<8} " + " ".join(f"{figure:>{max(len(name), 8)}}" for name, figure in columns))
    for kind, verdicts in by_kind.items():
        lines += _details(kind, verdicts)
    return lines


def _details(kind: str, verdicts: Mapping[int, Verdict]) -> list[str]:
    """Return how many faults of a kind have found each problem, and the other figures."""
    found = {name for verdict in verdicts.values() for name in verdict.problems}
    counts = {name: sum(bool(verdict.problems[name]) for verdict in verdicts.values()) for name in found}
    lines = [f"{kind}: {name} in {count} faults" for name, count in sorted(counts.items(), key=lambda each: -each[1])]
    return lines + [f"{kind}: {count} {name}" for name, count in sorted(merge(verdicts).notes.items())]


def failures(results: Sequence[Result]) -> list[str]:
    """Describe the first failures of each kind."""
    lines: list[str] = []
    for kind in dict.fromkeys(result.kind for result in results):
        failed = [result for result in results if result.kind == kind and result.verdict.problems]
        for result in failed[:MAX_FAILURES]:
            lines += failure(result)
        if len(failed) > MAX_FAILURES:
            lines.append(f"  {kind}: {len(failed) - MAX_FAILURES} more failures: faults {_numbers(failed[MAX_FAILURES:])}")
    return lines


def _numbers(results: Sequence[Result]) -> str:
    numbers = [str(result.fault) for result in results]
    return ", ".join(numbers[:40]) + (", ..." if len(numbers) > 40 else "")
