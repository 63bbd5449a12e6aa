"""`mqbridge spark quickstart`: its results are correct, and it prints its steps."""

import json
from pathlib import Path

import pytest

from tests.kit.spark import SparkProgram

MESSAGES = 2003


@pytest.mark.spark
def test_the_quickstart_counts_and_mirrors_all_messages(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    arguments = ("-n", str(MESSAGES), "--partitions", "3", "--keep", str(folder), "--json")
    with SparkProgram(tmp_path, "-m", "mqbridge", "spark", "quickstart", *arguments) as program:
        log = program.wait()
    results, _ = json.JSONDecoder().raw_decode(log[log.index("{") :])
    assert results["holds"]
    assert sum(row["orders"] for row in results["minutes"]) == MESSAGES
    assert sum(row["amount"] for row in results["minutes"]) == sum(number % 97 for number in range(MESSAGES))
    assert len(results["minutes"]) == 10
    assert sum(row["copied"] for row in results["partitions"]) == MESSAGES
    assert [row["partition"] for row in results["partitions"]] == [0, 1, 2]
    assert "starting Spark" in log
    assert "mirroring 2,003 messages" in log
    assert (folder / "copy.db").exists()
