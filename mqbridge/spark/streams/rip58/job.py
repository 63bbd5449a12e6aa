"""Runs a topology: one streaming query per end, each with a checkpoint of its own."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from mqbridge.spark.data_source import MqbridgeDataSource
from mqbridge.spark.streams.heartbeat import IdleWatch, heartbeats_of
from mqbridge.spark.streams.rip58.plan import Context, Output, Topology
from mqbridge.spark.streams.state import use_rocksdb
from mqbridge.spark.streams.windows import Time

POLL_S = 1  # Spark takes whole seconds
CLUSTER_OPTIONS = ("config", "cluster", "url")
STARTS = {"CONSUME_FROM_FIRST_OFFSET": "earliest", "CONSUME_FROM_LAST_OFFSET": "latest"}

Read = Callable[[SparkSession, str, Mapping[str, str]], DataFrame]
Write = Callable[[DataFrame, str, Mapping[str, str], str], DataStreamWriter]


class TimeType:
    """What an element's time is, unless selectTimestamp says it: the message's (event time, or when it was stored), or now."""

    EVENT_TIME = "EVENT_TIME"
    PROCESS_TIME = "PROCESS_TIME"


class StreamConfig:
    """Names of properties; all other properties are options of the source, and `config`, `cluster` and `url` of the sink too."""

    TIME_TYPE = "timeType"
    """A TimeType; PROCESS_TIME without it."""
    ALLOW_LATENESS_MILLISECOND = "allowLatenessMillisecond"
    """How far the watermark is behind the highest time: 2000."""
    IDLE_TIME_TO_FIRE_WINDOW = "idleTimeToFireWindow"
    """Milliseconds without input after which time goes on by itself: 2000. 0: never."""
    SKIP_DATA_ERROR = "skip_data_error"
    """Whether a record whose functions fail is skipped and logged (true), or ends the query."""
    CONSUME_FROM_WHERE = "consume_from_where"
    """CONSUME_FROM_FIRST_OFFSET or CONSUME_FROM_LAST_OFFSET, for the first start."""
    CHECKPOINT_LOCATION = "checkpointLocation"
    """A folder that outlives the job, on a file system that all executors reach. Needed."""
    TRIGGER = "trigger"
    """How often a batch runs: "1 seconds"; or "availableNow": all that is there, and then the end."""


DEFAULTS: dict[str, Any] = {
    StreamConfig.TIME_TYPE: TimeType.PROCESS_TIME,
    StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000,
    StreamConfig.IDLE_TIME_TO_FIRE_WINDOW: 2000,
    StreamConfig.SKIP_DATA_ERROR: True,
    StreamConfig.TRIGGER: "1 seconds",
}


class StreamJob:
    """A topology with its properties. `start()` starts its queries in `spark`, or in the session that there is."""

    def __init__(
        self,
        topology: Topology,
        properties: Mapping[str, Any],
        spark: SparkSession | None = None,
        *,
        read: Read | None = None,
        write: Write | None = None,
        show: Callable[[str], object] = print,
    ) -> None:
        self._topology = topology
        self._settings = DEFAULTS | {name: properties[name] for name in properties if name in vars(StreamConfig).values()}
        if StreamConfig.CHECKPOINT_LOCATION not in self._settings:
            raise ValueError("a job needs the property 'checkpointLocation': its state and progress live there")
        self._options = {name: str(value) for name, value in properties.items() if name not in self._settings}
        start = self._settings.get(StreamConfig.CONSUME_FROM_WHERE)
        if start is not None:
            self._options.setdefault("startingOffsets", STARTS[_one_of(StreamConfig.CONSUME_FROM_WHERE, start, STARTS)])
        _one_of(StreamConfig.TIME_TYPE, self._settings[StreamConfig.TIME_TYPE], (TimeType.EVENT_TIME, TimeType.PROCESS_TIME))
        self._spark = spark
        self._read = read or read_topic
        self._write = write or write_topic
        self._show = show
        self._watches: list[IdleWatch] = []
        self.queries: list[StreamingQuery] = []

    def start(self) -> None:
        """Start the queries; where there is a checkpoint they go on from it. If one cannot start, none runs."""
        self.queries.clear()
        spark = self._spark or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        use_rocksdb(spark)
        spark.dataSource.register(MqbridgeDataSource)
        try:
            for index, output in enumerate(self._topology.outputs):
                self._start(spark, f"{index}-{output.kind}", output)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the queries. What a batch in progress has done is done again at the next start."""
        for watch in self._watches:
            watch.stop()
        for query in self.queries:
            query.stop()
        self._watches.clear()

    def isRunning(self) -> bool:
        """Whether all queries run."""
        return bool(self.queries) and all(query.isActive for query in self.queries)

    def awaitTermination(self, timeout: float | None = None) -> None:
        """Wait until all queries have ended, for at most `timeout` seconds. Raises what ended one, whatever the others do."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while running := self._running():
            if deadline is not None and time.monotonic() > deadline:
                return
            running[0].awaitTermination(POLL_S)

    def _running(self) -> list[StreamingQuery]:
        for query in self.queries:
            if not query.isActive:
                query.awaitTermination()
        return [query for query in self.queries if query.isActive]

    def _start(self, spark: SparkSession, name: str, output: Output) -> None:
        checkpoint = f"{str(self._settings[StreamConfig.CHECKPOINT_LOCATION]).rstrip('/')}/{name}"
        idle = Time.milliseconds(float(self._settings[StreamConfig.IDLE_TIME_TO_FIRE_WINDOW]))
        lateness = Time.milliseconds(float(self._settings[StreamConfig.ALLOW_LATENESS_MILLISECOND]))
        is_bounded = self._settings[StreamConfig.TRIGGER] == "availableNow"
        heartbeats = heartbeats_of(spark, checkpoint) if idle.ms else None
        context = Context(
            spark=spark,
            read=lambda session, topic, options: self._read(session, topic, {**self._options, **options}),
            lateness=lateness,
            is_event_time=self._settings[StreamConfig.TIME_TYPE] == TimeType.EVENT_TIME,
            skip_errors=_is_true(self._settings[StreamConfig.SKIP_DATA_ERROR]),
            heartbeats=heartbeats,
        )
        writer = self._writer(output, output.rows(context)).option("checkpointLocation", checkpoint)
        trigger = {"availableNow": True} if is_bounded else {"processingTime": self._settings[StreamConfig.TRIGGER]}
        query = writer.queryName(f"{self._topology.job}-{name}").trigger(**trigger).start()
        self.queries.append(query)
        if heartbeats is not None and not is_bounded:
            self._watches.append(IdleWatch(query, heartbeats, idle, lateness))

    def _writer(self, output: Output, rows: DataFrame) -> DataStreamWriter:
        mode = "update" if output.chain.node.updates else "append"
        if output.kind == "print":
            return rows.writeStream.outputMode(mode).foreachBatch(self._print)
        if output.kind == "foreach":
            return rows.writeStream.outputMode(mode).format("noop")
        options = {name: value for name, value in self._options.items() if name in CLUSTER_OPTIONS} | dict(output.options)
        return self._write(_messages(rows, output.kind), output.topic, options, mode).outputMode(mode)

    def _print(self, rows: DataFrame, _batch: int) -> None:
        for row in rows.toLocalIterator():
            self._show(row["text"])


def read_topic(spark: SparkSession, topic: str, options: Mapping[str, str]) -> DataFrame:
    """A topic as `format("mqbridge")` reads it."""
    return spark.readStream.format("mqbridge").options(**options).option("subscribe", topic).load()


def write_topic(rows: DataFrame, topic: str, options: Mapping[str, str], mode: str) -> DataStreamWriter:
    """A topic as `format("mqbridge")` writes it.

    Spark refuses output mode update for every sink in Python, so results that replace each other are written batch by batch: a
    batch that runs again is written again, which leaves the newest value per key what it was.
    """
    options = {**options, "topic": topic}
    if mode == "update":
        return rows.writeStream.foreachBatch(
            lambda batch, _: batch.write.format("mqbridge").options(**options).mode("append").save()
        )
    return rows.writeStream.format("mqbridge").options(**options)


def _messages(rows: DataFrame, kind: str) -> DataFrame:
    """The columns that the sink knows; of a dead letter the reason is a property."""
    if kind == "deadLetters":
        reason = F.create_map(F.lit("error"), F.col("error")).alias("properties")
        return rows.select("payload", reason, "event_time")
    return rows.withColumn("key_is_text", F.lit(True))


def _one_of(name: str, value: str, allowed: Collection[str]) -> str:
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}, and may be {' or '.join(allowed)}")
    return value


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"
