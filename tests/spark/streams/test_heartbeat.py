"""IdleWatch with artificial progress reports of an idle query."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mqbridge.spark.streams import Heartbeats, Time
from mqbridge.spark.streams.heartbeat import IdleWatch


class QueryWithoutReports:
    """A stopped query, so that the thread of IdleWatch ends at once. The tests pass reports to `check`."""

    isActive = False
    lastProgress = None


def progress_report(
    end: int, *, state: int = 3, watermark: str = "2024-01-01T00:00:10.000Z", heartbeats: int = 0
) -> dict[str, Any]:
    """Return a report of a query whose input ends at `end`, with `state` rows in its state and `heartbeats` heartbeats read."""
    sources = [
        {"description": "the input", "endOffset": {"a": end}},
        {"description": "FileStreamSource[file:/x/beats]", "endOffset": heartbeats},
    ]
    return {"sources": sources, "stateOperators": [{"numRowsTotal": state}], "eventTime": {"watermark": watermark}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "x" / "beats"


def times(folder: Path) -> list[float]:
    """Return the times of the heartbeats in the folder, in seconds after the beginning of 2024."""
    start = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
    return [
        round(datetime.fromisoformat(json.loads(path.read_text())["event_time"]).timestamp() - start, 3)
        for path in sorted(folder.glob("[0-9]*.json"))
    ]


def test_heartbeats_advance_the_watermark_by_the_idle_time(folder: Path) -> None:
    watch = IdleWatch(QueryWithoutReports(), Heartbeats(str(folder)), Time.seconds(2), Time.seconds(1))  # type: ignore[arg-type]
    watch.check(progress_report(1), 100.0)
    watch.check(progress_report(1), 101.9)
    assert times(folder) == []
    watch.check(progress_report(1), 102.0)
    assert times(folder) == [13.0], "the watermark, plus the lateness that Spark subtracts again, plus the idle time"
    watch.check(progress_report(1, watermark="2024-01-01T00:00:12.000Z", heartbeats=1), 103.0)
    watch.check(progress_report(1, watermark="2024-01-01T00:00:12.000Z", heartbeats=1), 104.5)
    assert times(folder) == [13.0, 15.5], "a heartbeat is no input"
    watch.check(progress_report(2, watermark="2024-01-01T00:00:30.000Z"), 105.0)
    watch.check(progress_report(2, watermark="2024-01-01T00:00:30.000Z"), 106.9)
    assert times(folder) == [13.0, 15.5], "new input: the idle time begins again"


def test_no_heartbeat_without_state_or_watermark(folder: Path) -> None:
    watch = IdleWatch(QueryWithoutReports(), Heartbeats(str(folder)), Time.seconds(2), Time.seconds(1))  # type: ignore[arg-type]
    watch.check(progress_report(1), 0.0)
    watch.check(progress_report(1, state=0), 10.0)
    watch.check(progress_report(1, watermark="1970-01-01T00:00:00.000Z"), 20.0)
    assert times(folder) == []
    watch.check(progress_report(1), 30.0)
    assert times(folder) == [41.0]
