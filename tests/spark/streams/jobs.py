"""Jobs of StreamBuilder that read files instead of topics, and record what they print and write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqbridge.spark.streams import StreamConfig, StreamJob, Topology
from tests.kit.spark import QUERY_DEADLINE_S
from tests.spark.streams.feed import MESSAGE_SCHEMA, Feed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Message = tuple[bytes, float]


class FileJob:
    """A job whose topics are folders.

    `printed` and `written` (per topic) record its output. The output of a repeated batch is recorded again.
    """

    def __init__(self, spark: SparkSession, folder: Path, topology: Topology, properties: Mapping[str, Any]) -> None:
        self._spark = spark
        self._folder = folder
        self._topology = topology
        self._properties = {
            StreamConfig.IDLE_TIME_TO_FIRE_WINDOW: 0,
            StreamConfig.TRIGGER: "availableNow",
            StreamConfig.CHECKPOINT_LOCATION: str(folder / "checkpoint"),
            **properties,
        }
        self._feeds: dict[str, Feed] = {}
        self.options: dict[str, dict[str, str]] = {}
        self.printed: list[str] = []
        self.written: dict[str, list[tuple[bytes | None, bytes | None]]] = {}

    def send(self, topic: str, *messages: Message) -> None:
        """Add one batch of messages, each a payload and a time in seconds."""
        self.feed(topic).add(*messages)

    def feed(self, topic: str) -> Feed:
        """Return the feed that stands for a topic, and create it if needed."""
        if topic not in self._feeds:
            self._feeds[topic] = Feed(self._folder / topic, MESSAGE_SCHEMA)
        return self._feeds[topic]

    def start(self) -> StreamJob:
        """Start the job, or restart it."""
        job = StreamJob(
            self._topology, self._properties, self._spark, read=self._read, write=self._write, show=self.printed.append
        )  # fmt: skip
        job.start()
        return job

    def run(self) -> None:
        """Start the job, and wait until it has processed the available messages."""
        self.finish(self.start())

    def finish(self, job: StreamJob) -> None:
        """Wait until a job ends by itself."""
        job.awaitTermination(QUERY_DEADLINE_S)
        assert not job.isRunning()

    def _read(self, spark: SparkSession, topic: str, options: Mapping[str, str]) -> DataFrame:
        self.options[topic] = dict(options)
        return self.feed(topic).stream(spark)

    def _write(self, rows: DataFrame, topic: str, options: Mapping[str, str], mode: str) -> DataStreamWriter:
        records = self.written.setdefault(topic, [])

        def record_batch(batch: DataFrame, _number: int) -> None:
            rows = [row.asDict() for row in batch.collect()]
            records.extend((row.get("key"), row["payload"]) for row in rows)

        return rows.writeStream.foreachBatch(record_batch)
