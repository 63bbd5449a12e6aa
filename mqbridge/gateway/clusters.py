"""Makes, connects and closes the clusters of a configuration; retries the first connection of unreachable clusters."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping

from mqbridge.adapter.cluster import Cluster, ReportsConnectivity
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.options.config import Config
from mqbridge.errors import ClusterError, MqbridgeError, is_transient
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import MAX_PAUSE_S
from mqbridge.net.tasks import cancel, spawn
from mqbridge.routes.closing import close_by_deadline, no_deadline

log = logging.getLogger(__name__)

MIN_CONNECT_PAUSE_S, MAX_CONNECT_PAUSE_S = 1.0, MAX_PAUSE_S
"""Minimum and maximum pause between attempts to connect to a cluster at the start."""

SETTLE_S = 60.0
"""After a late first connection, a missing topic counts as a transient failure for this time.

A cluster that has just started may lack some of its servers, with their topics and partitions.
"""

Clusters = Mapping[str, Cluster]


def make_clusters(configs: Mapping[str, ClusterConfig], adapters: Mapping[str, Adapter] | None) -> dict[str, Cluster]:
    """Make the cluster objects, with all installed adapters if `adapters` is None; opens no connection."""
    if adapters is None:
        adapters = load_adapters()
    return {name: adapters[config.system].make_cluster(name, config.settings) for name, config in configs.items()}


async def connect_clusters(
    configs: Mapping[str, ClusterConfig],
    adapters: Mapping[str, Adapter] | None,
    close_deadline: Callable[[], float | None] = no_deadline,
) -> dict[str, Cluster]:
    """Make clusters and connect to them concurrently. If one fails, close all of them and raise its ClusterError.

    `adapters`: see `make_clusters`. `close_deadline` returns the deadline for closing after a failure, see `close_clusters`.
    """
    clusters = make_clusters(configs, adapters)
    tasks = [spawn(cluster.connect(), f"connect {cluster.name}", log_errors=False) for cluster in clusters.values()]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await cancel(*tasks)
        await close_clusters(clusters.values(), close_deadline())
        raise
    return clusters


async def close_clusters(clusters: Iterable[Cluster], deadline: float | None = None) -> None:
    """Close clusters concurrently, by `deadline` (loop time; None: CLOSE_S (30 s) from now), also if closing one fails."""
    closing = (close_by_deadline(deadline, f"closing cluster {cluster.name}", cluster.close(deadline)) for cluster in clusters)
    await asyncio.gather(*closing, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected_clusters(config: Config, adapters: Mapping[str, Adapter] | None = None) -> AsyncIterator[dict[str, Cluster]]:
    """Connect to all configured clusters, and close them at the end. Raises ClusterError, which names the failed cluster."""
    clusters = await connect_clusters(config.clusters, adapters)
    try:
        yield clusters
    finally:
        await close_clusters(clusters.values())


def _has_known_outage(cluster: Cluster) -> bool:
    """Return True if the cluster tracks its connections and has itself logged that it is unreachable."""
    return isinstance(cluster, ReportsConnectivity) and cluster.connectivity.unreachable_s is not None


class InitialConnections:
    """The first connection to each cluster: clusters that are not reachable at the start are retried with growing pauses.

    `on_failure` is called with the name and the error of such a cluster before each pause.
    """

    def __init__(self, on_failure: Callable[[str, MqbridgeError], None]) -> None:
        self.connect_errors: dict[str, MqbridgeError] = {}
        """Last error of each cluster that is not connected yet, by name."""
        self._on_failure = on_failure
        self._connected_events: dict[str, asyncio.Event] = {}
        """Set when the cluster is connected, by name."""
        self._settled_at: dict[str, float] = {}
        """Loop time until which a missing topic counts as transient (SETTLE_S), by name of a cluster that was connected late."""
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, clusters: Clusters, *, fail_fast: bool) -> None:
        """Try every cluster once; keep retrying those with a transient failure, unless `fail_fast`.

        Raises errors that a retry cannot cure, and with `fail_fast` any error; the caller then closes all clusters.
        """
        results = await asyncio.gather(*(cluster.connect() for cluster in clusters.values()), return_exceptions=True)
        for name, result in zip(clusters, results, strict=True):
            self._connected_events[name] = asyncio.Event()
            if result is None:
                self._connected_events[name].set()
            elif isinstance(result, MqbridgeError) and is_transient(result) and not fail_fast:
                self.connect_errors[name] = result
            else:
                raise result
        for name in self.connect_errors:
            self._tasks[name] = spawn(self._retry(name, clusters[name]), f"connect {name}")

    async def _retry(self, name: str, cluster: Cluster) -> None:
        """Retry after every error, also a permanent one, until the cluster is connected or `forget` removes it."""
        backoff, logged = Backoff(initial_s=MIN_CONNECT_PAUSE_S, max_s=MAX_CONNECT_PAUSE_S), False
        while (error := self.connect_errors.get(name)) is not None:
            self._on_failure(name, error)
            delay = backoff.delay()
            # Warn once, unless the cluster has logged the outage itself.
            is_warning = not logged and not _has_known_outage(cluster)
            logged |= is_warning
            level = logging.WARNING if is_warning else logging.DEBUG
            log.log(level, "cluster %s cannot be reached, trying again in %.1f s: %s", name, delay, error)
            await asyncio.sleep(delay)
            try:
                await cluster.connect()
            except MqbridgeError as failed:
                self.connect_errors[name] = failed
            except Exception as bug:  # a bug of an adapter must not leave the cluster's routes waiting forever
                log.exception("cluster %s: connecting failed with an unexpected error, retrying", name)
                self.connect_errors[name] = ClusterError(f"connecting failed with an unexpected error: {bug!r}")
            else:
                self.connect_errors.pop(name, None)
        log.log(logging.INFO if logged else logging.DEBUG, "cluster %s is connected now", name)
        self._settled_at[name] = asyncio.get_running_loop().time() + SETTLE_S
        self._connected_events[name].set()

    async def wait_connected(self, names: Collection[str]) -> float:
        """Wait until these clusters are connected.

        Returns the loop time until which a missing topic may be due to servers that have not started yet; 0 if no cluster was
        connected late.
        """
        for name in names:
            if name in self._connected_events:  # a cluster without an event was connected by a reload
                await self._connected_events[name].wait()
        return max((self._settled_at.get(name, 0.0) for name in names), default=0.0)

    def error_of(self, names: Iterable[str]) -> MqbridgeError | None:
        """Return the last error of the first of these clusters that is not connected yet; None if all are connected."""
        return next((self.connect_errors[name] for name in names if name in self.connect_errors), None)

    def forget(self, names: Iterable[str]) -> None:
        """Stop retrying these clusters, which were replaced or removed."""
        for name in names:
            self.connect_errors.pop(name, None)
            self._connected_events.pop(name, None)
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()

    async def close(self) -> None:
        """Stop all retries."""
        await cancel(*self._tasks.values())
