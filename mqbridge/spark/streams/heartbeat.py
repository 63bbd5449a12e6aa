"""Heartbeats advance the watermark of an idle stream, so that it closes its last windows.

Spark advances the watermark only when rows arrive. A heartbeat is a row that has only a time. Heartbeats are small files beside
the checkpoint, so a restart reads the same ones; Spark deletes the files of completed batches.

`IdleWatch` writes a heartbeat when a query has had no input for some time. The heartbeat advances the last watermark by the idle
time. It does not use the current time: with old messages in the topic, that would close their windows too early.
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

NO_KEY = ""
POLLS_PER_IDLE = 4
JOIN_S = 10.0


class Heartbeats:
    """A folder of heartbeat files.

    `folder` is an absolute path or URI beside the checkpoint of the query. Keep it as long as the checkpoint.
    """

    def __init__(self, folder: str) -> None:
        self._name = folder.rstrip("/").rsplit("/", 2)[-2:]
        self._folder = folder
        self._files, self._path = fs.FileSystem.from_uri(folder)
        self._files.create_dir(self._path, recursive=True)

    def add(self, at: datetime) -> None:
        """Write a heartbeat with this event time."""
        name = f"{time.time_ns():020}.json"
        with self._files.open_output_stream(f"{self._path}/_{name}") as file:
            file.write(json.dumps({"event_time": at.isoformat()}).encode())
        self._files.move(f"{self._path}/_{name}", f"{self._path}/{name}")

    def with_watermark(self, frame: DataFrame, lateness: Time, *, key: str, column: str = "event_time") -> DataFrame:
        """Return the frame with a watermark on `column` that heartbeats advance too.

        `key` names a STRING column of the frame that is never empty or null: an empty key marks the row of a heartbeat.
        """
        schema = StructType().add(column, TimestampType())
        files = frame.sparkSession.readStream.schema(schema).option("cleanSource", "delete").json(self._folder)
        rows = files.withColumn(key, F.lit(NO_KEY))
        watermarked = frame.unionByName(rows, allowMissingColumns=True).withWatermark(column, str(lateness))
        # The condition must use the time column. Otherwise Spark filters before the watermark, and heartbeats do not advance it.
        return watermarked.where((F.col(key) != NO_KEY) | F.col(column).isNull())

    def is_source(self, description: str) -> bool:
        """Return whether a source of a query, given by its description, reads this folder."""
        return "/".join(self._name) in description


class IdleWatch:
    """A thread that adds heartbeats for a query without input for `idle`, as long as the query has rows in its state."""

    def __init__(self, query: StreamingQuery, heartbeats: Heartbeats, idle: Time, lateness: Time) -> None:
        self._query = query
        self._heartbeats = heartbeats
        self._idle_s = idle.ms / 1000
        self._lateness_ms = lateness.ms
        self._stop = threading.Event()
        self._offsets = ""
        self._since = time.monotonic()
        self._watermark: datetime | None = None
        self._next_s = self._idle_s
        self._thread = threading.Thread(target=self._run, name="mqbridge heartbeat", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._stop.wait(self._idle_s / POLLS_PER_IDLE) and self._query.isActive:
            try:
                progress = self._query.lastProgress
                if progress is not None:
                    self.look(json.loads(progress.json), time.monotonic())
            except Exception:  # the query runs without heartbeats; the next attempt may succeed
                LOG.warning("query %s: the check for idle time failed, trying again", self._query.name, exc_info=True)

    def look(self, progress: dict[str, Any], now: float) -> None:
        """Read a progress report; add a heartbeat if no source has advanced for the idle time and the query has state.

        `now` is a monotonic time in seconds.
        """
        ends = [source["endOffset"] for source in progress["sources"] if not self._heartbeats.is_source(source["description"])]
        offsets = json.dumps(ends, sort_keys=True)
        if offsets != self._offsets:
            self._offsets, self._since, self._watermark, self._next_s = offsets, now, None, self._idle_s
            return
        idle_s = now - self._since
        has_state = any(operator["numRowsTotal"] for operator in progress["stateOperators"])
        if idle_s < self._next_s or not has_state:
            return
        self._watermark = self._watermark or _watermark(progress)
        if self._watermark is not None:
            event_time_s = self._watermark.timestamp() + self._lateness_ms / 1000 + idle_s
            self._heartbeats.add(datetime.fromtimestamp(event_time_s, UTC))
        self._next_s = idle_s + self._idle_s


def _watermark(progress: dict[str, Any]) -> datetime | None:
    text = progress.get("eventTime", {}).get("watermark")
    if text is None:
        return None
    watermark = datetime.fromisoformat(text)
    return watermark if watermark.timestamp() > 0 else None


def heartbeats_of(spark: SparkSession, checkpoint: str) -> Heartbeats:
    """Return the heartbeats beside a checkpoint, which is a path or URI as Spark accepts it."""
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # noqa: SLF001 - Spark has no other way
    path = hadoop.Path(checkpoint)
    qualified = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).makeQualified(path)  # noqa: SLF001
    return Heartbeats(str(qualified.toString()).replace("file:/", "file:///", 1) + "/mqbridge/heartbeats")
