"""Aggregates per key, and per key and window, of what a pass makes. Those of numbers run in the JVM; accumulators in Python."""

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


@dataclass(frozen=True)
class Aggregate:
    """An aggregate of the JVM: the value as bytes, from the columns of KeyedWriter; `codec` reads them."""

    name: str
    column: Callable[[], Column]
    select: Select | None
    codec: Codec
    keep_value: bool = False


def count_of(select: Select | None) -> Aggregate:
    """How many elements; with `select`, how many of which it is not None."""

    def column() -> Column:
        return _json(F.count("whole" if select else F.lit(1)))

    return Aggregate("count", column, None if select is None else _Present(select), JSON)


def sum_of(select: Select | None) -> Aggregate:
    """An integer while all numbers are integers (more than 64 bits end the query), else a double."""

    def column() -> Column:
        whole = F.sum("whole")
        real = F.coalesce(whole.cast("double"), F.lit(0.0)) + F.sum("real")
        return F.when(F.count("real") == 0, _json(whole)).otherwise(_json(real))

    return Aggregate("sum", column, select or _itself, JSON)


def avg_of(select: Select | None) -> Aggregate:
    """A double."""
    return Aggregate("avg", lambda: _json(F.avg(_number())), select or _itself, JSON)


def min_of(select: Select | None, codec: Codec) -> Aggregate:
    """The element with the lowest number, the earliest of equal ones."""

    def column() -> Column:
        return F.min_by("value", F.struct(_number(), F.col("whole"), F.col("event_time")))

    return Aggregate("min", column, select or _itself, codec, keep_value=True)


def max_of(select: Select | None, codec: Codec) -> Aggregate:
    """The element with the highest number, the earliest of equal ones."""

    def column() -> Column:
        return F.max_by("value", F.struct(_number(), F.col("whole"), -F.unix_micros("event_time")))

    return Aggregate("max", column, select or _itself, codec, keep_value=True)


def keyed(chain: Chain, aggregate: Aggregate) -> Node:
    """An aggregate per key, for ever: the key's new value with each batch that it occurs in."""
    chain.require_no_updates(aggregate.name)
    writer = KeyedWriter(aggregate.codec, aggregate.select, aggregate.keep_value)

    def frame(context: Context) -> DataFrame:
        rows = chain.rows(context, writer).groupBy("key")
        return rows.agg(aggregate.column().alias("value"), F.max("event_time").alias("event_time"))

    return Node(frame, ValueReader(aggregate.codec), updates=True)


def windowed(chain: Chain, window: Window, aggregate: Aggregate) -> Node:
    """An aggregate per key and window, once the window is over."""
    chain.require_no_updates("a window")
    writer = KeyedWriter(aggregate.codec, aggregate.select, aggregate.keep_value)

    def frame(context: Context) -> DataFrame:
        rows = chain.timed(context, writer)
        return window_aggregate(rows, "key", window, aggregate.column().alias("value"), lateness=None)

    return Node(frame, ValueReader(aggregate.codec), has_watermark=True)


def keyed_accumulator(chain: Chain, accumulator: Accumulator, codec: Codec) -> Node:
    """One accumulator per key, for ever."""
    chain.require_no_updates("aggregate")

    def frame(context: Context) -> DataFrame:
        rows = chain.rows(context, KeyedWriter(codec)).withColumn("order", F.col("event_time"))
        wrapped = CodedAccumulator(accumulator, codec)
        results = accumulate(rows, "key", wrapped, into="value", kind="binary", order="order")
        return results.withColumn("event_time", F.current_timestamp())

    return Node(frame, ValueReader(codec), updates=True)


def windowed_accumulator(chain: Chain, window: Window, accumulator: Accumulator, codec: Codec) -> Node:
    """One accumulator per key and window, which takes its values in by their time when the window is over."""
    chain.require_no_updates("a window")

    def frame(context: Context) -> DataFrame:
        rows = chain.timed(context, KeyedWriter(codec))
        wrapped = CodedAccumulator(accumulator, codec)
        return accumulate_window(rows, "key", window, wrapped, into="value", kind="binary", lateness=None)

    return Node(frame, ValueReader(codec), has_watermark=True)


class CodedAccumulator(KeyedState):
    """An accumulator over values as a codec has them."""

    def __init__(self, accumulator: Accumulator, codec: Codec) -> None:
        self._inner = accumulator
        self._codec = codec

    def addValue(self, value: bytes) -> None:
        """Take one value in."""
        self._inner.addValue(self._codec.loads(value))

    def result(self, properties: Mapping[str, Any]) -> bytes:
        """The result as bytes."""
        return self._codec.dumps(self._inner.result(properties))

    def clone(self) -> Self:
        """One more of its kind."""
        return type(self)(self._inner.clone(), self._codec)

    def of(self, key: str) -> "CodedAccumulator":
        """A new one for a key."""
        inner = self._inner
        start = inner.of(orjson.loads(key)) if isinstance(inner, KeyedState) else inner.clone()
        return CodedAccumulator(start, self._codec)

    def save(self) -> Any:
        """What the accumulator keeps."""
        return save_state(self._inner)

    def restore(self, saved: Any) -> None:
        """Go on from there."""
        restore_state(self._inner, saved)


def as_accumulator(aggregate: Any) -> Accumulator:
    """An accumulator as it is, or of a function of key, value and the result so far."""
    if hasattr(aggregate, "addValue"):
        return aggregate  # type: ignore[no-any-return]
    return Fold(aggregate)


@dataclass(frozen=True)
class _Present:
    select: Select

    def __call__(self, value: Any) -> int | None:
        return None if self.select(value) is None else 1


def _itself(value: Any) -> Any:
    return value


def _number() -> Column:
    return F.coalesce(F.col("real"), F.col("whole").cast("double"))


def _json(column: Column) -> Column:
    return column.cast("string").cast("binary")
