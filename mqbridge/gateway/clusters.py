"""Clusters of a configuration: made, reached side by side, waited for, closed."""

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
from mqbridge.gateway.plan import helps_to_retry
from mqbridge.net.backoff import Backoff
from mqbridge.net.connectivity import MOST_PAUSE_S
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

REACH_FIRST_S, REACH_MOST_S = 1.0, MOST_PAUSE_S
"""Pauses between attempts to reach a cluster at the start."""

SETTLE_S = 60.0
"""A cluster that came late may still miss a part of its servers, and with it topics and partitions: only what is not there so
long after it was reached is missing."""

Clusters = Mapping[str, Cluster]


def make(configs: Mapping[str, ClusterConfig], adapters: Mapping[str, Adapter] | None) -> dict[str, Cluster]:
    """Make clusters; no connection is opened yet."""
    if adapters is None:
        adapters = load_adapters()
    return {name: adapters[config.system].make_cluster(name, config.settings) for name, config in configs.items()}


async def connect(
    configs: Mapping[str, ClusterConfig],
    adapters: Mapping[str, Adapter] | None,
    closed_by: Callable[[], float | None] = no_deadline,
) -> dict[str, Cluster]:
    """Make and reach clusters. The first that cannot be reached is raised (ClusterError), with none left open.

    `closed_by` is asked when these have to be closed.
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
    """Close them; one that fails to is no reason to leave the others."""
    closing = (close_by(deadline, f"closing cluster {cluster.name}", cluster.close(deadline)) for cluster in clusters)
    await asyncio.gather(*closing, return_exceptions=True)


@contextlib.asynccontextmanager
async def connected(config: Config, adapters: Mapping[str, Adapter] | None = None) -> AsyncIterator[dict[str, Cluster]]:
    """Every configured cluster, reached; closed at the end. Raises ClusterError naming the one that cannot be."""
    clusters = await connect(config.clusters, adapters)
    try:
        yield clusters
    finally:
        await close(clusters.values())


def _is_away(cluster: Cluster) -> bool:
    """Whether its connections have told of an outage themselves."""
    return isinstance(cluster, Connected) and cluster.connectivity.away_s is not None


class Reaching:
    """The first connection to each cluster at the start: clusters that are not there yet are tried again with growing pauses.

    A cluster is in `waiting`, with its last error, from its first failure until it is reached or forgotten.
    """

    def __init__(self, on_failure: Callable[[str, MqbridgeError], None]) -> None:
        self.waiting: dict[str, MqbridgeError] = {}
        self._on_failure = on_failure
        self._reached: dict[str, asyncio.Event] = {}
        self._settled_at: dict[str, float] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, clusters: Clusters, *, fail_fast: bool) -> None:
        """Try every cluster once, and those that fail for now again and again, unless it is to fail fast.

        Raises what waiting does not help, or is not to help.
        """
        results = await asyncio.gather(*(cluster.connect() for cluster in clusters.values()), return_exceptions=True)
        for name, result in zip(clusters, results, strict=True):
            self._reached[name] = asyncio.Event()
            if result is None:
                self._reached[name].set()
            elif isinstance(result, MqbridgeError) and helps_to_retry(result) and not fail_fast:
                self.waiting[name] = result
            else:
                raise result
        for name in self.waiting:
            self._tasks[name] = spawn(self._reach(name, clusters[name]), f"reaching {name}")

    async def _reach(self, name: str, cluster: Cluster) -> None:
        pauses, told = Backoff(REACH_FIRST_S, REACH_MOST_S), False
        while (error := self.waiting.get(name)) is not None:
            self._on_failure(name, error)
            delay = pauses.delay()
            loud = not told and not _is_away(cluster)
            told |= loud
            level = logging.WARNING if loud else logging.DEBUG
            log.log(level, "cluster %s cannot be reached, trying again in %.1f s: %s", name, delay, error)
            await asyncio.sleep(delay)
            try:
                await cluster.connect()
            except MqbridgeError as failed:
                self.waiting[name] = failed
            except Exception as bug:  # an adapter's, and no reason to leave its routes waiting for ever
                log.exception("cluster %s: connecting failed unexpectedly", name)
                self.waiting[name] = ClusterError(f"connecting failed by {bug!r}")
            else:
                self.waiting.pop(name, None)
        log.log(logging.INFO if told else logging.DEBUG, "cluster %s is reached now", name)
        self._settled_at[name] = asyncio.get_running_loop().time() + SETTLE_S
        self._reached[name].set()

    async def reached(self, names: Collection[str]) -> float:
        """Wait until all of these are; the loop time until which those that came late may miss a part of their servers."""
        for name in names:
            if name in self._reached:
                await self._reached[name].wait()
        return max((self._settled_at.get(name, 0.0) for name in names), default=0.0)

    def failure(self, names: Iterable[str]) -> MqbridgeError | None:
        """Why one of these is not reached yet; None when all are."""
        return next((self.waiting[name] for name in names if name in self.waiting), None)

    def forget(self, names: Iterable[str]) -> None:
        """Try these no more: they are replaced or gone."""
        for name in names:
            self.waiting.pop(name, None)
            self._reached.pop(name, None)
            if (task := self._tasks.pop(name, None)) is not None:
                task.cancel()

    async def close(self) -> None:
        """Try no more."""
        await cancel(*self._tasks.values())
