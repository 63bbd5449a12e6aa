"""Aggregates that Spark has not: an accumulator of one's own per key, with or without windows.

What Spark has (`count`, `sum`, `avg`, `min_by`, ...) belongs into `groupBy(...).agg(...)` or `window_aggregate`: it runs in the
JVM, about ten times as fast as any accumulator in Python.
"""

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol, Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import DataType, StructField, StructType

from mqbridge.spark.streams.decoding import parse_type
from mqbridge.spark.streams.state import require_rocksdb
from mqbridge.spark.streams.windows import Window

WINDOW_START = "window_start_time"
WINDOW_END = "window_end_time"
"""What `result` finds in its properties under a window: milliseconds since 1970."""


class Accumulator(Protocol):
    """What a custom aggregate is made of, as in RIP-58. An object that can be pickled; `merge` is not needed here."""

    def addValue(self, value: Any) -> None:
        """Take one value in."""

    def result(self, properties: Mapping[str, Any]) -> Any:
        """What the values taken in make."""

    def clone(self) -> Self:
        """A new one, as this one is."""


class KeyedState(ABC):
    """Of an accumulator that knows its key."""

    @abstractmethod
    def of(self, key: Any) -> Accumulator:
        """A new one for a key (a tuple, if it is of several columns)."""

    @abstractmethod
    def save(self) -> Any:
        """What of it is kept between batches, to be pickled."""

    @abstractmethod
    def restore(self, saved: Any) -> None:
        """Go on from there."""


class Fold(KeyedState):
    """An accumulator made of a function of the key, a value and the result so far (None at first)."""

    def __init__(self, function: Callable[[Any, Any, Any], Any], key: Any = None) -> None:
        self._function = function
        self._key = key
        self._value: Any = None

    def addValue(self, value: Any) -> None:
        """Replace the result so far."""
        self._value = self._function(self._key, value, self._value)

    def result(self, properties: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """The last result."""
        return self._value

    def clone(self) -> "Fold":
        """One of the same function and state."""
        return deepcopy(self)

    def of(self, key: Any) -> "Fold":
        """A new one for a key (a tuple, if it is of several columns)."""
        return Fold(self._function, key)

    def save(self) -> Any:
        """The result so far; not the function."""
        return self._value

    def restore(self, saved: Any) -> None:
        """Go on from there."""
        self._value = saved


def window_aggregate(
    frame: DataFrame,
    by: str | Sequence[str],
    window: Window,
    *aggregates: Column,
    time: str = "event_time",
    lateness: str | None = "2 seconds",
) -> DataFrame:
    """Aggregate per `by` and window: these columns, `window_start`, `window_end`, `event_time` (its end) and the aggregates.

    One row per key and window, once the watermark (the highest `time` less `lateness`) has passed its end; output mode append.
    Rows behind the watermark are dropped. `lateness=None`: the frame has a watermark on `time` already.
    """
    by = [by] if isinstance(by, str) else list(by)
    marked = frame if lateness is None else frame.withWatermark(time, lateness)
    grouped = marked.groupBy(window.column(time), *by).agg(*aggregates)
    results = [name for name in grouped.columns if name not in {*by, window.name}]
    start, end = F.col(f"{window.name}.start"), F.col(f"{window.name}.end")
    closing = F.window_time(window.name)
    return grouped.select(*by, start.alias("window_start"), end.alias("window_end"), closing.alias("event_time"), *results)


def accumulate(
    frame: DataFrame,
    by: str | Sequence[str],
    accumulator: Accumulator,
    *,
    value: str = "value",
    into: str = "result",
    kind: DataType | str,
    order: str | None = None,
) -> DataFrame:
    """One accumulator per `by`, for ever: columns `by` and `into`, one row per batch and key in it. Output mode update.

    Values of one batch are taken in the order of the column `order`; without it in an order that another attempt may not repeat.
    """
    require_rocksdb(frame.sparkSession)
    by = [by] if isinstance(by, str) else list(by)
    ordering = F.lit(None) if order is None else F.col(order)
    taken = frame.select(*by, F.col(value).alias("__value"), ordering.alias("__order"))
    schema = StructType([*[taken.schema[name] for name in by], StructField(into, parse_type(kind))])
    return taken.groupBy(*by).transformWithState(KeyedAccumulator(accumulator, tuple(by), into), schema, "Update", "none")


class KeyedAccumulator(StatefulProcessor):
    """The state of one key is what its accumulator keeps, pickled: its attributes, so its class may change and live anywhere."""

    def __init__(self, accumulator: Accumulator, by: tuple[str, ...], into: str) -> None:
        self._empty = accumulator
        self._by = by
        self._into = into

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of this task."""
        self._state = handle.getValueState("accumulator", "pickle binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Take in the values of one batch and key."""
        accumulator = _start(self._empty, key)
        stored = self._state.get()
        if stored is not None:
            restore_state(accumulator, pickle.loads(stored[0]))  # noqa: S301 - our own checkpoint
        for row in sorted(rows, key=_order):
            accumulator.addValue(row["__value"])
        self._state.update((pickle.dumps(save_state(accumulator)),))
        yield Row(**dict(zip(self._by, key, strict=True)), **{self._into: accumulator.result({})})

    def close(self) -> None:
        """Nothing is open."""


def accumulate_window(
    frame: DataFrame,
    by: str | Sequence[str],
    window: Window,
    accumulator: Accumulator,
    *,
    value: str = "value",
    into: str = "result",
    kind: DataType | str,
    time: str = "event_time",
    lateness: str | None = "2 seconds",
) -> DataFrame:
    """One accumulator per `by` and window: the columns of `window_aggregate`, with `into`. Output mode append.

    Spark keeps the values themselves until the window is over, and merges its sessions; then one pass through Python takes them
    in by `time`. So the order is certain, and the state of a key grows with the values of its open windows.
    """
    by = [by] if isinstance(by, str) else list(by)
    values = F.array_sort(F.collect_list(F.struct(F.col(time).alias("time"), F.col(value).alias("value")))).alias("__values")
    windows = window_aggregate(frame, by, window, values, time=time, lateness=lateness)
    result = parse_type(kind)

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow_type = to_arrow_type(result, timezone="UTC")
        for batch in batches:
            keys = zip(*[batch.column(name).to_pylist() for name in by], strict=True)
            borders = zip(*[_milliseconds(batch.column(name)) for name in ("window_start", "window_end")], strict=True)
            lists = batch.column("__values").to_pylist()
            results = [
                _result(_start(accumulator, key), (item["value"] for item in items), start, end)
                for key, (start, end), items in zip(keys, borders, lists, strict=True)
            ]
            columns = [*batch.columns[:-1], pa.array(results, arrow_type)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[:-1], into])

    return windows.mapInArrow(run, StructType([*windows.schema.fields[:-1], StructField(into, result)]))


def save_state(accumulator: Accumulator) -> Any:
    """What of it is kept between batches."""
    return accumulator.save() if isinstance(accumulator, KeyedState) else vars(accumulator)


def restore_state(accumulator: Accumulator, saved: Any) -> None:
    """Let a new one go on from there."""
    if isinstance(accumulator, KeyedState):
        accumulator.restore(saved)
    else:
        vars(accumulator).update(saved)


def _result(accumulator: Accumulator, values: Iterable[Any], start: int, end: int) -> Any:
    for value in values:
        accumulator.addValue(value)
    return accumulator.result({WINDOW_START: start, WINDOW_END: end})


def _start(empty: Accumulator, key: tuple[Any, ...]) -> Accumulator:
    if isinstance(empty, KeyedState):
        return empty.of(key[0] if len(key) == 1 else key)
    return empty.clone()


def _order(row: Row) -> tuple[bool, Any]:
    return (row["__order"] is not None, row["__order"] if row["__order"] is not None else 0)


def _milliseconds(column: pa.Array) -> list[int]:
    return [micros // 1000 for micros in column.cast(pa.int64()).to_pylist()]
