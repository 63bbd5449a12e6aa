"""Joins of two streams: by the latest value of each side, or by common windows."""

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
"""The sides of a join. The result has one column of each name, a struct with the row of that side."""
JOIN_TYPES = ("inner", "left")
"""The accepted values of `how`."""


def latest_join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    order: str | None = None,
) -> DataFrame:
    """Join each row with the latest row of the other side that has the same values in the columns `on`.

    The columns of the result are `on`, and the structs `left` and `right`. The output mode is append.
    With `how="inner"` a row of either side yields one row if the other side has a row for the key. With "left" a row of the left
    side always yields one row (`right` is null if there is no right row yet), and a row of the right side yields none.
    The state holds the latest row per key and side, and never expires.

    The rows of one batch are processed in the order of the column `order`, which both sides must have. Of rows with equal values,
    left rows are processed first. Without `order`, a repeated batch may process its rows in another order.
    """
    _require_known_join(how)
    require_rocksdb(left.sparkSession)
    on = _column_names(on)
    keys = [F.col(name) for name in on]
    sides = []
    for side, frame in zip(SIDES, (left, right), strict=True):
        fields = F.struct(*[name for name in frame.columns if name not in on])
        ordering = F.lit(None) if order is None else F.col(order)
        sides.append(frame.select(*keys, fields.alias(side), F.lit(side).alias("side"), ordering.alias("order")))
    union = sides[0].unionByName(sides[1], allowMissingColumns=True)
    result_fields = [StructField(name, union.schema[name].dataType) for name in (*on, *SIDES)]
    processor = LatestJoin(tuple(on), is_left=how == "left")
    return union.groupBy(*keys).transformWithState(processor, StructType(result_fields), "Append", "none")


class LatestJoin(StatefulProcessor):
    """Joins the rows of one task, and stores the latest row of each side per key.

    The stored rows are pickled, because Spark's own encoding loses time zones.
    """

    def __init__(self, on: tuple[str, ...], *, is_left: bool) -> None:
        self._on = on
        self._is_left = is_left

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of this task."""
        self._latest = {side: handle.getValueState(side, "row binary") for side in SIDES}

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Update the state with the rows that one batch has for one key, and return the joined rows."""
        latest = {side: _load_row(state) for side, state in self._latest.items()}
        names = dict(zip(self._on, key, strict=True))
        joined = []
        for row in sorted(rows, key=_order_key):
            latest[row["side"]] = row[row["side"]]
            left, right = latest["left"], latest["right"]
            has_result = (row["side"] == "left") if self._is_left else (left is not None and right is not None)
            if has_result:
                joined.append(Row(**names, left=left, right=right))
        for side, state in self._latest.items():
            if latest[side] is not None:
                state.update((pickle.dumps(latest[side]),))
        return iter(joined)

    def close(self) -> None:
        """Do nothing: no resource is open."""


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
    """Join rows that have the same values in the columns `on` and are in the same window.

    The columns of the result are `on`, `window_start`, `window_end`, `event_time`, and the structs `left` and `right`. The output
    mode is append. `keep="last"` joins the last row by `time` of each side, so it yields one row per key and window, when the
    window closes. `keep="all"` yields every pair, and does not work with session windows. With `how="left"` a left row without a
    match is written when the window closes. Rows whose `time` is more than `lateness` behind the latest one may be dropped; use
    `lateness=None` if the frames have a watermark on `time` already.
    """
    _require_known_join(how)
    on = _column_names(on)
    if keep not in {"last", "all"} or (keep == "all" and window.is_session):
        raise ValueError(f"invalid keep={keep!r}: use 'last', or 'all' with windows other than session windows")
    if window.is_session:
        return _session_join(left, right, on, window, how, time, lateness)
    left_rows, right_rows = (
        _select_windowed(frame, side, on, window, keep, time, lateness) for side, frame in zip(SIDES, (left, right), strict=True)
    )
    joined = left_rows.join(right_rows, ["window", *on], "inner" if how == "inner" else "leftOuter")
    return joined.select(*on, *_window_bounds("window"), "left", "right")


def _select_windowed(
    frame: DataFrame, side: str, on: list[str], window: Window, keep: str, time: str, lateness: str | None
) -> DataFrame:
    """Return the rows of one side with their windows: all rows, or the last row per key and window."""
    watermarked = frame if lateness is None else frame.withWatermark(time, lateness)
    fields = F.struct(*[name for name in frame.columns if name not in on])
    if keep == "all":
        return watermarked.select(window.column(time).alias("window"), *on, fields.alias(side))
    return watermarked.groupBy(window.column(time).alias("window"), *on).agg(F.max_by(fields, F.col(time)).alias(side))


def _session_join(
    left: DataFrame, right: DataFrame, on: list[str], window: Window, how: str, time: str, lateness: str | None
) -> DataFrame:
    """Join in session windows. The rows of both sides form the sessions together, so that both have the same window bounds."""
    sides = []
    for side, frame in zip(SIDES, (left, right), strict=True):
        fields = F.struct(*[name for name in frame.columns if name not in on])
        sides.append(frame.select(*on, F.col(time).alias("time"), fields.alias(side)))
    union = sides[0].unionByName(sides[1], allowMissingColumns=True)
    watermarked = union if lateness is None else union.withWatermark("time", lateness)
    last_rows = [F.max_by(side, F.when(F.col(side).isNotNull(), F.col("time"))).alias(side) for side in SIDES]
    sessions = watermarked.groupBy(window.column("time").alias("window"), *on).agg(*last_rows).where(F.col("left").isNotNull())
    matched = sessions if how == "left" else sessions.where(F.col("right").isNotNull())
    return matched.select(*on, *_window_bounds("window"), "left", "right")


def _window_bounds(window: str) -> list[Column]:
    """Return the columns `window_start`, `window_end` and `event_time` (the last moment) of the column `window`."""
    return [
        F.col(f"{window}.start").alias("window_start"),
        F.col(f"{window}.end").alias("window_end"),
        F.window_time(window).alias("event_time"),
    ]


def _load_row(state: Any) -> Any:
    """Return the row that the state stores, or None."""
    stored = state.get()
    return None if stored is None else pickle.loads(stored[0])  # noqa: S301 - our own checkpoint


def _order_key(row: Row) -> tuple[bool, Any, str]:
    """Return the sort key of a row. Rows whose order is null come first, in the order of their arrival."""
    order = row["order"]
    return (order is not None, order if order is not None else 0, row["side"] if order is not None else "")


def _column_names(on: str | Sequence[str]) -> list[str]:
    return [on] if isinstance(on, str) else list(on)


def _require_known_join(how: str) -> None:
    if how not in JOIN_TYPES:
        raise ValueError(f"unknown join how={how!r}: use one of {', '.join(JOIN_TYPES)}")
