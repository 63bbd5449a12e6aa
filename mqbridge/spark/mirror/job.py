"""Runs a mirror: the routes of a configuration as queries of one Spark application, from planning to the last batch."""

import logging
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
from mqbridge.config.topic_graph import TopicGraph
from mqbridge.errors import ConfigError, MqbridgeError
from mqbridge.spark.background_loop import background_loop
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.mirror import metrics
from mqbridge.spark.mirror.backlog import StopPositions, backlog_unit, count_backlog, find_stop_positions
from mqbridge.spark.mirror.checkpoint import CheckpointFolder
from mqbridge.spark.mirror.progress import Backlog, RouteProgress
from mqbridge.spark.mirror.route_query import RouteQuery
from mqbridge.spark.mirror.settings import MirrorSettings, select_routes
from mqbridge.spark.mirror.stop import StopFile
from mqbridge.spark.mirror.targets import connected_clusters, prepare_targets
from mqbridge.spark.session import session, session_exists

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

UPDATE_INTERVAL_S = 0.2
"""Interval at which the progress of all queries is read and shown."""
BACKLOG_INTERVAL_S, BACKLOG_TIMEOUT_S = 5.0, 30.0
"""Shortest time between the starts of two counts of all backlogs, and the timeout for counting the backlog of one route."""
CLOSE_TIMEOUT_S = 10.0
"""Timeout for closing the cluster connections at the end."""
PREPARE_TIMEOUT_S = 300.0
"""Timeout for planning all routes and creating their topics. After it, the mirror fails without starting a query."""

Show = Callable[[Sequence[RouteProgress]], None]
"""Shows the progress of all routes to the user."""


class Mirror:
    """One run of a mirror. `run` blocks the main thread; a signal handler may call `stop` meanwhile.

    show        called with the progress of all routes every UPDATE_INTERVAL_S
    on_started  called once, when Spark is ready and before the first query starts
    """

    def __init__(
        self, settings: MirrorSettings, show: Show = lambda _: None, on_started: Callable[[], None] = lambda: None
    ) -> None:
        self._settings, self._show, self._on_started = settings, show, on_started
        self._queries: list[RouteQuery] = []
        self._is_stopping = False
        self._stop_positions: dict[str, StopPositions] = {}
        """The stop positions of each route, by the route's name; empty if the mirror follows new messages."""
        self._temp_folder: Path | None = None
        """Contains the copy of the configuration and the stop files."""

    @property
    def route_progress(self) -> list[RouteProgress]:
        """The progress of each route; empty before `run` has claimed the checkpoint folder."""
        return [query.progress for query in self._queries]

    def stop(self) -> None:
        """Stop each route after its running batch."""
        self._is_stopping = True
        for query in self._queries:
            query.stop()

    def clean_up(self) -> None:
        """Remove the copy of the configuration and the stop files. A process that exits before `run` returns must call this."""
        if self._temp_folder is not None:
            shutil.rmtree(self._temp_folder, ignore_errors=True)

    def run(self) -> list[RouteProgress]:
        """Mirror until every route has ended, and return the progress of each route.

        A route ends when its query fails, after `stop`, and without `follow` also when it has caught up.

        Raises MqbridgeError if the mirror cannot start, and ConfigError if another mirror has taken over the checkpoint folder.
        """
        settings = self._settings
        config = load(settings.file)
        routes = select_routes(config, settings.routes)
        refs = {name: ClusterRef(name, cluster.system, cluster.settings) for name, cluster in config.clusters.items()}
        folder = CheckpointFolder(settings.checkpoint)
        with ExitStack() as stack:
            stack.callback(folder.release)
            folder.claim(config, routes, self.stop)  # calls `stop` if another mirror takes over the folder
            stack.callback(_close_clusters)
            temp_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqbridge-mirror-")))
            self._temp_folder = temp_folder
            self._queries = [
                RouteQuery(route, folder.route_checkpoint(route.name), _stop_file(temp_folder, route), settings)
                for route in routes
            ]
            if settings.metrics is not None:
                stack.callback(metrics.serve(*settings.metrics, lambda: self.route_progress))
            preparation = self._prepare(routes, refs, TopicGraph.of(config))
            background_loop().run(preparation, PREPARE_TIMEOUT_S, "planning the routes and creating topics")
            spark = stack.enter_context(_session(settings))
            stack.callback(self._kill_queries)
            self._on_started()
            self._start_queries(spark, _copy_config(settings.file, temp_folder))
            self._watch_queries(refs)
            if folder.is_lost:
                raise ConfigError(
                    f"the checkpoint folder {settings.checkpoint} was taken over by another mirror",
                    hint="This mirror did not renew its lease on the folder in time. Do not restart it while the other one runs",
                )
        return self.route_progress

    async def _prepare(self, routes: list[Route], refs: Mapping[str, ClusterRef], graph: TopicGraph) -> None:
        """Plan the routes as the gateway does, create missing topics, and find the stop positions."""
        used_refs = {name: refs[name] for route in routes for name in route.clusters}
        async with connected_clusters(used_refs) as clusters:
            plans = await prepare_targets(routes, clusters, graph)
            if not self._settings.follow:
                for plan in plans:
                    topics = [source.selected.topic for source in plan.sources]
                    source_cluster = clusters[plan.route.source.cluster]
                    self._stop_positions[plan.route.name] = await find_stop_positions(source_cluster, topics)
        for route in routes:
            if route.delivery.rate or route.delivery.rate_bytes:
                log.warning(
                    "route %s: a mirror ignores `rate` and `rate_bytes`; use --max-bytes-per-batch to limit a batch",
                    route.name,
                )
        for plan in plans:
            log.info("route %s: mirroring %d topics of cluster %s", plan.route.name, len(plan.sources), plan.route.source.cluster)

    def _start_queries(self, spark: "SparkSession", config: Path) -> None:
        """Start the query of each route, each in its own scheduler pool, so that the routes share the executors equally."""
        tasks = spark.sparkContext.defaultParallelism  # per batch; usually the number of cores
        for query in self._queries:
            if self._is_stopping:  # `stop` was called while the earlier queries were starting
                query.progress.is_done = True
                continue
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", query.route.name)
            query.start(spark, config, tasks)

    def _kill_queries(self) -> None:
        """Stop all queries at once: the session may outlive the mirror, and no query may run without the lease on the folder."""
        for query in self._queries:
            query.kill()

    def _watch_queries(self, refs: Mapping[str, ClusterRef]) -> None:
        """Update and show the progress until all queries have ended. Counts the backlogs in another thread, at intervals."""
        last_count: Future[None] | None = None
        last_count_began_at = float("-inf")
        with ThreadPoolExecutor(1, thread_name_prefix="mqbridge-backlog") as executor:
            while True:
                for query in self._queries:
                    query.update()
                self._show(self.route_progress)
                if all(progress.is_done for progress in self.route_progress):
                    return
                now = time.monotonic()
                is_counting = last_count is not None and not last_count.done()
                if not is_counting and now - last_count_began_at >= BACKLOG_INTERVAL_S:
                    last_count_began_at, last_count = now, executor.submit(self._count_backlogs, refs)
                time.sleep(UPDATE_INTERVAL_S)

    def _count_backlogs(self, refs: Mapping[str, ClusterRef]) -> None:
        """Count the backlog of each running route that has reported the positions that it reached.

        A failure is only logged: the next count tries again.
        """
        for query in self._queries:
            if query.reached and not query.progress.is_done:
                try:
                    ref = refs[query.route.source.cluster]
                    background_loop().run(self._count_backlog(query, ref), BACKLOG_TIMEOUT_S, "the count")
                except MqbridgeError as error:
                    log.debug("cannot count the backlog of route %s: %s", query.route.name, error)
                except Exception:  # a bug of an adapter must not end the mirror
                    log.exception("cannot count the backlog of route %s because of an unexpected error", query.route.name)

    async def _count_backlog(self, query: RouteQuery, ref: ClusterRef) -> None:
        async with background_loop().cluster(ref) as cluster:
            units = await count_backlog(cluster, query.reached, self._stop_positions.get(query.route.name))
            query.progress.record_backlog(Backlog(units, backlog_unit(cluster), time.monotonic()))


@contextmanager
def _session(settings: MirrorSettings) -> "Iterator[SparkSession]":
    """Yield this process's Spark session, or a new one that ends with the context. Raises ConfigError if Spark cannot start."""
    existed_before = session_exists()
    fair = {"spark.scheduler.mode": "FAIR"}  # concurrent routes share the executors instead of waiting for each other
    spark = session("mqbridge mirror", settings.master, quiet=settings.quiet, **(fair | dict(settings.conf)))
    try:
        yield spark
    finally:
        if not existed_before:
            spark.stop()


def _close_clusters() -> None:
    """Close the cluster connections of the background loop, because the process and its loop may outlive the mirror."""
    with suppress(MqbridgeError):
        background_loop().run(background_loop().close_idle(max_idle=0), CLOSE_TIMEOUT_S, "closing the clusters")


def _stop_file(folder: Path, route: Route) -> StopFile:
    return StopFile(folder / f"{quote(route.name, safe='')}.stop")


def _copy_config(file: Path, folder: Path) -> Path:
    """Copy the configuration, and return the path of the copy, which only this user can read.

    Spark's processes read the file repeatedly, and its content must not change between two reads.
    """
    copy = folder / file.name
    shutil.copyfile(file, copy)
    copy.chmod(0o600)
    return copy
