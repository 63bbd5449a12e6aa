"""What a topology is made of before there is a session: nodes that make frames, and passes through Python between them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from mqbridge.spark.streams.heartbeat import Heartbeats
from mqbridge.spark.streams.rip58.python_stage import Pass, Step
from mqbridge.spark.streams.rip58.rows import Reader, Writer
from mqbridge.spark.streams.windows import Time


@dataclass(frozen=True)
class Context:
    """What a run gives: the session, how topics are read, and what time means."""

    spark: SparkSession
    read: Callable[[SparkSession, str, Mapping[str, str]], DataFrame]
    lateness: Time
    is_event_time: bool
    skip_errors: bool
    heartbeats: Heartbeats | None = None

    def source(self, topic: str, options: Mapping[str, str]) -> DataFrame:
        """Payloads of a topic, and their times."""
        rows = self.read(self.spark, topic, options)
        now = F.current_timestamp()
        sent = [F.col(name) for name in ("event_time", "publish_time") if name in rows.columns]
        return rows.select("payload", (F.coalesce(*sent, now) if self.is_event_time else now).alias("event_time"))

    def with_watermark(self, frame: DataFrame) -> DataFrame:
        """The frame with a watermark on its time, which goes on while no input comes if this run has heartbeats."""
        if self.heartbeats is not None:
            return self.heartbeats.with_watermark(frame, self.lateness, key="key")
        return frame.withWatermark("event_time", str(self.lateness))


@dataclass(frozen=True)
class Node:
    """A source, an aggregate or a join.

    updates         each row replaces the last one of its key: nothing with state can follow
    has_watermark   its rows are of windows that are over; a watermark has been set before
    """

    frame: Callable[[Context], DataFrame]
    reader: Reader
    updates: bool = False
    has_watermark: bool = False


@dataclass
class Chain:
    """A node and the steps behind it. `is_used`: something follows, or writes it."""

    topology: "Topology"
    node: Node
    steps: tuple[Step, ...] = ()
    is_used: bool = False

    def then(self, step: Step) -> "Chain":
        """This chain with one step more."""
        self.is_used = True
        return replace(self, steps=(*self.steps, step), is_used=False)

    def rows(self, context: Context, writer: Writer, *, only_errors: bool = False) -> DataFrame:
        """Its rows as the writer makes them, with their time, in this run."""
        passing = Pass(self.node.reader, self.steps, writer, context.skip_errors or only_errors, only_errors)
        return passing.over(self.node.frame(context))

    def timed(self, context: Context, writer: Writer) -> DataFrame:
        """The same with a watermark."""
        rows = self.rows(context, writer)
        return rows if self.node.has_watermark else context.with_watermark(rows)

    def require_no_updates(self, operator: str) -> None:
        """Raise ValueError if an aggregate without window comes before: Spark cannot keep state behind it."""
        if self.node.updates:
            raise ValueError(
                f"{operator} cannot follow an aggregate without window, whose rows replace each other: "
                "put them into a topic with sink(), and read it as another source"
            )


@dataclass(frozen=True)
class Output:
    """An end of a topology: one query."""

    kind: str
    """sink, print, foreach or deadLetters"""
    chain: Chain
    writer: Writer
    topic: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def rows(self, context: Context) -> DataFrame:
        """What it writes in this run."""
        return self.chain.rows(context, self.writer, only_errors=self.kind == "deadLetters")


@dataclass
class Topology:
    """What a builder built: named ends, each with all that leads to it."""

    job: str
    outputs: list[Output] = field(default_factory=list)

    def add(self, output: Output) -> None:
        """Add an end."""
        output.chain.is_used = output.kind != "foreach"
        self.outputs.append(output)

    def built(self) -> "Topology":
        """Without the `foreach` ends behind which something follows: their functions run there."""
        ends = [output for output in self.outputs if output.kind != "foreach" or not output.chain.is_used]
        if not ends:
            raise ValueError(f"{self.job} writes nothing: end it with sink(), print() or foreach()")
        return Topology(self.job, ends)
