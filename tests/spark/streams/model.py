"""A simple model of Spark's windows: the expected results for batches of rows of (key, value, time in seconds)."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

Row = tuple[str, Any, float]
LATENESS = 2.0


def watermarks(batches: list[list[Row]]) -> list[float]:
    """Return the watermark at the beginning of each batch, and the one after the last batch."""
    marks = [float("-inf")]
    for batch in batches:
        marks.append(max([marks[-1], *[time - LATENESS for _, _, time in batch]]))
    return marks


def windows_of(time: float, size: float, slide: float) -> Iterator[tuple[float, float]]:
    """Yield start and end of the windows that contain a time."""
    start = time // slide * slide
    while start > time - size:
        yield start, start + size
        start -= slide


def windowed(batches: list[list[Row]], size: float, slide: float | None = None) -> dict[tuple[str, float, float], list[Row]]:
    """Return the rows per key and window, for the windows that are closed after the last batch.

    A row is dropped if its window was already closed at the beginning of the previous batch.
    """
    marks = watermarks(batches)
    found: dict[tuple[str, float, float], list[Row]] = defaultdict(list)
    for index, batch in enumerate(batches):
        for row in batch:
            for start, end in windows_of(row[2], size, slide or size):
                if end > marks[max(index - 1, 0)] if index else True:
                    found[row[0], start, end].append(row)
    return {key: rows for key, rows in found.items() if key[2] <= marks[-1]}


def sessions(batches: list[list[Row]], gap: float) -> dict[tuple[str, float, float], list[Row]]:
    """Return the rows per key and session, for the sessions that are closed after the last batch. No row may be late."""
    found: dict[tuple[str, float, float], list[Row]] = {}
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in (row for batch in batches for row in batch):
        by_key[row[0]].append(row)
    for key, rows in by_key.items():
        for run in _runs(sorted(rows, key=lambda row: row[2]), gap):
            found[key, run[0][2], run[-1][2] + gap] = run
    return {key: rows for key, rows in found.items() if key[2] <= watermarks(batches)[-1]}


def _runs(rows: Iterable[Row], gap: float) -> Iterator[list[Row]]:
    run: list[Row] = []
    for row in rows:
        if run and row[2] >= run[-1][2] + gap:
            yield run
            run = []
        run.append(row)
    yield run
