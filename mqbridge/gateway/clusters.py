"""Clusters of a configuration: made, reached side by side, closed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping

from mqbridge.adapter import Adapter, Cluster, load_adapters
from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.options.config import Config
from mqbridge.gateway.closing import close_by
from mqbridge.net.tasks import cancel, spawn


async def connect(configs: Mapping[str, ClusterConfig], adapters: Mapping[str, Adapter] | None) -> dict[str, Cluster]:
    """Make and reach clusters. The first that cannot be reached is raised (ClusterError), with none left open."""
    if adapters is None:
        adapters = load_adapters()
    clusters = {name: adapters[config.system].make_cluster(name, config.settings) for name, config in configs.items()}
    tasks = [spawn(cluster.connect(), f"connect {cluster.name}", quiet=True) for cluster in clusters.values()]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        await cancel(*tasks)
        await close(clusters.values())
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
