"""Nodes (Spark operators of a topology) that aggregate rows per key, or per key and window.

The preceding operators run in Python and write the rows (KeyedWriter). Aggregates of numbers then run in the JVM, accumulators in
Python. Spark allows no stateful operator after an aggregate without a window: `Chain.require_no_updates` raises ValueError then.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import orjson
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from mqbridge.spark.streams.accumulators import (
    Accumulator,
    Fold,
    KeyedState,
    accumulate,
    accumulate_window,
    restore_state,
    save_state,
    window_aggregate,
)
from mqbridge.spark.streams.rip58.codecs import JSON, Codec
from mqbridge.spark.streams.rip58.plan import Chain, Context, Node
from mqbridge.spark.streams.rip58.rows import KeyedWriter, ValueReader
from mqbridge.spark.streams.windows import Window

Select = Callable[[Any], Any]
"""The user's function that returns the number of a value, or None to leave the value out."""


@dataclass(frozen=True)
class Aggregate:
    """An aggregate that runs in the JVM over the columns of KeyedWriter: `whole` has integers, `real` has other numbers."""

    name: str
    """The name of the operator in errors."""
    column: Callable[[], Column]
    """Returns the column with the result as bytes, which `codec` decodes."""
    select: Select | None
    """Returns the number of a value, or None for a value to leave out. None instead of a function: no numbers are needed."""
    codec: Codec
    keep_value: bool = False
    """Whether `column` needs the value itself. False: only its number, so the column `value` is null."""


def count_of(select: Select | None) -> Aggregate:
    """Return the aggregate that counts elements; with `select`, only those for which it does not return None."""

    def column() -> Column:
        # `_OneIfSelected` sets `whole` to 1 for the elements to count; without `select`, every row counts.
        return _as_json(F.count("whole" if select else F.lit(1)))

    return Aggregate("count", column, None if select is None else _OneIfSelected(select), JSON)


def sum_of(select: Select | None) -> Aggregate:
    """Return the aggregate that adds numbers.

    The sum is an integer if all numbers are integers; a sum beyond 64 bits fails the query. Otherwise the sum is a double.
    Without any number, the result is None.
    """

    def column() -> Column:
        # The sum of no integers is null: then only the doubles are added.
        integer_sum = F.sum("whole")
        double_sum = F.coalesce(integer_sum.cast("double"), F.lit(0.0)) + F.sum("real")
        return F.when(F.count("real") == 0, _as_json(integer_sum)).otherwise(_as_json(double_sum))

    return Aggregate("sum", column, select or _identity, JSON)


def avg_of(select: Select | None) -> Aggregate:
    """Return the aggregate for the average, which is a double."""
    return Aggregate("avg", lambda: _as_json(F.avg(_number_column())), select or _identity, JSON)


def min_of(select: Select | None, codec: Codec) -> Aggregate:
    """Return the aggregate for the value with the lowest number; among equal numbers it takes the earliest."""

    def column() -> Column:
        return F.min_by("value", _order_of_numbers(F.col("event_time")))

    return Aggregate("min", column, select or _identity, codec, keep_value=True)


def max_of(select: Select | None, codec: Codec) -> Aggregate:
    """Return the aggregate for the value with the highest number; among equal numbers it takes the earliest."""

    def column() -> Column:
        # With the negative time, the earliest of equal values is the highest.
        return F.max_by("value", _order_of_numbers(-F.unix_micros("event_time")))

    return Aggregate("max", column, select or _identity, codec, keep_value=True)


def keyed_node(chain: Chain, aggregate: Aggregate) -> Node:
    """Return a node that aggregates per key over all time. Each micro-batch yields a new value for every key in it."""
    chain.require_no_updates(aggregate.name)
    writer = KeyedWriter(aggregate.codec, aggregate.select, aggregate.keep_value)

    def frame(context: Context) -> DataFrame:
        rows = chain.rows(context, writer).groupBy("key")
        return rows.agg(aggregate.column().alias("value"), F.max("event_time").alias("event_time"))

    return Node(frame, ValueReader(aggregate.codec), emits_updates=True)


def windowed_node(chain: Chain, window: Window, aggregate: Aggregate) -> Node:
    """Return a node that aggregates per key and window. It yields a value when the window closes."""
    chain.require_no_updates("a window")
    writer = KeyedWriter(aggregate.codec, aggregate.select, aggregate.keep_value)

    def frame(context: Context) -> DataFrame:
        rows = chain.rows_with_watermark(context, writer)
        # `lateness` is None because the rows have a watermark already.
        return window_aggregate(rows, "key", window, aggregate.column().alias("value"), lateness=None)

    return Node(frame, ValueReader(aggregate.codec), has_watermark=True)


def keyed_accumulator_node(chain: Chain, accumulator: Accumulator, codec: Codec) -> Node:
    """Return a node that runs one accumulator per key over all time. The event time of a result is when its batch began."""
    chain.require_no_updates("aggregate")

    def frame(context: Context) -> DataFrame:
        rows = chain.rows(context, KeyedWriter(codec)).withColumn("order", F.col("event_time"))
        wrapped = CodedAccumulator(accumulator, codec)
        results = accumulate(rows, "key", wrapped, into="value", kind="binary", order="order")
        return results.withColumn("event_time", F.current_timestamp())

    return Node(frame, ValueReader(codec), emits_updates=True)


def windowed_accumulator_node(chain: Chain, window: Window, accumulator: Accumulator, codec: Codec) -> Node:
    """Return a node that runs one accumulator per key and window.

    When a window closes, the accumulator receives its values in order of time, and its result is yielded.
    """
    chain.require_no_updates("a window")

    def frame(context: Context) -> DataFrame:
        rows = chain.rows_with_watermark(context, KeyedWriter(codec))
        wrapped = CodedAccumulator(accumulator, codec)
        # `lateness` is None because the rows have a watermark already.
        return accumulate_window(rows, "key", window, wrapped, into="value", kind="binary", lateness=None)

    return Node(frame, ValueReader(codec), has_watermark=True)


class CodedAccumulator(KeyedState):
    """Wraps an accumulator: decodes the values before it adds them, and encodes its result, with a codec."""

    def __init__(self, accumulator: Accumulator, codec: Codec) -> None:
        self._inner = accumulator
        self._codec = codec

    def addValue(self, value: bytes) -> None:
        """Decode one value and add it."""
        self._inner.addValue(self._codec.loads(value))

    def result(self, properties: Mapping[str, Any]) -> bytes:
        """Return the encoded result. `properties` has WINDOW_START and WINDOW_END; without windows it is empty."""
        return self._codec.dumps(self._inner.result(properties))

    def clone(self) -> Self:
        """Return a wrapper around a clone of the accumulator."""
        return type(self)(self._inner.clone(), self._codec)

    def for_key(self, key: str) -> "CodedAccumulator":
        """Return a wrapper around a new accumulator for this key, which is JSON text."""
        inner = self._inner
        new_inner = inner.for_key(orjson.loads(key)) if isinstance(inner, KeyedState) else inner.clone()
        return CodedAccumulator(new_inner, self._codec)

    def save(self) -> Any:
        """Return the state of the wrapped accumulator."""
        return save_state(self._inner)

    def restore(self, saved: Any) -> None:
        """Restore the state of the wrapped accumulator."""
        restore_state(self._inner, saved)


def as_accumulator(aggregate: Any) -> Accumulator:
    """Return the accumulator that a user passes. A function of key, value and the result so far is wrapped in a Fold."""
    if hasattr(aggregate, "addValue"):
        return aggregate  # type: ignore[no-any-return]
    return Fold(aggregate)


@dataclass(frozen=True)
class _OneIfSelected:
    """Returns 1 for a value to count, and None for a value that `select` leaves out."""

    select: Select

    def __call__(self, value: Any) -> int | None:
        return None if self.select(value) is None else 1


def _identity(value: Any) -> Any:
    return value


def _number_column() -> Column:
    """Return the number of each row as a double."""
    return F.coalesce(F.col("real"), F.col("whole").cast("double"))


def _order_of_numbers(time: Column) -> Column:
    """Return the order of rows for `min_by` and `max_by`; null, so that they ignore the row, for a value without a number."""
    number = _number_column()
    # Large integers may be equal as doubles, so the exact integer comes next, and then the time.
    return F.when(number.isNotNull(), F.struct(number, F.col("whole"), time))


def _as_json(column: Column) -> Column:
    """Return a column of numbers as bytes of JSON text."""
    return column.cast("string").cast("binary")
