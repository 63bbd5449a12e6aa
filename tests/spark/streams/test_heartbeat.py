"""IdleWatch with artificial progress reports of an idle query."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mqbridge.spark.streams import Heartbeats, Time
from mqbridge.spark.streams.heartbeat import IdleWatch


class Query:
    """A query without progress reports of its own."""

    isActive = False
    lastProgress = None


def report(end: int, *, state: int = 3, watermark: str = "2024-01-01T00:00:10.000Z", beats: int = 0) -> dict[str, Any]:
    sources = [
        {"description": "the input", "endOffset": {"a": end}},
        {"description": "FileStreamSource[file:/x/beats]", "endOffset": beats},
    ]
    return {"sources": sources, "stateOperators": [{"numRowsTotal": state}], "eventTime": {"watermark": watermark}}


@pytest.fixture
def beats(tmp_path: Path) -> Path:
    return tmp_path / "x" / "beats"


def times(folder: Path) -> list[float]:
    start = datetime(2024, 1, 1, tzinfo=UTC).timestamp()
    return [
        round(datetime.fromisoformat(json.loads(path.read_text())["event_time"]).timestamp() - start, 3)
        for path in sorted(folder.glob("[0-9]*.json"))
    ]


def test_time_goes_on_from_the_watermark_while_nothing_comes(beats: Path) -> None:
    watch = IdleWatch(Query(), Heartbeats(str(beats)), Time.seconds(2), Time.seconds(1))  # type: ignore[arg-type]
    watch.check(report(1), 100.0)
    watch.check(report(1), 101.9)
    assert times(beats) == []
    watch.check(report(1), 102.0)
    assert times(beats) == [13.0], "the watermark, the lateness that Spark takes off again, and the idle time"
    watch.check(report(1, watermark="2024-01-01T00:00:12.000Z", beats=1), 103.0)
    watch.check(report(1, watermark="2024-01-01T00:00:12.000Z", beats=1), 104.5)
    assert times(beats) == [13.0, 15.5], "a heartbeat is no input"
    watch.check(report(2, watermark="2024-01-01T00:00:30.000Z"), 105.0)
    watch.check(report(2, watermark="2024-01-01T00:00:30.000Z"), 106.9)
    assert times(beats) == [13.0, 15.5], "input has come"


def test_no_heartbeat_without_state_or_watermark(beats: Path) -> None:
    watch = IdleWatch(Query(), Heartbeats(str(beats)), Time.seconds(2), Time.seconds(1))  # type: ignore[arg-type]
    watch.check(report(1), 0.0)
    watch.check(report(1, state=0), 10.0)
    watch.check(report(1, watermark="1970-01-01T00:00:00.000Z"), 20.0)
    assert times(beats) == []
    watch.check(report(1), 30.0)
    assert times(beats) == [41.0]
