"""Custom aggregates: a user-defined accumulator per key, with or without windows.

For the aggregates that Spark has (`count`, `sum`, `avg`, `min_by`, ...) use `groupBy(...).agg(...)` or `window_aggregate`. They
run in the JVM, about ten times as fast as an accumulator in Python.
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
"""The names of the properties that `Accumulator.result` receives for a window. Their values are milliseconds since 1970."""


class Accumulator(Protocol):
    """The interface of a custom aggregate: that of RocketMQ Streams (RIP-58) without `merge`. The object must be picklable."""

    def addValue(self, value: Any) -> None:
        """Add one value."""

    def result(self, properties: Mapping[str, Any]) -> Any:
        """Return the aggregate of the added values. `properties` has WINDOW_START and WINDOW_END; without windows it is empty."""

    def clone(self) -> Self:
        """Return a copy of this accumulator. Each key begins with a copy of the one that the caller passed."""


class KeyedState(ABC):
    """Base class of accumulators that receive their key and choose which state the checkpoint stores."""

    @abstractmethod
    def for_key(self, key: Any) -> Accumulator:
        """Return a new accumulator for this key. A key of several columns is a tuple."""

    @abstractmethod
    def save(self) -> Any:
        """Return the state to store between batches. It must be picklable."""

    @abstractmethod
    def restore(self, saved: Any) -> None:
        """Set the state to a value that `save` returned."""


class Fold(KeyedState):
    """An accumulator that calls `function(key, value, result so far)` for each value. The first result so far is None."""

    def __init__(self, function: Callable[[Any, Any, Any], Any], key: Any = None) -> None:
        self._function = function
        self._key = key
        self._value: Any = None

    def addValue(self, value: Any) -> None:
        """Replace the result with the result of the function for this value."""
        self._value = self._function(self._key, value, self._value)

    def result(self, properties: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Return the result so far."""
        return self._value

    def clone(self) -> "Fold":
        """Return an accumulator with the same function and a copy of the state."""
        return deepcopy(self)

    def for_key(self, key: Any) -> "Fold":
        """Return a new accumulator with the same function for this key. A key of several columns is a tuple."""
        return Fold(self._function, key)

    def save(self) -> Any:
        """Return the result so far. The function is not stored."""
        return self._value

    def restore(self, saved: Any) -> None:
        """Set the result to one that `save` returned."""
        self._value = saved


def window_aggregate(
    frame: DataFrame,
    by: str | Sequence[str],
    window: Window,
    *aggregates: Column,
    time: str = "event_time",
    lateness: str | None = "2 seconds",
) -> DataFrame:
    """Compute aggregates per key (the columns `by`) and window.

    The columns of the result are `by`, `window_start`, `window_end`, `event_time` (the last moment of the window) and the
    aggregates. The result has one row per key and window, written when the watermark has passed the end of the window.
    The watermark is the highest `time` minus `lateness`; rows of windows that it has passed are dropped. Use `lateness=None` if
    the frame has a watermark on `time` already. The output mode is append.
    """
    by = [by] if isinstance(by, str) else list(by)
    watermarked = frame if lateness is None else frame.withWatermark(time, lateness)
    grouped = watermarked.groupBy(window.column(time), *by).agg(*aggregates)
    results = [name for name in grouped.columns if name not in {*by, window.name}]
    start, end = F.col(f"{window.name}.start"), F.col(f"{window.name}.end")
    event_time = F.window_time(window.name)
    return grouped.select(*by, start.alias("window_start"), end.alias("window_end"), event_time.alias("event_time"), *results)


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
    """Run one accumulator per key (the columns `by`), without windows. Its state never expires.

    Each batch yields one row for every key that occurs in it, with the columns `by` and `into`. `kind` is the type of `into`.
    The accumulator receives the column `value`. The values of one batch are added in the order of the column `order`. Without
    `order`, a batch that Spark repeats after a failure may add them in another order. The output mode is update.
    """
    require_rocksdb(frame.sparkSession)
    by = [by] if isinstance(by, str) else list(by)
    ordering = F.lit(None) if order is None else F.col(order)
    inputs = frame.select(*by, F.col(value).alias("__value"), ordering.alias("__order"))
    schema = StructType([*[inputs.schema[name] for name in by], StructField(into, parse_type(kind))])
    return inputs.groupBy(*by).transformWithState(KeyedAccumulator(accumulator, tuple(by), into), schema, "Update", "none")


class KeyedAccumulator(StatefulProcessor):
    """Runs the accumulators of one task.

    The state of a key is pickled. It contains the attributes of the accumulator, but not its class. So the class may change, or
    move to another module.
    """

    def __init__(self, accumulator: Accumulator, by: tuple[str, ...], into: str) -> None:
        self._prototype = accumulator
        self._by = by
        self._into = into

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state of this task."""
        self._state = handle.getValueState("accumulator", "pickle binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002
        """Add the values that one batch has for one key, and yield the key's new result."""
        accumulator = _new_accumulator(self._prototype, key)
        stored = self._state.get()
        if stored is not None:
            restore_state(accumulator, pickle.loads(stored[0]))  # noqa: S301 - our own checkpoint
        for row in sorted(rows, key=_order_key):
            accumulator.addValue(row["__value"])
        self._state.update((pickle.dumps(save_state(accumulator)),))
        yield Row(**dict(zip(self._by, key, strict=True)), **{self._into: accumulator.result({})})

    def close(self) -> None:
        """Do nothing: no resource is open."""


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
    """Run one accumulator per key (the columns `by`) and window.

    The columns of the result are those of `window_aggregate`, with `into` as the only aggregate. `kind` is the type of `into`.
    Spark stores the values until the window closes, and merges session windows. Python then adds the values in the order of
    `time`. So the order is deterministic, and the state of a key grows with the number of values in its open windows.
    The output mode is append.
    """
    by = [by] if isinstance(by, str) else list(by)
    values = F.array_sort(F.collect_list(F.struct(F.col(time).alias("time"), F.col(value).alias("value")))).alias("__values")
    windows = window_aggregate(frame, by, window, values, time=time, lateness=lateness)
    result_type = parse_type(kind)

    def accumulate_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrow_type = to_arrow_type(result_type, timezone="UTC")
        for batch in batches:
            keys = zip(*[batch.column(name).to_pylist() for name in by], strict=True)
            bounds = zip(*[_to_milliseconds(batch.column(name)) for name in ("window_start", "window_end")], strict=True)
            lists = batch.column("__values").to_pylist()
            results = [
                _compute_result(_new_accumulator(accumulator, key), (item["value"] for item in items), start, end)
                for key, (start, end), items in zip(keys, bounds, lists, strict=True)
            ]
            # The last column is `__values`, which the results replace.
            columns = [*batch.columns[:-1], pa.array(results, arrow_type)]
            yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[:-1], into])

    return windows.mapInArrow(accumulate_batches, StructType([*windows.schema.fields[:-1], StructField(into, result_type)]))


def save_state(accumulator: Accumulator) -> Any:
    """Return the state of an accumulator to store between batches: the result of `KeyedState.save`, or else its attributes."""
    return accumulator.save() if isinstance(accumulator, KeyedState) else vars(accumulator)


def restore_state(accumulator: Accumulator, saved: Any) -> None:
    """Set the state of a new accumulator to one that `save_state` returned."""
    if isinstance(accumulator, KeyedState):
        accumulator.restore(saved)
    else:
        vars(accumulator).update(saved)


def _compute_result(accumulator: Accumulator, values: Iterable[Any], start: int, end: int) -> Any:
    """Add the values of a window and return the result. Start and end of the window are milliseconds since 1970."""
    for value in values:
        accumulator.addValue(value)
    return accumulator.result({WINDOW_START: start, WINDOW_END: end})


def _new_accumulator(prototype: Accumulator, key: tuple[Any, ...]) -> Accumulator:
    """Return an accumulator without values for this key."""
    if isinstance(prototype, KeyedState):
        return prototype.for_key(key[0] if len(key) == 1 else key)
    return prototype.clone()


def _order_key(row: Row) -> tuple[bool, Any]:
    """Return the sort key of a row. Rows whose order is null come first, in the order of their arrival."""
    order = row["__order"]
    return (order is not None, order if order is not None else 0)


def _to_milliseconds(column: pa.Array) -> list[int]:
    """Return the milliseconds since 1970 of a column of timestamps, which Spark passes in microseconds."""
    return [micros // 1000 for micros in column.cast(pa.int64()).to_pylist()]
