"""Time goes on while no input comes: Spark's watermark moves with rows only, so an idle stream never closes its last windows.

A heartbeat is a row with nothing but a time. It comes from small files beside the checkpoint, so that a restart reads the same
ones; Spark removes those of batches that are over. The watch over a query writes one when the query has had no input for a while:
the watermark that it had, and the time since then. So a topic with old messages is not cut short, as it would be by the clock's
time.
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
    """A folder of heartbeats: `folder` is an absolute path or URI, beside the checkpoint of the query and kept as long."""

    def __init__(self, folder: str) -> None:
        self._name = folder.rstrip("/").rsplit("/", 2)[-2:]
        self._folder = folder
        self._files, self._path = fs.FileSystem.from_uri(folder)
        self._files.create_dir(self._path, recursive=True)

    def add(self, at: datetime) -> None:
        """Add one: the time that events have got to."""
        name = f"{time.time_ns():020}.json"
        with self._files.open_output_stream(f"{self._path}/_{name}") as file:
            file.write(json.dumps({"event_time": at.isoformat()}).encode())
        self._files.move(f"{self._path}/_{name}", f"{self._path}/{name}")

    def with_watermark(self, frame: DataFrame, lateness: Time, *, key: str, column: str = "event_time") -> DataFrame:
        """The frame with a watermark on `column` that heartbeats move too. `key`: a STRING column, never empty nor null."""
        schema = StructType().add(column, TimestampType())
        files = frame.sparkSession.readStream.schema(schema).option("cleanSource", "delete").json(self._folder)
        rows = files.withColumn(key, F.lit(NO_KEY))
        marked = frame.unionByName(rows, allowMissingColumns=True).withWatermark(column, str(lateness))
        # The condition needs the time too: else Spark would push it below the watermark, which then saw no heartbeat.
        return marked.where((F.col(key) != NO_KEY) | F.col(column).isNull())

    def is_source(self, description: str) -> bool:
        """Whether a query's source of this description reads this folder."""
        return "/".join(self._name) in description


class IdleWatch:
    """Watches a query in a thread, and adds heartbeats when nothing has come for `idle`, until no state waits for them."""

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
        """Stop watching."""
        self._stop.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._stop.wait(self._idle_s / POLLS_PER_IDLE) and self._query.isActive:
            try:
                progress = self._query.lastProgress
                if progress is not None:
                    self.look(json.loads(progress.json), time.monotonic())
            except Exception:  # a query goes on without heartbeats; the next look may succeed
                LOG.warning("the idle time of %s is not looked after", self._query.name, exc_info=True)

    def look(self, progress: dict[str, Any], now: float) -> None:
        """Take a report of progress in, at the monotonic time `now`; add a heartbeat if one is due."""
        ends = [source["endOffset"] for source in progress["sources"] if not self._heartbeats.is_source(source["description"])]
        offsets = json.dumps(ends, sort_keys=True)
        if offsets != self._offsets:
            self._offsets, self._since, self._watermark, self._next_s = offsets, now, None, self._idle_s
            return
        idle_s = now - self._since
        waiting = any(operator["numRowsTotal"] for operator in progress["stateOperators"])
        if idle_s < self._next_s or not waiting:
            return
        self._watermark = self._watermark or _watermark(progress)
        if self._watermark is not None:
            reached = self._watermark.timestamp() + self._lateness_ms / 1000 + idle_s
            self._heartbeats.add(datetime.fromtimestamp(reached, UTC))
        self._next_s = idle_s + self._idle_s


def _watermark(progress: dict[str, Any]) -> datetime | None:
    text = progress.get("eventTime", {}).get("watermark")
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    return at if at.timestamp() > 0 else None


def heartbeats_of(spark: SparkSession, checkpoint: str) -> Heartbeats:
    """The heartbeats beside a checkpoint (a path or URI as Spark takes it)."""
    hadoop = spark.sparkContext._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]  # noqa: SLF001 - Spark has no other way
    path = hadoop.Path(checkpoint)
    qualified = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).makeQualified(path)  # noqa: SLF001
    return Heartbeats(str(qualified.toString()).replace("file:/", "file:///", 1) + "/mqbridge/heartbeats")
