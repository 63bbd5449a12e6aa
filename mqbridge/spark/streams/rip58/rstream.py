"""RStream, GroupedStream, WindowStream and JoinedStream: the words of RIP-58, each a step of a pass or a node with state."""

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


class Stream:
    """What streams have in common: a chain of steps, and the codec of their values."""

    def __init__(self, chain: Chain, codec: Codec) -> None:
        self._chain = chain
        self._codec = codec

    def sink(self, topic: str, serializer: Any, **options: str) -> None:
        """Write into a topic: `serializer(key, value)`, or an object with `serialize`, makes the payload. Options: the sink's."""
        writer = PayloadWriter(getattr(serializer, "serialize", serializer))
        self._chain.topology.add(Output("sink", self._chain, writer, topic, options))

    def print(self) -> None:
        """Print key and value of each element, in the driver."""
        self._chain.topology.add(Output("print", self._chain, TextWriter()))


class RStream(Stream):
    """A stream of values, which may have keys."""

    def map(self, function: Function) -> "RStream":
        """Another value for each."""
        return RStream(self._chain.then(steps.Map(function)), self._codec)

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> "RStream":
        """Any number of values for each."""
        return RStream(self._chain.then(steps.FlatMap(function)), self._codec)

    mapValues = map
    flatMapValues = flatMap

    def filter(self, function: Function) -> "RStream":
        """Those for which it is true."""
        return RStream(self._chain.then(steps.Filter(function)), self._codec)

    def selectTimestamp(self, function: Callable[[Any], float]) -> "RStream":
        """Milliseconds since 1970 of each value, instead of the message's time or the clock's. Before the first window."""
        if self._chain.node.has_watermark:
            raise ValueError("selectTimestamp belongs before the first window: behind it, time is the window's end")
        return RStream(self._chain.then(steps.SelectTimestamp(function)), self._codec)

    def foreach(self, function: Callable[[Any], object]) -> "RStream":
        """Call it for each value, in a task, and pass the value on. A task that runs again calls again."""
        stream = RStream(self._chain.then(steps.Foreach(function)), self._codec)
        stream._chain.topology.add(Output("foreach", stream._chain, TextWriter()))
        return stream

    def keyBy(self, function: Function) -> "GroupedStream":
        """Group by a key of each value: anything that JSON has."""
        return GroupedStream(self._chain.then(steps.KeyBy(function)), self._codec)

    groupBy = keyBy

    def join(self, other: "RStream") -> "JoinedStream":
        """Pairs of values of both streams."""
        return JoinedStream(self, other, "inner")

    def leftJoin(self, other: "RStream") -> "JoinedStream":
        """Values of this stream, with that of the other one or None."""
        return JoinedStream(self, other, "left")


class GroupedStream(Stream):
    """A stream of values with keys."""

    def map(self, function: Function) -> "GroupedStream":
        """Another value for each, the keys as they are."""
        return GroupedStream(self._chain.then(steps.Map(function)), self._codec)

    def filter(self, function: Function) -> "GroupedStream":
        """Those for which it is true."""
        return GroupedStream(self._chain.then(steps.Filter(function)), self._codec)

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> RStream:
        """Any number of values for each."""
        return RStream(self._chain.then(steps.FlatMap(function)), self._codec)

    def count(self, select: Function | None = None) -> "GroupedStream":
        """How many values per key so far; with `select`, how many of which it is not None."""
        return self._aggregate(aggregates.count_of(select))

    def min(self, select: Function | None = None) -> "GroupedStream":
        """The value per key of which `select` (a number) is the lowest so far."""
        return self._aggregate(aggregates.min_of(select, self._codec))

    def max(self, select: Function | None = None) -> "GroupedStream":
        """The value per key of which `select` (a number) is the highest so far."""
        return self._aggregate(aggregates.max_of(select, self._codec))

    def sum(self, select: Function | None = None) -> "GroupedStream":
        """The sum per key of what `select` gives (a number) so far."""
        return self._aggregate(aggregates.sum_of(select))

    def avg(self, select: Function | None = None) -> "GroupedStream":
        """The average per key of what `select` gives (a number) so far."""
        return self._aggregate(aggregates.avg_of(select))

    def aggregate(self, accumulator: Any) -> "GroupedStream":
        """An accumulator per key, or a function of key, value and the result so far (None at first)."""
        node = aggregates.keyed_accumulator(self._chain, aggregates.as_accumulator(accumulator), self._codec)
        return GroupedStream(_behind(self._chain, node), self._codec)

    def window(self, window: Window) -> "WindowStream":
        """Group by windows too."""
        return WindowStream(self._chain, self._codec, window)

    def toRStream(self) -> RStream:
        """The same values, no longer grouped."""
        return RStream(self._chain, self._codec)

    def _aggregate(self, aggregate: aggregates.Aggregate) -> "GroupedStream":
        return GroupedStream(_behind(self._chain, aggregates.keyed(self._chain, aggregate)), self._codec)


class WindowStream:
    """A stream of values with keys, cut by time. Each aggregate gives one value per key and window, once the window is over."""

    def __init__(self, chain: Chain, codec: Codec, window: Window) -> None:
        self._chain = chain
        self._codec = codec
        self._window = window

    def map(self, function: Function) -> "WindowStream":
        """Another value for each."""
        return WindowStream(self._chain.then(steps.Map(function)), self._codec, self._window)

    def filter(self, function: Function) -> "WindowStream":
        """Those for which it is true."""
        return WindowStream(self._chain.then(steps.Filter(function)), self._codec, self._window)

    def count(self, select: Function | None = None) -> GroupedStream:
        """How many values; with `select`, how many of which it is not None."""
        return self._aggregate(aggregates.count_of(select))

    def min(self, select: Function | None = None) -> GroupedStream:
        """The value of which `select` (a number) is the lowest."""
        return self._aggregate(aggregates.min_of(select, self._codec))

    def max(self, select: Function | None = None) -> GroupedStream:
        """The value of which `select` (a number) is the highest."""
        return self._aggregate(aggregates.max_of(select, self._codec))

    def sum(self, select: Function | None = None) -> GroupedStream:
        """The sum of what `select` gives (a number)."""
        return self._aggregate(aggregates.sum_of(select))

    def avg(self, select: Function | None = None) -> GroupedStream:
        """The average of what `select` gives (a number)."""
        return self._aggregate(aggregates.avg_of(select))

    def aggregate(self, accumulator: Any) -> GroupedStream:
        """An accumulator, or a function of key, value and the result so far (None at first)."""
        wrapped = aggregates.as_accumulator(accumulator)
        node = aggregates.windowed_accumulator(self._chain, self._window, wrapped, self._codec)
        return GroupedStream(_behind(self._chain, node), self._codec)

    def _aggregate(self, aggregate: aggregates.Aggregate) -> GroupedStream:
        return GroupedStream(_behind(self._chain, aggregates.windowed(self._chain, self._window, aggregate)), self._codec)


class JoinedStream:
    """Two streams on their way to a join: `where(...).equalTo(...)`, `window(...)` if there is one, and `apply(...)`."""

    def __init__(self, left: RStream, right: RStream, how: str) -> None:
        self._left = left
        self._right = right
        self._how = how
        self._window: Window | None = None

    def where(self, select: Function) -> "JoinedStream":
        """The key of the left stream's values."""
        self._left = RStream(self._left._chain.then(steps.KeyBy(select)), self._left._codec)
        return self

    def equalTo(self, select: Function) -> "JoinedStream":
        """The key of the right stream's values."""
        self._right = RStream(self._right._chain.then(steps.KeyBy(select)), self._right._codec)
        return self

    def window(self, window: Window) -> "JoinedStream":
        """Join what is in the same window: the last value of each side. Without it: the latest values of all time."""
        self._window = window
        return self

    def apply(self, action: Callable[[Any, Any], Any]) -> RStream:
        """The function that makes one value of two; the second one is None in a left join without partner."""
        chains, codec, window, how = (self._left._chain, self._right._chain), self._left._codec, self._window, self._how
        for chain in chains:
            chain.require_no_updates("a join")
            chain.is_used = True
        writer = KeyedWriter(codec)

        def frame(context: Context) -> DataFrame:
            if window is None:
                left, right = (chain.rows(context, writer).select("key", "value", "event_time") for chain in chains)
                joined = latest_join(left, right, "key", how, order="event_time")
                joined = joined.withColumn("event_time", F.greatest("left.event_time", "right.event_time"))
            else:
                left, right = (chain.timed(context, writer).select("key", "value", "event_time") for chain in chains)
                joined = window_join(left, right, "key", window, how, lateness=None)
            return joined.select("key", F.col("left.value").alias("left"), F.col("right.value").alias("right"), "event_time")

        node = Node(frame, JoinReader(codec, action), has_watermark=window is not None)
        return RStream(_behind(chains[0], node), codec)


def _behind(chain: Chain, node: Node) -> Chain:
    chain.is_used = True
    return Chain(chain.topology, node)
