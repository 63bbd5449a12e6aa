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


def rows_of_closed_windows(
    batches: list[list[Row]], size: float, slide: float | None = None
) -> dict[tuple[str, float, float], list[Row]]:
    """Return the rows per key, start and end of a window, for the windows that are closed after the last batch.

    A row is dropped if its window was already closed at the beginning of the previous batch.
    """
    marks = watermarks(batches)
    rows_by_window: dict[tuple[str, float, float], list[Row]] = defaultdict(list)
    for index, batch in enumerate(batches):
        for row in batch:
            for start, end in windows_of(row[2], size, slide or size):
                if end > marks[max(index - 1, 0)]:
                    rows_by_window[row[0], start, end].append(row)
    return {key: rows for key, rows in rows_by_window.items() if key[2] <= marks[-1]}


def rows_of_closed_sessions(batches: list[list[Row]], gap: float) -> dict[tuple[str, float, float], list[Row]]:
    """Return the rows per key, start and end of a session, for the sessions that are closed after the last batch.

    No row may be late.
    """
    rows_by_window: dict[tuple[str, float, float], list[Row]] = {}
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in (row for batch in batches for row in batch):
        by_key[row[0]].append(row)
    for key, rows in by_key.items():
        for session_rows in _split_into_sessions(sorted(rows, key=lambda row: row[2]), gap):
            rows_by_window[key, session_rows[0][2], session_rows[-1][2] + gap] = session_rows
    return {key: rows for key, rows in rows_by_window.items() if key[2] <= watermarks(batches)[-1]}


def _split_into_sessions(rows: Iterable[Row], gap: float) -> Iterator[list[Row]]:
    """Split the rows of a key, which are ordered by time, where at least `gap` seconds are between two of them."""
    session: list[Row] = []
    for row in rows:
        if session and row[2] >= session[-1][2] + gap:
            yield session
            session = []
        session.append(row)
    yield session
