"""The tables of the page have a row for every run and direction."""

from __future__ import annotations

from collections import Counter

from tests.chaos.judge import Verdict
from tests.chaos.page import tables
from tests.chaos.run import Result
from tests.chaos.schedule import draw


def result(seed: int, missing: int) -> Result:
    verdict = Verdict(
        sent=1000, arrived=1010, missing=missing, out_of_order=0, stale=0, repeated=10, damaged=0, lost=2, examples=[]
    )
    made = Result(
        draw(seed, 60, ("log-log",)), {"log-log": verdict}, struck=Counter(kill=4, cut=5), peak_bytes=80 << 20, recovered_s=3.4
    )
    made.problems += ["something is missing"] * bool(missing)
    return made


def test_every_run_and_every_direction_has_its_row() -> None:
    lines = tables([result(1, 0), result(2, 5)]).splitlines()
    assert "| 1 | passed | 9 | 3 s | 80 | 1,000 | 1,010 | 10 | 0 | 0 | 0 | 0 | 2 |" in lines
    assert "| 2 | failed | 9 | 3 s | 80 | 1,000 | 1,010 | 10 | 5 | 0 | 0 | 0 | 2 |" in lines
    assert "| log-log | 2,000 | 2,020 | 20 | 5 | 0 | 0 | 0 | 4 |" in lines
