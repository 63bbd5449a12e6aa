"""The streaming query of one route: started, looked at, and stopped between two batches."""

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
from mqbridge.spark.mirror.failures import reason_of
from mqbridge.spark.mirror.progress import RouteProgress, Totals
from mqbridge.spark.mirror.settings import MirrorSettings
from mqbridge.spark.mirror.stop import StopFile
from mqbridge.spark.ranges.rows import RANGES
from mqbridge.spark.sink.progress import read_totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

TRIGGER = "1 second"
"""Between two looks at the source while there is nothing new; a batch that takes longer is followed by the next at once."""


FOR_EVER_S = 30 * 86400.0
"""How long what may pass is tried again where the route sets no end to it."""


class RouteQuery:
    """One route's query and what is known of it."""

    def __init__(self, route: Route, location: str, stop: StopFile, settings: MirrorSettings) -> None:
        self.route, self.location = route, location
        self.progress = RouteProgress(route.name, time.monotonic())
        self.ends: Mapping[str, Mapping[str, str]] = {}
        """Where it is, by topic and partition name."""
        self._stop, self._settings = stop, settings
        self._query: StreamingQuery | None = None
        self._batch = -1
        self._stopping = False

    def start(self, session: "SparkSession", config: Path, tasks: int) -> None:
        """Begin, or go on from the checkpoint. `config` is what Spark's processes on this machine read."""
        self.progress.begin(self._totals())
        name = MqbridgeDataSource.name()
        rows = session.readStream.format(name).options(
            **source_options(self.route, self._settings, config, self._stop.path, tasks)
        )
        sink = rows.load().writeStream.format(name).options(**sink_options(self.route, config, self.location))
        sink = sink.queryName(f"mqbridge route {self.route.name}").outputMode("append")
        sink = sink.trigger(processingTime=TRIGGER) if self._settings.follow else sink.trigger(availableNow=True)
        self._query = sink.start()

    def look(self) -> None:
        """Take over what happened since the last look."""
        if self._query is None or self.progress.done:
            return
        is_active = self._query.isActive
        self._read_progress(self._query.lastProgress)
        if not is_active:
            self._ended()
        elif self._stopping and self._stop.is_obeyed:
            self._query.stop()

    def stop(self) -> None:
        """Let the batch that runs be the last."""
        self._stopping = True
        self._stop.ask()

    def end(self) -> None:
        """At once, if it still runs."""
        if self._query is None:
            return
        try:
            if self._query.isActive:
                self._query.stop()
        except Exception:  # whatever py4j raises without its JVM, and then nothing runs
            log.debug("route %s: its query cannot be stopped", self.route.name, exc_info=True)

    def _read_progress(self, report: Any) -> None:
        if report is None or report["batchId"] == self._batch or not report["sources"]:
            return
        end = report["sources"][0]["endOffset"]
        if not end or end == "null":
            return
        self.ends = json.loads(end)["topics"]
        if report["numInputRows"]:
            self.progress.batches += self._batches_since(self._batch)
            self._batch = report["batchId"]
            self.progress.batch_done(time.monotonic(), self._totals(), report["batchDuration"] / 1000)

    def _batches_since(self, batch: int) -> int:
        """How many batches with anything in them are done behind this one: several may be between two looks."""
        assert self._query is not None  # noqa: S101 - for the type checker
        return len({one["batchId"] for one in self._query.recentProgress if one["batchId"] > batch and one["numInputRows"]})

    def _totals(self) -> Totals:
        """What the sink has noted; what was known before where it is writing that just now, or cannot read it itself."""
        try:
            return read_totals(self.location)
        except (OSError, ValueError):
            return self.progress.totals

    def _ended(self) -> None:
        assert self._query is not None  # noqa: S101 - for the type checker
        self.progress.done = True
        error = self._query.exception()
        if error is not None and not self._stopping:
            self.progress.error = reason_of(str(error))
        elif error is not None:
            log.warning("route %s ended while it was stopped: %s", self.route.name, reason_of(str(error)))
        if self.progress.error is not None:
            log.error("route %s stopped: %s", self.route.name, self.progress.error)


def source_options(route: Route, settings: MirrorSettings, config: Path, stop: Path, tasks: int) -> dict[str, str]:
    """What the source is told."""
    options = {
        "config": str(config),
        "route": route.name,
        "stopFile": str(stop),
        "makeTargets": "true",
        "retryTimeout": _patience(route),
        "maxBytesPerTrigger": str(settings.batch_bytes),
        "failOnDataLoss": "true" if route.delivery.on_gap == "stop" else "false",
    }
    start = route.source.start if settings.start is None else settings.start
    options |= {"startingOffsets": start.value} if isinstance(start, Start) else {"startingTimestamp": str(start)}
    if route.source.refresh is not None:
        options["newTopicsInterval"] = format_duration(route.source.refresh)
    if settings.through == "pump":
        return options | {"mode": RANGES, "rangeTasks": str(tasks)}
    return options | {"propertiesFormat": "binary"}


def sink_options(route: Route, config: Path, location: str) -> dict[str, str]:
    """What the sink is told."""
    return {"config": str(config), "route": route.name, "checkpointLocation": location, "writeTimeout": _patience(route)}


def _patience(route: Route) -> str:
    elapsed = route.delivery.retry.max_elapsed
    return format_duration(FOR_EVER_S if elapsed is None else elapsed)
