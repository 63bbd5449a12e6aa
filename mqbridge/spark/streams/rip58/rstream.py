"""RStream, GroupedStream, WindowStream and JoinedStream: the operators of RIP-58, the API of RocketMQ Streams.

An operator on single values adds a step, a Python function that a Spark task calls for each element. An aggregate or a join adds
a node, a Spark operator that keeps state. Consecutive steps run in one pass of the rows through Python.
"""

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from mqbridge.spark.streams.joins import latest_join, window_join
from mqbridge.spark.streams.rip58 import aggregates, steps
from mqbridge.spark.streams.rip58.codecs import Codec
from mqbridge.spark.streams.rip58.plan import Chain, Context, Node, Output
from mqbridge.spark.streams.rip58.rows import JoinReader, KeyedWriter, PayloadWriter, TextWriter
from mqbridge.spark.streams.windows import Window

Function = Callable[[Any], Any]
"""A user's function of one value."""


class BaseStream:
    """Base class of streams: the chain that produces the elements, and the codec of their values."""

    def __init__(self, chain: Chain, codec: Codec) -> None:
        self._chain = chain
        self._codec = codec

    def sink(self, topic: str, serializer: Any, **options: str) -> None:
        """Write the elements to a topic.

        `serializer` is a function of key and value, or an object with the method `serialize`; it returns the payload. The options
        are those of the Spark sink.
        """
        writer = PayloadWriter(getattr(serializer, "serialize", serializer))
        self._chain.topology.add(Output("sink", self._chain, writer, topic, options))

    def print(self) -> None:
        """Print the key and value of each element in the driver."""
        self._chain.topology.add(Output("print", self._chain, TextWriter()))


class RStream(BaseStream):
    """A stream of values. Each value may have a key."""

    def map(self, function: Function) -> "RStream":
        """Replace each value with the result of the function."""
        return RStream(self._chain.with_step(steps.Map(function)), self._codec)

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> "RStream":
        """Replace each value with the values that the function returns."""
        return RStream(self._chain.with_step(steps.FlatMap(function)), self._codec)

    mapValues = map
    flatMapValues = flatMap

    def filter(self, function: Function) -> "RStream":
        """Keep the values for which the function returns true."""
        return RStream(self._chain.with_step(steps.Filter(function)), self._codec)

    def selectTimestamp(self, function: Callable[[Any], float]) -> "RStream":
        """Set the time of each value to the result of the function, in milliseconds since 1970.

        Use it before the first window. This time replaces the time that the property `timeType` of the job chooses.
        """
        if self._chain.node.has_watermark:
            raise ValueError("use selectTimestamp before the first window: after a window, the time is the end of the window")
        return RStream(self._chain.with_step(steps.SelectTimestamp(function)), self._codec)

    def foreach(self, function: Callable[[Any], object]) -> "RStream":
        """Call the function with each value, in a Spark task, and keep the value. A repeated task calls it again."""
        stream = RStream(self._chain.with_step(steps.Foreach(function)), self._codec)
        # Spark runs steps only for an output, so one is added here. If another operator or output follows, `StreamBuilder.build`
        # leaves this one out, and the function runs in the query of what follows.
        stream._chain.topology.add(Output("foreach", stream._chain, TextWriter()))
        return stream

    def keyBy(self, function: Function) -> "GroupedStream":
        """Group by the key that the function returns. JSON must be able to represent the key."""
        return GroupedStream(self._chain.with_step(steps.KeyBy(function)), self._codec)

    groupBy = keyBy

    def join(self, other: "RStream") -> "JoinedStream":
        """Join with another stream, and keep only values that have a match."""
        return JoinedStream(self, other, "inner")

    def leftJoin(self, other: "RStream") -> "JoinedStream":
        """Join with another stream, and keep all values of this stream, with None for a missing match."""
        return JoinedStream(self, other, "left")


class GroupedStream(BaseStream):
    """A stream of values, grouped by key."""

    def map(self, function: Function) -> "GroupedStream":
        """Replace each value with the result of the function. The keys do not change."""
        return GroupedStream(self._chain.with_step(steps.Map(function)), self._codec)

    def filter(self, function: Function) -> "GroupedStream":
        """Keep the values for which the function returns true."""
        return GroupedStream(self._chain.with_step(steps.Filter(function)), self._codec)

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> RStream:
        """Replace each value with the values that the function returns. The stream is no longer grouped."""
        return RStream(self._chain.with_step(steps.FlatMap(function)), self._codec)

    def count(self, select: Function | None = None) -> "GroupedStream":
        """Count the values per key so far; with `select`, only those for which it does not return None."""
        return self._aggregate(aggregates.count_of(select))

    def min(self, select: Function | None = None) -> "GroupedStream":
        """Find the value per key for which `select` returned the lowest number so far. Without `select`, values are numbers."""
        return self._aggregate(aggregates.min_of(select, self._codec))

    def max(self, select: Function | None = None) -> "GroupedStream":
        """Find the value per key for which `select` returned the highest number so far. Without `select`, values are numbers."""
        return self._aggregate(aggregates.max_of(select, self._codec))

    def sum(self, select: Function | None = None) -> "GroupedStream":
        """Add the numbers that `select` returns, per key. Without `select`, values are numbers."""
        return self._aggregate(aggregates.sum_of(select))

    def avg(self, select: Function | None = None) -> "GroupedStream":
        """Compute the average of the numbers that `select` returns, per key. Without `select`, values are numbers."""
        return self._aggregate(aggregates.avg_of(select))

    def aggregate(self, accumulator: Any) -> "GroupedStream":
        """Run a `streams.accumulators.Accumulator` per key, or a function of key, value and the result so far (None at first)."""
        node = aggregates.keyed_accumulator_node(self._chain, aggregates.as_accumulator(accumulator), self._codec)
        return GroupedStream(_start_chain(self._chain, node), self._codec)

    def window(self, window: Window) -> "WindowStream":
        """Group by window as well as by key."""
        return WindowStream(self._chain, self._codec, window)

    def toRStream(self) -> RStream:
        """Return the same values as a stream that is not grouped."""
        return RStream(self._chain, self._codec)

    def _aggregate(self, aggregate: aggregates.Aggregate) -> "GroupedStream":
        return GroupedStream(_start_chain(self._chain, aggregates.keyed_node(self._chain, aggregate)), self._codec)


class WindowStream:
    """A stream of values, grouped by key and window. An aggregate yields one value per key and window.

    It does so when the window closes: when the watermark, which follows the times of the values, passes the window's end.
    """

    def __init__(self, chain: Chain, codec: Codec, window: Window) -> None:
        self._chain = chain
        self._codec = codec
        self._window = window

    def map(self, function: Function) -> "WindowStream":
        """Replace each value with the result of the function."""
        return WindowStream(self._chain.with_step(steps.Map(function)), self._codec, self._window)

    def filter(self, function: Function) -> "WindowStream":
        """Keep the values for which the function returns true."""
        return WindowStream(self._chain.with_step(steps.Filter(function)), self._codec, self._window)

    def count(self, select: Function | None = None) -> GroupedStream:
        """Count the values; with `select`, only those for which it does not return None."""
        return self._aggregate(aggregates.count_of(select))

    def min(self, select: Function | None = None) -> GroupedStream:
        """Find the value for which `select` returns the lowest number. Without `select`, values are numbers."""
        return self._aggregate(aggregates.min_of(select, self._codec))

    def max(self, select: Function | None = None) -> GroupedStream:
        """Find the value for which `select` returns the highest number. Without `select`, values are numbers."""
        return self._aggregate(aggregates.max_of(select, self._codec))

    def sum(self, select: Function | None = None) -> GroupedStream:
        """Add the numbers that `select` returns. Without `select`, values are numbers."""
        return self._aggregate(aggregates.sum_of(select))

    def avg(self, select: Function | None = None) -> GroupedStream:
        """Compute the average of the numbers that `select` returns. Without `select`, values are numbers."""
        return self._aggregate(aggregates.avg_of(select))

    def aggregate(self, accumulator: Any) -> GroupedStream:
        """Run a `streams.accumulators.Accumulator` per key and window, or a function as in `GroupedStream.aggregate`."""
        wrapped = aggregates.as_accumulator(accumulator)
        node = aggregates.windowed_accumulator_node(self._chain, self._window, wrapped, self._codec)
        return GroupedStream(_start_chain(self._chain, node), self._codec)

    def _aggregate(self, aggregate: aggregates.Aggregate) -> GroupedStream:
        return GroupedStream(
            _start_chain(self._chain, aggregates.windowed_node(self._chain, self._window, aggregate)), self._codec
        )


class JoinedStream:
    """A join that is not complete yet: call `where(...).equalTo(...)`, `window(...)` for a windowed join, then `apply(...)`."""

    def __init__(self, left: RStream, right: RStream, how: str) -> None:
        self._left = left
        self._right = right
        self._how = how
        self._window: Window | None = None

    def where(self, select: Function) -> "JoinedStream":
        """Set the function that returns the key of a value of the left stream."""
        self._left = RStream(self._left._chain.with_step(steps.KeyBy(select)), self._left._codec)
        return self

    def equalTo(self, select: Function) -> "JoinedStream":
        """Set the function that returns the key of a value of the right stream."""
        self._right = RStream(self._right._chain.with_step(steps.KeyBy(select)), self._right._codec)
        return self

    def window(self, window: Window) -> "JoinedStream":
        """Join only the latest value of each side, per key and window, when the window closes.

        Without a window, each value (in a left join: each left value) joins the latest value so far of the other side with the
        same key.
        """
        self._window = window
        return self

    def apply(self, action: Callable[[Any, Any], Any]) -> RStream:
        """Complete the join: `action(left, right)` returns the new value. In a left join the right value may be None."""
        chains = (self._left._chain, self._right._chain)
        # Both streams have the codec of their StreamBuilder, so one codec serves for both.
        codec, window, how = self._left._codec, self._window, self._how
        for chain in chains:
            chain.require_no_updates("a join")  # raises after an aggregate without a window, whose results are updates
            chain.is_used = True  # a `foreach` at the end of the chain now runs in the query of the join
        writer = KeyedWriter(codec)

        def frame(context: Context) -> DataFrame:
            if window is None:
                left, right = (chain.rows(context, writer).select("key", "value", "event_time") for chain in chains)
                joined = latest_join(left, right, "key", how, order="event_time")
                joined = joined.withColumn("event_time", F.greatest("left.event_time", "right.event_time"))
            else:
                left, right = (
                    chain.rows_with_watermark(context, writer).select("key", "value", "event_time") for chain in chains
                )
                # `lateness` is None because the rows have a watermark already.
                joined = window_join(left, right, "key", window, how, lateness=None)
            return joined.select("key", F.col("left.value").alias("left"), F.col("right.value").alias("right"), "event_time")

        node = Node(frame, JoinReader(codec, action), has_watermark=window is not None)
        return RStream(_start_chain(chains[0], node), codec)


def _start_chain(chain: Chain, node: Node) -> Chain:
    """Return a new chain that begins with a node after this chain."""
    chain.is_used = True
    return Chain(chain.topology, node)
