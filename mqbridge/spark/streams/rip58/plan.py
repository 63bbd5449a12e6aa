"""The parts of a topology (the operators and outputs of a job), which is built before a Spark session exists.

Nodes create DataFrames: a node is a source, an aggregate or a join. Between nodes, passes apply Python functions to the rows.
"""

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
    """The session and the settings of one run of a topology.

    read           returns the stream of a topic, with options of the source
    lateness       how late an element may be: the watermark stays this far behind the highest event time
    is_event_time  elements have the time of their message, not the time of the batch
    skip_errors    a record whose functions fail is skipped; otherwise it fails the query
    heartbeats     the heartbeats of the query; None if an idle stream keeps its windows open
    """

    spark: SparkSession
    read: Callable[[SparkSession, str, Mapping[str, str]], DataFrame]
    lateness: Time
    is_event_time: bool
    skip_errors: bool
    heartbeats: Heartbeats | None = None

    def source(self, topic: str, options: Mapping[str, str]) -> DataFrame:
        """Return the payloads of a topic with their times, in the columns `payload` and `event_time`."""
        rows = self.read(self.spark, topic, options)
        now = F.current_timestamp()
        message_times = [F.col(name) for name in ("event_time", "publish_time") if name in rows.columns]
        return rows.select("payload", (F.coalesce(*message_times, now) if self.is_event_time else now).alias("event_time"))

    def with_watermark(self, frame: DataFrame) -> DataFrame:
        """Return the frame with a watermark on `event_time`, which heartbeats (if this run has any) advance without input."""
        if self.heartbeats is not None:
            # The empty `key` marks the row of a heartbeat; other keys are JSON texts, which are never empty.
            return self.heartbeats.with_watermark(frame, self.lateness, key="key")
        return frame.withWatermark("event_time", str(self.lateness))


@dataclass(frozen=True)
class Node:
    """A source, an aggregate or a join.

    frame          creates the DataFrame of the node in a run
    reader         converts the rows of that DataFrame to elements
    emits_updates  each row replaces the last row of its key, so no stateful operator can follow
    has_watermark  the rows belong to closed windows, and an earlier operator has set the watermark
    """

    frame: Callable[[Context], DataFrame]
    reader: Reader
    emits_updates: bool = False
    has_watermark: bool = False


@dataclass
class Chain:
    """A node and the steps (Python functions) that follow it.

    `is_used` means that another step, node or output uses this chain: then a `foreach` at its end needs no query of its own.
    """

    topology: "Topology"
    node: Node
    steps: tuple[Step, ...] = ()
    is_used: bool = False

    def with_step(self, step: Step) -> "Chain":
        """Return this chain with an additional step."""
        self.is_used = True
        return replace(self, steps=(*self.steps, step), is_used=False)

    def rows(self, context: Context, writer: Writer, *, only_errors: bool = False) -> DataFrame:
        """Return the rows of this chain in this run: the columns of the writer, and `event_time`.

        With `only_errors`, return the payload and the reason of each failed row instead.
        """
        python_pass = Pass(self.node.reader, self.steps, writer, context.skip_errors or only_errors, only_errors)
        return python_pass.apply_to(self.node.frame(context))

    def rows_with_watermark(self, context: Context, writer: Writer) -> DataFrame:
        """Return the rows of this chain in this run, with a watermark on `event_time`."""
        rows = self.rows(context, writer)
        return rows if self.node.has_watermark else context.with_watermark(rows)

    def require_no_updates(self, operator: str) -> None:
        """Raise ValueError if the node is an aggregate without a window: Spark allows no stateful operator after it."""
        if self.node.emits_updates:
            raise ValueError(
                f"{operator} cannot follow an aggregate without a window, because new results replace earlier ones: "
                "write the results to a topic with sink(), and read that topic as another source"
            )


@dataclass(frozen=True)
class Output:
    """An output of a topology. Each output runs as a query of its own."""

    kind: str
    """sink, print, foreach or deadLetters."""
    chain: Chain
    writer: Writer
    topic: str = ""
    """The topic of a sink or of dead letters; otherwise empty."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of the Spark sink for this output."""

    def rows(self, context: Context) -> DataFrame:
        """Return the rows that this output writes in this run."""
        return self.chain.rows(context, self.writer, only_errors=self.kind == "deadLetters")


@dataclass
class Topology:
    """The outputs of a job, each with the chain that leads to it. `job` is its name, for queries and errors."""

    job: str
    outputs: list[Output] = field(default_factory=list)

    def add(self, output: Output) -> None:
        """Add an output. A `foreach` output, whose chain is always new, does not mark it as used: see `build`."""
        output.chain.is_used = output.kind != "foreach"
        self.outputs.append(output)

    def build(self) -> "Topology":
        """Return the topology to run, without the `foreach` outputs that another operator or output follows.

        The function of such a `foreach` runs in the query of the output that follows. Raises ValueError without any output.
        """
        outputs = [output for output in self.outputs if output.kind != "foreach" or not output.chain.is_used]
        if not outputs:
            raise ValueError(f"the job {self.job} writes nothing: end it with sink(), print() or foreach()")
        return Topology(self.job, outputs)
