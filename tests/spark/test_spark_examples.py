"""Each example prints the expected lines. Each has its own embedded log; all use one session."""

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "spark"
EXPECTED_LINES = {
    "word_count": ["|      to|    4|", "|      be|    2|", "|    that|    1|"],
    "windowed_count": [
        '|ann|{"minute":"2026-01-31T12:00:00.000Z","count":2}|',
        '|bob|{"minute":"2026-01-31T12:00:00.000Z","count":2}|',
        '|ann|{"minute":"2026-01-31T12:01:00.000Z","count":1}|',
        '|bob|{"minute":"2026-01-31T12:01:00.000Z","count":1}|',
    ],
    "join": [
        '|A1 |2026-01-31 12:03:00|{"item":"book","amount":"12.50"}|',
        '|A3 |2026-01-31 12:04:00|{"item":"lamp","amount":"80.00"}|',
    ],
    "mirror": ["source:", "target:"],
    "backfill": ["source: 1000 messages", "target: 1000 messages"],
}
JOBS = {"mirror_job"}
"""Programs for spark-submit, which are not run here because they need arguments."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "mirror" else pytest.mark.thorough) for name in EXPECTED_LINES]
)
def test_an_example_prints_the_expected_lines(name: str, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]([])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in EXPECTED_LINES[name] if line not in lines] == []
    if name == "windowed_count":
        assert not any("12:03" in line for line in lines)  # the last minute may still change
    if name == "join":
        assert not any("pen" in line for line in lines)
    if name == "mirror":
        source, target = (
            sum(int(line.split("|")[2]) for line in part if line.strip("|+- ")[:1].isdigit()) for part in halves(lines)
        )
        assert (source, target) == (100, 90)


def halves(lines: list[str]) -> tuple[list[str], list[str]]:
    middle = lines.index("target:")
    return lines[:middle], lines[middle:]


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == EXPECTED_LINES.keys() | JOBS
