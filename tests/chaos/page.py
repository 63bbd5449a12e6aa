"""Writes the results of several runs into the tables of docs/explanation/chaos.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.chaos.judge import Verdict
from tests.chaos.run import MB, Result

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "chaos.md"
MARK = "<!-- Written by `make chaos CHAOS_ARGS=--write`. Do not edit what follows. -->\n"
COUNTS = ("sent", "stored", "of them repeated", "missing", "out of order", "stale", "damaged", "lost at the source")


def write(results: Sequence[Result]) -> None:
    """Replace the tables of the page."""
    text = PAGE.read_text()
    kept, mark, _ = text.partition(MARK)
    assert mark, f"{PAGE} has no line that marks the tables"
    PAGE.write_text(kept + MARK + "\n" + tables(results))


def tables(results: Sequence[Result]) -> str:
    """Return two tables: a row for each run, and a row for each direction with the sums of all runs."""
    seconds = {f"{result.schedule.seconds:g}" for result in results}
    directions = {name: [result.verdicts[name] for result in results if name in result.verdicts] for name in _names(results)}
    by_seed = [_row(str(each.schedule.seed), *_run(each), *_sums(list(each.verdicts.values()))) for each in results]
    by_direction = [_row(name, *_sums(verdicts)) for name, verdicts in directions.items()]
    return "\n".join(
        [
            f"Faults for {' and '.join(sorted(seconds))} seconds each; all counts are messages.",
            "",
            *_head("seed", "verdict", "faults", "all stored after the last", "resident, MB", *COUNTS),
            *by_seed,
            "",
            *_head("direction", *COUNTS),
            *by_direction,
            "",
        ]
    )


def _names(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(name for result in results for name in result.verdicts))


def _run(result: Result) -> list[str]:
    verdict = "failed" if result.problems else "passed"
    return [verdict, str(result.struck.total()), f"{result.recovered_s:.0f} s", str(result.peak_bytes // MB)]


def _sums(verdicts: Sequence[Verdict]) -> list[str]:
    columns = zip(
        *((v.sent, v.arrived, v.repeated, v.missing, v.out_of_order, v.stale, v.damaged, v.lost) for v in verdicts), strict=True
    )
    return [f"{sum(column):,}" for column in columns]


def _head(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
