"""Workload, inspection and judge fit together: they accept a whole log, and find one that has lost its end."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.log.faults.history import Recorder, history_of
from tests.log.faults.inspection import inspect
from tests.log.faults.judge import Rules, judge
from tests.log.faults.workload import Workload, run

TOPICS = {0: 2, 1: 1}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Processes of faults replace all handlers of log records, which these tests must not do."""
    before = logging.getLogger().handlers[:]
    yield
    logging.getLogger().handlers[:] = before


def work(path: Path, writer: int) -> list[list[Any]]:
    """Append to a log and read it; return the records."""
    lines: list[bytes] = []
    workload = Workload(path=path, topics=TOPICS, writer=writer, seed=f"{writer}", sends=20, group="group", max_payload=5_000)
    run(workload, Recorder(lines.append))
    return [json.loads(line) for line in lines]


def test_a_whole_log_is_right(tmp_path: Path) -> None:
    history = history_of([*work(tmp_path / "log.db", 1), *work(tmp_path / "log.db", 2)])
    assert history.events["done"] == 2
    seen = inspect(tmp_path / "log.db", {}, TOPICS, ["group"])
    verdict = judge(history, seen, Rules(keeps_all=True))
    assert not verdict.problems, verdict.examples
    assert verdict.acknowledged == len(history.sizes)
    ends = {("group", *key): end for key, (_, end) in seen.bounds.items()}
    assert seen.committed == ends
    assert seen.appended.keys() == seen.bounds.keys()


def test_a_log_that_was_replaced_by_an_older_copy_is_wrong(tmp_path: Path) -> None:
    older, log = tmp_path / "older", tmp_path / "log"
    records = work(log / "log.db", 1)
    shutil.copytree(log, older)
    history = history_of([*records, *work(log / "log.db", 2)])
    verdict = judge(history, inspect(older / "log.db", {}, TOPICS, ["group"]), Rules(keeps_all=True))
    assert verdict.problems.keys() & {"silent loss", "said to be lost"}
    assert "position went back" in verdict.problems


def test_a_file_that_is_no_log_says_that_everything_is_lost(tmp_path: Path) -> None:
    history = history_of(work(tmp_path / "log.db", 1))
    (tmp_path / "log.db").write_bytes(b"no log" * 1000)
    verdict = judge(history, inspect(tmp_path / "log.db", {}, TOPICS, ["group"]), Rules())
    assert not verdict.problems, verdict.examples
    assert verdict.lost_said == verdict.acknowledged
