"""A mirror: routes of a configuration as queries of one Spark application, from the plan to the last batch."""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from mqbridge.config.load import load
from mqbridge.config.options.route import Route
from mqbridge.errors import ConfigError, MqbridgeError
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.mirror import metrics
from mqbridge.spark.mirror.backlog import Marks, count_backlog, marks_of, unit_of
from mqbridge.spark.mirror.checkpoint import CheckpointFolder
from mqbridge.spark.mirror.progress import Backlog, RouteProgress
from mqbridge.spark.mirror.route_query import RouteQuery
from mqbridge.spark.mirror.settings import MirrorSettings, chosen_routes
from mqbridge.spark.mirror.stop import StopFile
from mqbridge.spark.mirror.targets import lent, prepare
from mqbridge.spark.session import session, session_exists

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

LOOK_S = 0.2
BACKLOG_EVERY_S, BACKLOG_PATIENCE_S = 5.0, 30.0
CLOSE_S = 10.0
PREPARE_PATIENCE_S = 300.0
"""For the plans of all routes and the topics that they make."""

Show = Callable[[Sequence[RouteProgress]], None]


class Mirror:
    """One run. `run` works in the main thread; `stop` may be called from a signal handler meanwhile."""

    def __init__(
        self, settings: MirrorSettings, show: Show = lambda _: None, on_started: Callable[[], None] = lambda: None
    ) -> None:
        self._settings, self._show, self._on_started = settings, show, on_started
        self._queries: list[RouteQuery] = []
        self._stopping = False
        self._marks: dict[str, Marks] = {}
        self._scratch: Path | None = None

    @property
    def routes(self) -> list[RouteProgress]:
        """How far each route is."""
        return [query.progress for query in self._queries]

    def stop(self) -> None:
        """Let the batches that run be the last."""
        self._stopping = True
        for query in self._queries:
            query.stop()

    def clean_up(self) -> None:
        """Before the process is ended in the middle: leave no copy of the configuration behind."""
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self) -> list[RouteProgress]:
        """Mirror until all routes are caught up, failed, or were stopped. Raises MqbridgeError when it cannot begin."""
        settings = self._settings
        config = load(settings.file)
        routes = chosen_routes(config, settings.routes)
        refs = {name: ClusterRef(name, one.system, one.settings) for name, one in config.clusters.items()}
        folder = CheckpointFolder(settings.checkpoint)
        with ExitStack() as stack:
            stack.callback(folder.release)
            folder.claim(config, routes, self.stop)
            stack.callback(_close_clusters)
            scratch = self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqbridge-mirror-")))
            self._queries = [RouteQuery(one, folder.of_route(one.name), _stop_file(scratch, one), settings) for one in routes]
            if settings.metrics is not None:
                stack.callback(metrics.serve(*settings.metrics, lambda: self.routes))
            background_loop().run(self._prepare(routes, refs), PREPARE_PATIENCE_S)
            spark = stack.enter_context(_session(settings))
            stack.callback(self._end_queries)
            self._on_started()
            self._start(spark, _copied(settings.file, scratch))
            self._watch(refs)
            if folder.is_lost:
                raise ConfigError(
                    f"the checkpoint folder {settings.checkpoint} was taken over by another mirror",
                    hint="This one could not write there for too long; leave it to the other one",
                )
        return self.routes

    async def _prepare(self, routes: list[Route], refs: Mapping[str, ClusterRef]) -> None:
        """Refuse what the gateway would refuse, and make the topics that are missing."""
        used = {name: refs[name] for route in routes for name in route.clusters}
        async with lent(used) as clusters:
            plans = await prepare(routes, clusters)
            for plan in plans if not self._settings.follow else ():
                topics = [one.selected.topic for one in plan.sources]
                self._marks[plan.route.name] = await marks_of(clusters[plan.route.source.cluster], topics)
        for route in routes:
            if route.delivery.rate or route.delivery.rate_bytes:
                log.warning(
                    "route %s: a mirror does not keep to `rate` and `rate_bytes`; --max-bytes-per-batch bounds a batch",
                    route.name,
                )
        for plan in plans:
            log.info("route %s: %d topics of %s", plan.route.name, len(plan.sources), plan.route.source.cluster)

    def _start(self, spark: "SparkSession", config: Path) -> None:
        tasks = spark.sparkContext.defaultParallelism
        for query in self._queries:
            if self._stopping:
                query.progress.done = True
                continue
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", query.route.name)
            query.start(spark, config, tasks)

    def _end_queries(self) -> None:
        """Whatever has ended the run: nothing goes on without the folder's lock, in a session that goes on."""
        for query in self._queries:
            query.end()

    def _watch(self, refs: Mapping[str, ClusterRef]) -> None:
        counting: Future[None] | None = None
        counted_at = float("-inf")
        with ThreadPoolExecutor(1, thread_name_prefix="mqbridge-backlog") as counter:
            while True:
                for query in self._queries:
                    query.look()
                self._show(self.routes)
                if all(one.done for one in self.routes):
                    return
                now = time.monotonic()
                if (counting is None or counting.done()) and now - counted_at >= BACKLOG_EVERY_S:
                    counted_at, counting = now, counter.submit(self._count, refs)
                time.sleep(LOOK_S)

    def _count(self, refs: Mapping[str, ClusterRef]) -> None:
        """Ask what lies before each route; a cluster that does not tell is asked again later."""
        for query in self._queries:
            if query.ends and not query.progress.done:
                try:
                    background_loop().run(self._measure(query, refs[query.route.source.cluster]), BACKLOG_PATIENCE_S)
                except MqbridgeError as error:
                    log.debug("the backlog of route %s is not known: %s", query.route.name, error)
                except Exception:  # a bug of an adapter is no reason to end the mirror
                    log.exception("the backlog of route %s cannot be counted", query.route.name)

    async def _measure(self, query: RouteQuery, ref: ClusterRef) -> None:
        async with background_loop().cluster(ref) as cluster:
            units = await count_backlog(cluster, query.ends, self._marks.get(query.route.name))
            query.progress.measured(Backlog(units, unit_of(cluster), time.monotonic()))


@contextmanager
def _session(settings: MirrorSettings) -> "Iterator[SparkSession]":
    """The session of this program; where it has none, one that ends with the context. Raises ConfigError."""
    was_there = session_exists()
    fair = {"spark.scheduler.mode": "FAIR"}  # routes share the cluster instead of waiting for each other
    spark = session("mqbridge mirror", settings.master, quiet=settings.quiet, **(fair | dict(settings.conf)))
    try:
        yield spark
    finally:
        if not was_there:
            spark.stop()


def _close_clusters() -> None:
    """This process may live on, and its background loop with it."""
    with suppress(MqbridgeError):
        background_loop().run(background_loop().close_idle(0), CLOSE_S)


def _stop_file(scratch: Path, route: Route) -> StopFile:
    return StopFile(scratch / f"{quote(route.name, safe='')}.stop")


def _copied(file: Path, scratch: Path) -> Path:
    """What Spark's processes read again and again: the configuration as it was at the start, for this user's eyes only."""
    copy = scratch / file.name
    shutil.copyfile(file, copy)
    copy.chmod(0o600)
    os.utime(copy)
    return copy
