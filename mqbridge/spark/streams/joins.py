"""Joins of two streams: of the latest values, or of what falls into the same window."""

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import StructField, StructType

from mqbridge.spark.streams.state import require_rocksdb
from mqbridge.spark.streams.windows import Window

SIDES = ("left", "right")
HOWS = ("inner", "left")


def latest_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    order: str | None = None,
) -> DataFrame:
    """Join each row with the latest of the other side that has the same `on`: columns `on`, `left` and `right` (structs).

    Inner: a row of either side yields one row when the other side has a value. Left: a row of the left side always yields one
    (`right` is null when there is none yet), a row of the right side none. Only the latest row per key and side is kept, for
    ever. Rows that come in one batch are taken in the order of the column `order` (of both sides; equal ones left before right);
    without it in an order that another attempt at the batch may not repeat. Output mode append.
    """
    _check(how)
    require_rocksdb(left.sparkSession)
    on = _names(on)
    keys = [F.col(name) for name in on]
    sides = []
    for side, frame in zip(SIDES, (left, right), strict=True):
        own = F.struct(*[name for name in frame.columns if name not in on])
        ordering = F.lit(None) if order is None else F.col(order)
        sides.append(frame.select(*keys, own.alias(side), F.lit(side).alias("side"), ordering.alias("order")))
    union = sides[0].unionByName(sides[1], allowMissingColumns=True)
    fields = [StructField(name, union.schema[name].dataType) for name in (*on, *SIDES)]
    processor = LatestJoin(tuple(on), is_left=how == "left")
    return union.groupBy(*keys).transformWithState(processor, StructType(fields), "Append", "none")


class LatestJoin(StatefulProcessor):
    """The latest row per side of one key: two values of state, pickled, because Spark's own encoding loses time zones."""

    def __init__(self, on: tuple[str, ...], *, is_left: bool) -> None:
        self._on = on
        self._is_left = is_left

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of this task."""
        self._latest = {side: handle.getValueState(side, "row binary") for side in SIDES}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """What the rows of one batch and key yield."""
        latest = {side: _read(state) for side, state in self._latest.items()}
        names = dict(zip(self._on, key, strict=True))
        joined = []
        for row in sorted(rows, key=_arrival):
            latest[row["side"]] = row[row["side"]]
            left, right = latest["left"], latest["right"]
            yields = (row["side"] == "left") if self._is_left else (left is not None and right is not None)
            if yields:
                joined.append(Row(**names, left=left, right=right))
        for side, state in self._latest.items():
            if latest[side] is not None:
                state.update((pickle.dumps(latest[side]),))
        return iter(joined)

    def close(self) -> None:
        """Nothing is open."""


def window_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    window: Window,
    how: str = "inner",
    *,
    keep: str = "last",
    time: str = "event_time",
    lateness: str | None = "2 seconds",
) -> DataFrame:
    """Join rows of equal `on` in the same window: columns `on`, `window_start`, `window_end`, `event_time`, `left` and `right`.

    `keep="last"`: the last row by `time` per key, window and side, so one row per key and window; "all": every pair. Left: rows
    of the left side without partner come once the window is over. Later rows than `lateness` are dropped; None: the frames have a
    watermark on `time` already. Output mode append; a session window keeps the last.
    """
    _check(how)
    on = _names(on)
    if keep not in {"last", "all"} or (keep == "all" and window.is_session):
        raise ValueError("keep is 'last' or 'all'; sessions of two sides have no common borders: they keep the last")
    if window.is_session:
        return _session_join(left, right, on, window, how, time, lateness)
    one, other = (
        _windowed(frame, side, on, window, keep, time, lateness) for side, frame in zip(SIDES, (left, right), strict=True)
    )
    joined = one.join(other, ["window", *on], "inner" if how == "inner" else "leftOuter")
    return joined.select(*on, *_borders("window"), "left", "right")


def _windowed(
    frame: DataFrame, side: str, on: list[str], window: Window, keep: str, time: str, lateness: str | None
) -> DataFrame:
    marked = frame if lateness is None else frame.withWatermark(time, lateness)
    own = F.struct(*[name for name in frame.columns if name not in on])
    if keep == "all":
        return marked.select(window.column(time).alias("window"), *on, own.alias(side))
    return marked.groupBy(window.column(time).alias("window"), *on).agg(F.max_by(own, F.col(time)).alias(side))


def _session_join(
    left: DataFrame, right: DataFrame, on: list[str], window: Window, how: str, time: str, lateness: str | None
) -> DataFrame:
    """One session over both sides, so that its borders are the same for both."""
    sides = []
    for side, frame in zip(SIDES, (left, right), strict=True):
        own = F.struct(*[name for name in frame.columns if name not in on])
        sides.append(frame.select(*on, F.col(time).alias("time"), own.alias(side)))
    union = sides[0].unionByName(sides[1], allowMissingColumns=True)
    marked = union if lateness is None else union.withWatermark("time", lateness)
    last = [F.max_by(side, F.when(F.col(side).isNotNull(), F.col("time"))).alias(side) for side in SIDES]
    sessions = marked.groupBy(window.column("time").alias("window"), *on).agg(*last).where(F.col("left").isNotNull())
    matched = sessions if how == "left" else sessions.where(F.col("right").isNotNull())
    return matched.select(*on, *_borders("window"), "left", "right")


def _borders(window: str) -> list[Column]:
    return [
        F.col(f"{window}.start").alias("window_start"),
        F.col(f"{window}.end").alias("window_end"),
        F.window_time(window).alias("event_time"),
    ]


def _read(state: Any) -> Any:
    stored = state.get()
    return None if stored is None else pickle.loads(stored[0])  # noqa: S301 - our own checkpoint


def _arrival(row: Row) -> tuple[bool, Any, str]:
    order = row["order"]
    return (order is not None, order if order is not None else 0, row["side"] if order is not None else "")


def _names(on: str | Sequence[str]) -> list[str]:
    return [on] if isinstance(on, str) else list(on)


def _check(how: str) -> None:
    if how not in HOWS:
        raise ValueError(f"unknown join {how!r}: one of {', '.join(HOWS)}")
