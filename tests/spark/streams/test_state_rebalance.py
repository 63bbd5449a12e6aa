"""State survives failures: other workers take the partitions of a dead worker, and a new driver resumes after a dead one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.spark import SparkProgram
from tests.kit.spark_cluster import SparkCluster
from tests.spark.streams.feed import Feed
from tests.spark.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(900)]

BATCHES = 14
PROGRAM = Path(__file__).with_name("counting.py")


def test_counts_stay_correct_when_a_worker_and_then_the_driver_dies(tmp_path: Path) -> None:
    feed, work = Feed(tmp_path / "in"), tmp_path / "work"
    work.mkdir()
    expected: Counter[str] = Counter()
    for batch in range(BATCHES):
        words = [f"key-{(batch * 31 + index) % 40}" for index in range(60)]
        expected.update(words)
        feed.add(*[(word, 0, float(batch)) for word in words])

    def count_completed_batches() -> int:
        return len(list(work.glob("*.json")))

    with SparkCluster() as cluster:
        arguments = (str(PROGRAM), cluster.master_url, str(feed.folder), str(work))
        with SparkProgram(tmp_path / "program", *arguments) as program:
            wait_for(lambda: count_completed_batches() >= 3 and all(cluster.executors(number) for number in range(2)))
            cluster.kill_worker(0)
            wait_for(lambda: count_completed_batches() >= 6)
        assert count_completed_batches() < BATCHES, "the driver must be killed before the last batch"
        cluster.start_worker(0)
        with SparkProgram(tmp_path / "program", *arguments) as program:
            program.wait()
    newest_counts: dict[str, int] = {}
    for batch in range(BATCHES):
        newest_counts |= json.loads((work / f"{batch}.json").read_text())
    assert newest_counts == expected
