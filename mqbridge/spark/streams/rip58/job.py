"""Runs a topology (the operators and outputs of a job): one streaming query per output, each with its own checkpoint."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from mqbridge.spark.data_source import MqbridgeDataSource
from mqbridge.spark.streams.heartbeat import IdleWatch, heartbeats_for
from mqbridge.spark.streams.rip58.plan import Context, Output, Topology
from mqbridge.spark.streams.state import use_rocksdb
from mqbridge.spark.streams.windows import Time

POLL_INTERVAL_S = 1
"""Interval at which the state of all queries is read. Spark's awaitTermination accepts whole seconds only."""
CLUSTER_OPTIONS = ("config", "cluster", "url")
"""The source options that are passed to the sink too."""
STARTING_OFFSETS = {"CONSUME_FROM_FIRST_OFFSET": "earliest", "CONSUME_FROM_LAST_OFFSET": "latest"}
"""The value of the option startingOffsets for each value of CONSUME_FROM_WHERE."""

Read = Callable[[SparkSession, str, Mapping[str, str]], DataFrame]
"""Returns a stream of a topic, with options of the source. See `read_topic`."""
Write = Callable[[DataFrame, str, Mapping[str, str], str], DataStreamWriter]
"""Returns a writer of rows to a topic, with options of the sink and the output mode. See `write_topic`."""


class TimeType:
    """The values of the property TIME_TYPE: which time an element has, unless `selectTimestamp` sets another one."""

    EVENT_TIME = "EVENT_TIME"
    """The event time of the message, or the time at which it was stored if it has none."""
    PROCESS_TIME = "PROCESS_TIME"
    """The time at which the batch began."""


class StreamConfig:
    """The names of the properties of a job.

    All other properties are passed to the source as options. `config`, `cluster` and `url` are passed to the sink too.
    """

    TIME_TYPE = "timeType"
    """A TimeType. Default: PROCESS_TIME."""
    ALLOW_LATENESS_MILLISECOND = "allowLatenessMillisecond"
    """Milliseconds by which the watermark is behind the highest time. Default: 2000."""
    IDLE_TIME_TO_FIRE_WINDOW = "idleTimeToFireWindow"
    """Milliseconds without input after which the watermark advances, so that windows close. Default: 2000; 0: it does not."""
    SKIP_DATA_ERROR = "skip_data_error"
    """Whether a record is skipped and logged when one of its functions fails (true, the default), or fails the query (false)."""
    CONSUME_FROM_WHERE = "consume_from_where"
    """CONSUME_FROM_FIRST_OFFSET or CONSUME_FROM_LAST_OFFSET. It applies to the first start only.

    The source option startingOffsets takes precedence; without both, the default of that option applies.
    """
    CHECKPOINT_LOCATION = "checkpointLocation"
    """A permanent folder, on a file system that all executors reach. Required."""
    TRIGGER = "trigger"
    """How often a batch runs, such as "1 seconds" (the default). With "availableNow" the job ends after the available input."""


DEFAULTS: dict[str, Any] = {
    StreamConfig.TIME_TYPE: TimeType.PROCESS_TIME,
    StreamConfig.ALLOW_LATENESS_MILLISECOND: 2000,
    StreamConfig.IDLE_TIME_TO_FIRE_WINDOW: 2000,
    StreamConfig.SKIP_DATA_ERROR: True,
    StreamConfig.TRIGGER: "1 seconds",
}


class StreamJob:
    """Runs a topology with the properties of StreamConfig, in the session `spark` or in the active session.

    `read` and `write` replace topics with other sources and sinks, for tests; None: topics are read and written. `show` receives
    each line that the stream operator `print()` writes.
    """

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
            raise ValueError("the property 'checkpointLocation' is missing: the job stores its state and progress there")
        self._options = {name: str(value) for name, value in properties.items() if name not in self._settings}
        start = self._settings.get(StreamConfig.CONSUME_FROM_WHERE)
        if start is not None:
            self._options.setdefault(
                "startingOffsets", STARTING_OFFSETS[_require_one_of(StreamConfig.CONSUME_FROM_WHERE, start, STARTING_OFFSETS)]
            )
        _require_one_of(
            StreamConfig.TIME_TYPE, self._settings[StreamConfig.TIME_TYPE], (TimeType.EVENT_TIME, TimeType.PROCESS_TIME)
        )
        self._spark = spark
        self._read = read or read_topic
        self._write = write or write_topic
        self._show = show
        self._idle_watches: list[IdleWatch] = []
        """Each adds heartbeats to one query while it has no input, see IDLE_TIME_TO_FIRE_WINDOW."""
        self.queries: list[StreamingQuery] = []
        """The started queries, one per output of the topology."""

    def start(self) -> None:
        """Start the queries. A query with a checkpoint resumes from it. If a query cannot start, the started ones are stopped."""
        self.queries.clear()
        spark = self._spark or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        use_rocksdb(spark)
        spark.dataSource.register(MqbridgeDataSource)
        try:
            for index, output in enumerate(self._topology.outputs):
                self._start_query(spark, f"{index}-{output.kind}", output)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the queries. A batch that is in progress is repeated by the next start."""
        for watch in self._idle_watches:
            watch.stop()
        for query in self.queries:
            query.stop()
        self._idle_watches.clear()

    def isRunning(self) -> bool:
        """Return whether all queries are running."""
        return bool(self.queries) and all(query.isActive for query in self.queries)

    def awaitTermination(self, timeout: float | None = None) -> None:
        """Wait until all queries have ended, for about `timeout` seconds at most; None: without limit.

        Raises the error of a query that has failed, even while other queries are running.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while running := self._running_queries():
            if deadline is not None and time.monotonic() > deadline:
                return
            running[0].awaitTermination(POLL_INTERVAL_S)

    def _running_queries(self) -> list[StreamingQuery]:
        """Return the queries that have not ended. Raises the error of a query that has failed."""
        for query in self.queries:
            if not query.isActive:
                query.awaitTermination()  # returns at once, or raises the error of the query
        return [query for query in self.queries if query.isActive]

    def _start_query(self, spark: SparkSession, name: str, output: Output) -> None:
        """Start the query of an output. `name` is unique in the job, and names the query's folder in the job's checkpoint."""
        checkpoint = f"{str(self._settings[StreamConfig.CHECKPOINT_LOCATION]).rstrip('/')}/{name}"
        idle = Time.milliseconds(float(self._settings[StreamConfig.IDLE_TIME_TO_FIRE_WINDOW]))
        lateness = Time.milliseconds(float(self._settings[StreamConfig.ALLOW_LATENESS_MILLISECOND]))
        is_bounded = self._settings[StreamConfig.TRIGGER] == "availableNow"
        # Heartbeats are rows that have only a time, to advance the watermark of an idle query. A bounded query reads them too: on
        # a restart, a checkpoint must find the same sources.
        heartbeats = heartbeats_for(spark, checkpoint) if idle.ms else None
        context = Context(
            spark=spark,
            read=lambda session, topic, options: self._read(session, topic, {**self._options, **options}),
            lateness=lateness,
            is_event_time=self._settings[StreamConfig.TIME_TYPE] == TimeType.EVENT_TIME,
            skip_errors=_is_true(self._settings[StreamConfig.SKIP_DATA_ERROR]),
            heartbeats=heartbeats,
        )
        writer = self._make_writer(output, output.rows(context)).option("checkpointLocation", checkpoint)
        trigger = {"availableNow": True} if is_bounded else {"processingTime": self._settings[StreamConfig.TRIGGER]}
        query = writer.queryName(f"{self._topology.job}-{name}").trigger(**trigger).start()
        self.queries.append(query)
        if heartbeats is not None and not is_bounded:  # a bounded query ends and has no idle time
            self._idle_watches.append(IdleWatch(query, heartbeats, idle, lateness))

    def _make_writer(self, output: Output, rows: DataFrame) -> DataStreamWriter:
        """Return a writer of the rows to the topic of the output, to `show`, or to nowhere for `foreach`."""
        mode = "update" if output.chain.node.emits_updates else "append"
        if output.kind == "print":
            return rows.writeStream.outputMode(mode).foreachBatch(self._print)
        if output.kind == "foreach":
            return rows.writeStream.outputMode(mode).format("noop")  # the function is called while the rows are created
        options = {name: value for name, value in self._options.items() if name in CLUSTER_OPTIONS} | dict(output.options)
        return self._write(_to_messages(rows, output.kind), output.topic, options, mode).outputMode(mode)

    def _print(self, rows: DataFrame, _batch: int) -> None:
        for row in rows.toLocalIterator():
            self._show(row["text"])


def read_topic(spark: SparkSession, topic: str, options: Mapping[str, str]) -> DataFrame:
    """Return a stream of a topic, read with `format("mqbridge")`."""
    return spark.readStream.format("mqbridge").options(**options).option("subscribe", topic).load()


def write_topic(rows: DataFrame, topic: str, options: Mapping[str, str], mode: str) -> DataStreamWriter:
    """Return a writer to a topic, with `format("mqbridge")`.

    Spark does not support the output mode update for sinks in Python. So in this mode `foreachBatch` writes each batch. A
    repeated batch writes its messages again, but the newest value per key is the same.
    """
    options = {**options, "topic": topic}
    if mode == "update":
        return rows.writeStream.foreachBatch(
            lambda batch, _: batch.write.format("mqbridge").options(**options).mode("append").save()
        )
    return rows.writeStream.format("mqbridge").options(**options)


def _to_messages(rows: DataFrame, kind: str) -> DataFrame:
    """Return the rows of an output of this kind with the columns that the sink expects.

    The job writes all keys as text. A dead letter has the reason of the failure in the property `error`.
    """
    if kind == "deadLetters":
        reason = F.create_map(F.lit("error"), F.col("error")).alias("properties")
        return rows.select("payload", reason, "event_time")
    return rows.withColumn("key_is_text", F.lit(True))


def _require_one_of(name: str, value: str, allowed: Collection[str]) -> str:
    """Return the value of a property. Raises ValueError if it is not allowed."""
    if value not in allowed:
        raise ValueError(f"invalid property {name}={value!r}: use {' or '.join(allowed)}")
    return value


def _is_true(value: object) -> bool:
    return str(value).lower() == "true"
