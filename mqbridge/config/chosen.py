"""Which cluster to work on, outside of a route: a configuration and a name, or a URL."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.load import load
from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError, RequestTimeout

CONNECT_TIMEOUT_S = 30.0
"""A person waits in front; an adapter's own deadlines are shorter."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """What the three are called where they are given, for hints."""

    config: str
    cluster: str
    url: str


COMMAND_LINE = Spelling("--config FILE", "--cluster", "--at URL")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The cluster that is named, not connected yet."""

    name: str
    adapter: Adapter
    settings: BaseModel

    @contextlib.asynccontextmanager
    async def reached(self) -> AsyncIterator[Cluster]:
        """The cluster, connected; closed at the end. Raises ClusterError."""
        cluster = self.adapter.make_cluster(self.name, self.settings)
        try:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await cluster.connect()
            except TimeoutError as error:
                raise RequestTimeout(
                    f"cluster {self.name!r} did not answer within {CONNECT_TIMEOUT_S:g} s; check its address and the network"
                ) from error
            yield cluster
        finally:
            await cluster.close()


def choose(config: Path | None, cluster: str | None, url: str | None, spelling: Spelling = COMMAND_LINE) -> Chosen:
    """Raises ConfigError when these do not name one cluster."""
    if (config is None) == (url is None):
        raise ConfigError(
            "no cluster is named",
            hint=f"Give {spelling.config} with {spelling.cluster} NAME, or {spelling.url}, not both",
        )
    if url is not None:
        return _from_url(url)
    assert config is not None  # noqa: S101 - one of the two is given
    return _from_config(config, cluster, spelling)


def _from_config(path: Path, name: str | None, spelling: Spelling) -> Chosen:
    clusters = load(path).clusters
    if name is None and len(clusters) == 1:
        name = next(iter(clusters))
    if name is None:
        raise ConfigError(
            f"{path} has {len(clusters)} clusters", hint=f"Add {spelling.cluster} with one of {', '.join(clusters)}"
        )
    if name not in clusters:
        raise ConfigError(f"{path} has no cluster {name!r}", hint=nearest(name, clusters))
    return Chosen(name, load_adapters()[clusters[name].system], clusters[name].settings)


def _from_url(url: str) -> Chosen:
    scheme, mark, _ = url.partition("://")
    system = scheme.partition("+")[0].lower()  # pulsar+ssl:// is pulsar over TLS
    adapters = load_adapters()
    if not mark or system not in adapters:
        raise ConfigError(f"{url!r} is not the URL of a known system", hint=nearest(system, (f"{name}://" for name in adapters)))
    try:
        settings = adapters[system].cluster_model.from_url(url)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{url!r} cannot be used: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    except ValueError as error:
        raise ConfigError(f"{url!r} cannot be used: {error}") from error
    return Chosen(system, adapters[system], settings)
