"""The summary line of a run: the totals that are always shown, and the others if they are not 0."""

import pytest

from mqbridge.cli.running.gateway import report
from mqbridge.delivery.counters import Counters, declared_totals
from mqbridge.gateway.run_result import RouteResult, RunResult


def test_the_summary_line_shows_every_total_that_has_a_label(capsys: pytest.CaptureFixture[str]) -> None:
    counters = Counters(received=1000, stored=7, dead=1, filtered=2, looped=3, gaps=4, acknowledged=998)
    report(RunResult([RouteResult("r", counters), RouteResult("idle", Counters())], 2.0))
    assert capsys.readouterr().err.splitlines() == [
        "route r: 1,000 received, 7 stored, 1 dead letters, 2 filtered, 3 looped, 4 gaps passed, 998 acknowledged in 2.0 s (4/s)",
        "route idle: 0 received, 0 stored, 0 dead letters, 0 acknowledged in 2.0 s (0/s)",
    ]


def test_every_total_is_in_the_json_result() -> None:
    assert {total.name for total in declared_totals()} <= RouteResult("r", Counters()).as_json().keys()


def test_an_unreachable_cluster_has_its_own_summary_line(capsys: pytest.CaptureFixture[str]) -> None:
    counters = Counters(received=200, returned=200)
    report(RunResult([RouteResult("r", counters)], 2.0, {"b": "has been unreachable for 12 s: nobody there"}))
    assert capsys.readouterr().err.splitlines() == [
        "route r: 200 received, 0 stored, 0 dead letters, 200 given back, to be delivered again, 0 acknowledged in 2.0 s (0/s)",
        "cluster b has been unreachable for 12 s: nobody there",
    ]
