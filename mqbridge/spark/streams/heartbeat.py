"""Heartbeats advance the watermark of an idle stream, so that its last windows close.

Spark advances the watermark only when rows arrive. A heartbeat is a row that has only a time. Heartbeats are small files beside
the checkpoint, so a restart reads the same ones; Spark deletes the files of completed batches.

`IdleWatch` writes a heartbeat when a query has had no input for some time. The heartbeat advances the last watermark by the idle
time. It does not set the watermark to the current time: if the topic has old messages, their windows would close too early.
"""

import json
import logging
import threading
import time
from datetime import UTC, datetime
from typing import Any

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType, TimestampType

from mqbridge.spark.streams.windows import Time

LOG = logging.getLogger(__name__)

HEARTBEAT_KEY = ""
"""The key of rows that are heartbeats."""
CHECKS_PER_IDLE_TIME = 4
"""How often `IdleWatch` checks the query during one `idle`."""
JOIN_TIMEOUT_S = 10.0
"""How long `IdleWatch.stop` waits for the thread, which may be waiting for a response of Spark."""


class Heartbeats:
    """A folder of heartbeat files.

    `folder` is an absolute path or a URI. A query reads the folder after a restart too, so keep it as long as the checkpoint.
    """

    def __init__(self, folder: str) -> None:
        self._last_path_segments = folder.rstrip("/").rsplit("/", 2)[-2:]  # the same for a path and for each form of its URI
        self._folder = folder
        self._file_system, self._path = fs.FileSystem.from_uri(folder)
        self._file_system.create_dir(self._path, recursive=True)

    def add(self, event_time: datetime) -> None:
        """Write a heartbeat with this event time."""
        name = f"{time.time_ns():020}.json"  # Spark ignores the file while its name begins with an underscore
        with self._file_system.open_output_stream(f"{self._path}/_{name}") as file:
            file.write(json.dumps({"event_time": event_time.isoformat()}).encode())
        self._file_system.move(f"{self._path}/_{name}", f"{self._path}/{name}")

    def with_watermark(self, frame: DataFrame, lateness: Time, *, key: str, column: str = "event_time") -> DataFrame:
        """Return the frame with a watermark on `column` that heartbeats advance too.

        `key` names a STRING column of the frame that is never empty or null: an empty key marks the row of a heartbeat.
        """
        schema = StructType().add(column, TimestampType())
        files = frame.sparkSession.readStream.schema(schema).option("cleanSource", "delete").json(self._folder)
        heartbeats = files.withColumn(key, F.lit(HEARTBEAT_KEY))
        watermarked = frame.unionByName(heartbeats, allowMissingColumns=True).withWatermark(column, str(lateness))
        # The condition must use the time column. Otherwise Spark filters before the watermark, and heartbeats do not advance it.
        return watermarked.where((F.col(key) != HEARTBEAT_KEY) | F.col(column).isNull())

    def is_read_by(self, source_description: str) -> bool:
        """Return whether this description, of a source in a progress report, is that of a source that reads this folder."""
        return "/".join(self._last_path_segments) in source_description


class IdleWatch:
    """A thread that adds heartbeats while a query has no input, if the query has rows in its state.

    While the query has no input, it adds one heartbeat after each further duration `idle`. `lateness` is the distance
    between the highest event time and the watermark of the query.
    """

    def __init__(self, query: StreamingQuery, heartbeats: Heartbeats, idle: Time, lateness: Time) -> None:
        self._query = query
        self._heartbeats = heartbeats
        self._idle_s = idle.ms / 1000
        self._lateness_ms = lateness.ms
        self._stopped = threading.Event()
        self._last_offsets = ""
        """The end offsets in the last report, as JSON, of the query's sources except the heartbeats."""
        self._idle_since = time.monotonic()
        """When the end offsets last changed from one report to the next (monotonic, in seconds)."""
        self._last_watermark: datetime | None = None
        """The watermark before the first heartbeat of this idle period, which all its heartbeats start from; None if unknown."""
        self._next_heartbeat_s = self._idle_s
        """Idle time after which the next heartbeat is added."""
        self._thread = threading.Thread(target=self._run, name="mqbridge heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stopped.wait(self._idle_s / CHECKS_PER_IDLE_TIME) and self._query.isActive:
            try:
                progress = self._query.lastProgress
                if progress is not None:
                    self.check(json.loads(progress.json), time.monotonic())
            except Exception:  # the query also runs without heartbeats, and the next check may succeed
                name = self._query.name or self._query.id
                LOG.warning("query %s: the check whether it is idle failed, retrying", name, exc_info=True)

    def check(self, progress: dict[str, Any], now: float) -> None:
        """Add a heartbeat if, by this progress report, the query has been idle for long enough and has state.

        `now` is a monotonic time in seconds.
        """
        ends = [source["endOffset"] for source in progress["sources"] if not self._heartbeats.is_read_by(source["description"])]
        offsets = json.dumps(ends, sort_keys=True)
        if offsets != self._last_offsets:
            self._last_offsets, self._idle_since = offsets, now
            self._last_watermark, self._next_heartbeat_s = None, self._idle_s
            return
        idle_s = now - self._idle_since
        has_state = any(operator["numRowsTotal"] for operator in progress["stateOperators"])
        if idle_s < self._next_heartbeat_s or not has_state:
            return
        self._last_watermark = self._last_watermark or _read_watermark(progress)
        if self._last_watermark is not None:
            # Spark subtracts the lateness again: the heartbeat moves the watermark ahead by the idle time.
            event_time_s = self._last_watermark.timestamp() + self._lateness_ms / 1000 + idle_s
            self._heartbeats.add(datetime.fromtimestamp(event_time_s, UTC))
        self._next_heartbeat_s = idle_s + self._idle_s


def _read_watermark(progress: dict[str, Any]) -> datetime | None:
    """Return the watermark in a progress report; None if the query has none yet, for which Spark reports the epoch."""
    text = progress.get("eventTime", {}).get("watermark")
    if text is None:
        return None
    watermark = datetime.fromisoformat(text)
    return watermark if watermark.timestamp() > 0 else None


def heartbeats_for(spark: SparkSession, checkpoint: str) -> Heartbeats:
    """Return the heartbeats in the folder of a checkpoint, which is a path or URI as Spark accepts it."""
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # noqa: SLF001 - Spark has no other way
    path = hadoop.Path(checkpoint)
    qualified = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).makeQualified(path)  # noqa: SLF001
    uri = str(qualified.toString()).replace("file:/", "file:///", 1)  # Hadoop writes one slash, pyarrow requires three
    return Heartbeats(f"{uri}/mqbridge/heartbeats")
