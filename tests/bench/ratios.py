"""CPU time of the gateway relative to the Java bridge, one ratio per direction, in runs that are long enough for both to be warm.

The chapter of docs/explanation/benchmarks.md has the nine ratios; the chapter and the README state their range.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tests.bench import bridge_page
from tests.bench.bridge import GATEWAY, JAVA
from tests.bench.bridge_page import DIRECTIONS, Row, cases, table
from tests.bench.corpora import ORDINARY
from tests.kit.maven import say

MESSAGES = 400_000
"""Messages of a run. A JVM compiles hot code for many seconds: shorter runs count that as work of the Java bridge."""
MESSAGES_INTO: Mapping[str, int] = {"tubemq": 200_000}
"""Messages of a run into systems that store fewer messages per second."""
CORPUS = ORDINARY[0]

README = Path(__file__).resolve().parents[2] / "README.md"
RANGE = re.compile(r"between (\d\.\d\d) and (\d\.\d\d) of the CPU time")
"""Matches the range in the chapter and in the README."""


def range_text(found: Collection[Row]) -> str:
    """Return the range of the measured ratios, rounded as in the table."""
    ratios = [by_name[GATEWAY].beside(by_name[JAVA]).cpu for _, by_name in found]
    return f"between {min(ratios):.2f} and {max(ratios):.2f} of the CPU time"


def measure(directions: Sequence[str] | None, rounds: int, most: int | None, seed: int) -> list[Row]:
    """Measure these directions (None: all nine), with `most` messages per run; None means the numbers above."""
    chosen = cases(directions or DIRECTIONS, [CORPUS], raised=False, rules=False)
    limits = MESSAGES_INTO if most is None else {}
    return list(bridge_page.rows(chosen, most or MESSAGES, rounds, seed=seed, most_into=limits))


def chapter(found: Collection[Row], rounds: int, most: int | None = None) -> str:
    """Return the chapter about measured directions; `most` is as in `measure`."""
    runs = "one run" if rounds == 1 else f"medians of {rounds} alternating runs"
    into = "" if most is not None else f" ({MESSAGES_INTO['tubemq']:,} into TubeMQ)"
    lines = [
        "## CPU time relative to Java clients",
        "",
        f"`{GATEWAY}` needs {range_text(found)} of the same bridge built on the official Java clients.",
        "",
        f"A run moves {most or MESSAGES:,} messages{into} of the corpus `{CORPUS}`, see the next chapter. The first fifth of",
        "the messages is left out of the figures of both bridges: until then the JVM compiles its hot code. Figures are",
        f"{runs}.",
        "",
        *table(found, [GATEWAY, JAVA]),
    ]
    return "\n".join(lines) + "\n"


def renew_readme(found: Collection[Row], readme: Path = README) -> None:
    """Write the range into the README, if all nine directions were measured."""
    if {case.direction for case, _ in found} != set(DIRECTIONS):
        say("the README keeps its range: not all directions were measured")
        return
    readme.write_text(RANGE.sub(range_text(found), readme.read_text()))
