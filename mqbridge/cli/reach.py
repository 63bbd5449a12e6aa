"""How a command is told which cluster to work on: a configuration and a name, or a URL."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.load import load
from mqbridge.config.problems import nearest
from mqbridge.errors import ClusterError, ConfigError, Failure, RequestTimeout

CONNECT_TIMEOUT_S = 30.0
"""A person waits in front; an adapter's own deadlines are shorter."""

PANEL = "Which cluster"
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-F", help="Configuration that names the cluster.", rich_help_panel=PANEL),
]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", "-b", help="The cluster's name in it (not needed if there is one).", rich_help_panel=PANEL),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="URL",
        help="Instead: SYSTEM://HOST:PORT[,HOST:PORT], such as pulsar://localhost:6650, or log:///PATH.",
        rich_help_panel=PANEL,
    ),
]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-X", metavar="NAME=VALUE", help="A setting of the system, as under `options` in a route; may be repeated."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", "-J", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The cluster that the command line names, not connected yet."""

    name: str
    adapter: Adapter
    settings: BaseModel

    def inbound_options(self, pairs: Iterable[str]) -> BaseModel:
        """The system's settings for consuming. Raises ConfigError."""
        return _options(self.adapter.inbound_options, pairs)

    def outbound_options(self, pairs: Iterable[str]) -> BaseModel:
        """The system's settings for producing. Raises ConfigError."""
        return _options(self.adapter.outbound_options, pairs)

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


def _options(model: type[BaseModel], pairs: Iterable[str]) -> BaseModel:
    values: dict[str, str] = {}
    for pair in pairs:
        name, mark, value = pair.partition("=")
        if not mark:
            raise ConfigError(f"-X {pair!r} is no setting", hint="Write NAME=VALUE")
        if name not in model.model_fields:
            known = ", ".join(model.model_fields) or "none"
            raise ConfigError(f"-X {name}: there is no such setting here", hint=f"There are: {known}")
        values[name] = value
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"-X {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def choose(config: Path | None, cluster: str | None, url: str | None) -> Chosen:
    """Raises ConfigError when the options do not name one cluster."""
    if (config is None) == (url is None):
        raise ConfigError("no cluster is named", hint="Give --config FILE with --cluster NAME, or --at URL, not both")
    return _from_url(url) if url is not None else _from_config(config, cluster)


def _from_config(path: Path | None, name: str | None) -> Chosen:
    assert path is not None  # noqa: S101 - `choose` saw to it
    clusters = load(path).clusters
    if name is None and len(clusters) == 1:
        name = next(iter(clusters))
    if name is None:
        raise ConfigError(f"{path} has {len(clusters)} clusters", hint=f"Add --cluster with one of {', '.join(clusters)}")
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


def operations_of(cluster: Cluster) -> Operations:
    """What people may ask of the cluster. Raises ClusterError where it answers nobody."""
    if cluster.operations is None:
        raise ClusterError(
            f"cluster {cluster.name!r} says nothing about groups and offsets; give its admin_url (--at URL?admin=http://HOST:PORT)",
            Failure.FATAL,
        )
    return cluster.operations


def no_topic(topic: str, cluster: Cluster) -> ClusterError:
    """There is no such topic, and what to do about it."""
    return ClusterError(
        f"there is no topic {topic!r} in cluster {cluster.name!r}; `mqbridge topics` lists them, "
        f"`mqbridge topics {topic} --create N` makes it with N partitions",
        Failure.FATAL,
    )
