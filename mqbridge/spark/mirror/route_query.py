"""The streaming query of one route: starts it, follows its progress, and stops it between two batches."""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqbridge.adapter.inbound import Start
from mqbridge.config.options.route import Route
from mqbridge.config.units import format_duration
from mqbridge.spark.data_source import MqbridgeDataSource
from mqbridge.spark.mirror.failures import find_cause
from mqbridge.spark.mirror.progress import RouteProgress, Totals
from mqbridge.spark.mirror.settings import MirrorSettings
from mqbridge.spark.mirror.stop import StopFile
from mqbridge.spark.ranges.rows import RANGES_MODE
from mqbridge.spark.sink.progress import read_totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

TRIGGER = "1 second"
"""Interval at which Spark checks the source while it is idle. After a batch that takes longer, the next begins at once."""
UNLIMITED_RETRY_S = 30 * 86400.0
"""How long transient failures are retried if the route sets no limit: the options require a duration."""


class RouteQuery:
    """The query of one route, and its progress. `checkpoint` is the folder of Spark's checkpoint of this query."""

    def __init__(self, route: Route, checkpoint: str, stop_file: StopFile, settings: MirrorSettings) -> None:
        self.route, self.checkpoint = route, checkpoint
        self.progress = RouteProgress(route.name, time.monotonic())
        self.reached: Mapping[str, Mapping[str, str]] = {}
        """The next position to read as text, by topic and partition name; empty before the first report of a batch."""
        self._stop_file, self._settings = stop_file, settings
        self._query: StreamingQuery | None = None
        self._last_batch = -1
        """Id of the last batch that `progress` counts; -1 before the first."""
        self._is_stopping = False

    def start(self, session: "SparkSession", config: Path, tasks: int) -> None:
        """Start the query, or continue from its checkpoint.

        config  the configuration file that Spark's processes on this machine read
        tasks   number of tasks among which the ranges of a batch are divided
        """
        self.progress.begin(self._read_totals())
        name = MqbridgeDataSource.name()
        reader = session.readStream.format(name).options(
            **source_options(self.route, self._settings, config, self._stop_file.path, tasks)
        )
        writer = reader.load().writeStream.format(name).options(**sink_options(self.route, config, self.checkpoint))
        writer = writer.queryName(f"mqbridge route {self.route.name}").outputMode("append")
        writer = writer.trigger(processingTime=TRIGGER) if self._settings.follow else writer.trigger(availableNow=True)
        self._query = writer.start()

    def update(self) -> None:
        """Update the progress from Spark's reports. Stop the query if its source has confirmed a stop request."""
        if self._query is None or self.progress.is_done:
            return
        is_active = self._query.isActive  # read before the report: after the query has ended, no report follows
        self._read_report(self._query.lastProgress)
        if not is_active:
            self._record_end()
        elif self._is_stopping and self._stop_file.is_confirmed:
            self._query.stop()

    def stop(self) -> None:
        """Request that the query stops after the running batch. `update` then stops it."""
        self._is_stopping = True
        self._stop_file.request()

    def kill(self) -> None:
        """Stop the query at once, in the middle of a batch."""
        if self._query is None:
            return
        try:
            if self._query.isActive:
                self._query.stop()
        except Exception:  # if the JVM has ended, the query has ended too, and py4j raises various errors
            log.debug(
                "route %s: stopping Spark's query failed, probably because its JVM has ended", self.route.name, exc_info=True
            )

    def _read_report(self, report: Any) -> None:
        """Update the progress from one of Spark's progress reports."""
        if report is None or report["batchId"] == self._last_batch or not report["sources"]:
            return
        end = report["sources"][0]["endOffset"]
        if not end or end == "null":  # pyspark passes a missing offset as the JSON text null
            return
        self.reached = json.loads(end)["topics"]
        if report["numInputRows"]:
            self.progress.batches += self._count_batches_after(self._last_batch)
            self._last_batch = report["batchId"]
            self.progress.record_batch(time.monotonic(), self._read_totals(), report["batchDuration"] / 1000)

    def _count_batches_after(self, batch: int) -> int:
        """Count the completed batches with rows that follow this batch: several may complete between two updates."""
        assert self._query is not None  # noqa: S101 - for the type checker
        reports = self._query.recentProgress
        return len({report["batchId"] for report in reports if report["batchId"] > batch and report["numInputRows"]})

    def _read_totals(self) -> Totals:
        """Return the totals in the sink's progress file, or the last known ones if the file cannot be read now."""
        try:
            return read_totals(self.checkpoint)
        except (OSError, ValueError):
            return self.progress.totals

    def _record_end(self) -> None:
        """Record that the query has ended, and why. An error during a requested stop is only logged."""
        assert self._query is not None  # noqa: S101 - for the type checker
        self.progress.is_done = True
        error = self._query.exception()
        if error is not None and not self._is_stopping:
            self.progress.error = find_cause(str(error))
        elif error is not None:
            log.warning("route %s failed while it was stopping: %s", self.route.name, find_cause(str(error)))
        if self.progress.error is not None:
            log.error("route %s stopped: %s", self.route.name, self.progress.error)


def source_options(route: Route, settings: MirrorSettings, config: Path, stop_file: Path, tasks: int) -> dict[str, str]:
    """Return the options of the query's source.

    `tasks` is the number of tasks among which the ranges of a batch are divided. It matters only if the tasks move the messages
    with the gateway's clients (`through` is `pump`). Otherwise the messages pass through Spark as rows.
    """
    options = {
        "config": str(config),
        "route": route.name,
        "stopFile": str(stop_file),
        "makeTargets": "true",
        "retryTimeout": _retry_timeout(route),
        "maxBytesPerTrigger": str(settings.batch_bytes),
        "failOnDataLoss": "true" if route.delivery.on_gap == "stop" else "false",
    }
    start = route.source.start if settings.start is None else settings.start
    options |= {"startingOffsets": start.value} if isinstance(start, Start) else {"startingTimestamp": str(start)}
    if route.source.refresh is not None:
        options["newTopicsInterval"] = format_duration(route.source.refresh)
    if settings.through == "pump":
        return options | {"mode": RANGES_MODE, "rangeTasks": str(tasks)}
    return options | {"propertiesFormat": "binary"}  # one binary value per message, which only the sink decodes


def sink_options(route: Route, config: Path, checkpoint: str) -> dict[str, str]:
    """Return the options of the query's sink."""
    return {"config": str(config), "route": route.name, "checkpointLocation": checkpoint, "writeTimeout": _retry_timeout(route)}


def _retry_timeout(route: Route) -> str:
    """Return how long transient failures are retried, as the text of a source or sink option."""
    max_elapsed_s = route.delivery.retry.max_elapsed
    return format_duration(UNLIMITED_RETRY_S if max_elapsed_s is None else max_elapsed_s)
