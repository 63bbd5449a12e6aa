"""The clusters of a configuration: create, connect concurrently, wait for, close."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping

from mqbridge.adapter.cluster import Cluster, Connected
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.options.config import Config
from mqbridge.errors import ClusterError, MqbridgeError
from mqbridge.gateway.closing import close_by, no_deadline
from mqbridge.gateway.plan import is_transient
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import MOST_PAUSE_S
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, MOST_PAUSE_S
"""Shortest and longest pause between attempts to connect to a cluster at the start."""

SETTLE_S = 60.0
"""A cluster that came up late may still lack some of its servers, and their topics and partitions: a topic counts as missing only
if it is not there this long after the cluster was reached."""

Clusters = Mapping[str, Cluster]


def make(configs: Mapping[str, ClusterConfig], adapters: Mapping[str, Adapter] | None) -> dict[str, Cluster]:
    """Create cluster objects; opens no connection."""
    if adapters is None:
        adapters = load_adapters()
    return {name: adapters[config.system].make_cluster(name, config.settings) for name, config in configs.items()}


async def connect(
    configs: Mapping[str, ClusterConfig],
    adapters: Mapping[str, Adapter] | None,
    closed_by: Callable[[], float | None] = no_deadline,
) -> dict[str, Cluster]:
    """Create clusters and connect to them. Raises the first ClusterError; then none stays open.

    `closed_by` gives the deadline for closing them in that case.
    """
    clusters = make(configs, adapters)
    tasks = [spawn(cluster.connect(), f"connect {cluster.name}", quiet=True) for cluster in clusters.values()]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await cancel(*tasks)
        await close(clusters.values(), closed_by())
        raise
    return clusters


async def close(clusters: Iterable[Cluster], deadline: float | None = None) -> None:
    """Close clusters; the failure of one does not stop the others from closing."""
    closing = (close_by(deadline, f"closing cluster {cluster.name}", cluster.close(deadline)) for cluster in clusters)
    await asyncio.gather(*closing, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected(config: Config, adapters: Mapping[str, Adapter] | None = None) -> AsyncIterator[dict[str, Cluster]]:
    """Connect to every configured cluster; close them at the end. Raises ClusterError, which names the unreachable cluster."""
    clusters = await connect(config.clusters, adapters)
    try:
        yield clusters
    finally:
        await close(clusters.values())


def _is_away(cluster: Cluster) -> bool:
    """Return True if the cluster's connections have logged the outage themselves."""
    return isinstance(cluster, Connected) and cluster.connectivity.away_s is not None


class InitialConnections:
    """The first connection to each cluster at the start; clusters that are not up yet are retried with growing pauses.

    A cluster is in `waiting`, with its last error, from its first failure until it is connected or forgotten.
    """

    def __init__(self, on_failure: Callable[[str, MqbridgeError], None]) -> None:
        self.waiting: dict[str, MqbridgeError] = {}
        self._on_failure = on_failure
        self._connected: dict[str, asyncio.Event] = {}
        self._settled_at: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, clusters: Clusters, *, fail_fast: bool) -> None:
        """Try every cluster once; keep retrying those with a transient failure, unless `fail_fast`.

        Raises failures that a retry does not help, and with `fail_fast` all failures.
        """
        results = await asyncio.gather(*(cluster.connect() for cluster in clusters.values()), return_exceptions=True)
        for name, result in zip(clusters, results, strict=True):
            self._connected[name] = asyncio.Event()
            if result is None:
                self._connected[name].set()
            elif isinstance(result, MqbridgeError) and is_transient(result) and not fail_fast:
                self.waiting[name] = result
            else:
                raise result
        for name in self.waiting:
            self._tasks[name] = spawn(self._retry(name, clusters[name]), f"reaching {name}")

    async def _retry(self, name: str, cluster: Cluster) -> None:
        pauses, logged = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), False
        while (error := self.waiting.get(name)) is not None:
            self._on_failure(name, error)
            delay = pauses.delay()
            is_warning = not logged and not _is_away(cluster)
            logged |= is_warning
            level = logging.WARNING if is_warning else logging.DEBUG
            log.log(level, "cluster %s cannot be reached, trying again in %.1f s: %s", name, delay, error)
            await asyncio.sleep(delay)
            try:
                await cluster.connect()
            except MqbridgeError as failed:
                self.waiting[name] = failed
            except Exception as bug:  # a bug of an adapter, which must not leave its routes waiting forever
                log.exception("cluster %s: connecting failed unexpectedly", name)
                self.waiting[name] = ClusterError(f"connecting failed by {bug!r}")
            else:
                self.waiting.pop(name, None)
        log.log(logging.INFO if logged else logging.DEBUG, "cluster %s is connected now", name)
        self._settled_at[name] = asyncio.get_running_loop().time() + SETTLE_S
        self._connected[name].set()

    async def wait_connected(self, names: Collection[str]) -> float:
        """Wait until these clusters are connected; return the loop time until which late ones may lack some of their servers."""
        for name in names:
            if name in self._connected:
                await self._connected[name].wait()
        return max((self._settled_at.get(name, 0.0) for name in names), default=0.0)

    def failure(self, names: Iterable[str]) -> MqbridgeError | None:
        """Return why one of these is not connected yet; None if all are."""
        return next((self.waiting[name] for name in names if name in self.waiting), None)

    def forget(self, names: Iterable[str]) -> None:
        """Stop retrying these: they were replaced or removed."""
        for name in names:
            self.waiting.pop(name, None)
            self._connected.pop(name, None)
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()

    async def close(self) -> None:
        """Stop retrying."""
        await cancel(*self._tasks.values())
