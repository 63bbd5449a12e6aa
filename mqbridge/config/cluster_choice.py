"""Chooses the cluster of a command: by a configuration and a name, by a URL, or by a profile.

A profile is a cluster in the user's own configuration, so that users need not type addresses and secrets. A URL that contains the
text of a secret is rejected: URLs are visible in process lists, and stay in shell histories and on Spark's pages.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.load import load
from mqbridge.config.problems import nearest
from mqbridge.config.profiles import profiles_file
from mqbridge.errors import ConfigError, RequestTimeout
from mqbridge.net.secret import IS_SHOWN, Secret

CONNECT_TIMEOUT_S = 30.0
"""Time limit for connecting, because a user waits for the result. It is a safeguard: the adapters' own timeouts are shorter."""


@dataclass(frozen=True, slots=True)
class OptionNames:
    """Names, for hints, of the options that choose a cluster: the file, a cluster in it, a URL. Spark has names of its own."""

    config: str
    cluster: str
    url: str


COMMAND_LINE_OPTIONS = OptionNames("--config FILE", "--cluster", "--at URL")

_USER_AND_PASSWORD = re.compile(r"://[^/@]*:[^/@]+@")
"""Matches `://USER:PASSWORD@` in a URL."""


@dataclass(frozen=True, slots=True)
class ClusterChoice:
    """The chosen cluster, not connected yet."""

    name: str
    """Name of the cluster in the configuration or the profiles. With a URL: the identity of the real cluster, or the URL without
    parameters if its adapter knows none. Origins contain the name, so two clusters given by URL must not have the same."""
    adapter: Adapter
    settings: BaseModel
    """The validated options of the cluster, of the model `Adapter.cluster_model`."""

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[Cluster]:
        """Connect, yield the connected cluster, and close it when the block ends. Raises ClusterError."""
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


def choose(config: Path | None, cluster: str | None, url: str | None, names: OptionNames = COMMAND_LINE_OPTIONS) -> ClusterChoice:
    """Choose a cluster of the file `config` by its name `cluster`, or by `url`: a URL or the name of a profile.

    `cluster` may be None if the file has only one, and is ignored with `url`. Raises ConfigError if the options do not
    choose exactly one cluster.
    """
    if (config is None) == (url is None):
        raise ConfigError(
            "no cluster is named" if config is None else "two clusters are named",
            hint=f"Give {names.config} with {names.cluster} NAME, or {names.url}, not both",
        )
    if url is not None:
        return _from_url(url) if "://" in url else _from_profile(url)
    assert config is not None  # noqa: S101 - exactly one of the two is given
    return _from_config(config, cluster, names)


def _from_config(path: Path, name: str | None, names: OptionNames) -> ClusterChoice:
    """Choose the cluster `name` of the configuration, or its only cluster. Raises ConfigError."""
    clusters = load(path).clusters
    if name is None and len(clusters) == 1:
        name = next(iter(clusters))
    if name is None:
        raise ConfigError(f"{path} has {len(clusters)} clusters", hint=f"Add {names.cluster} with one of {', '.join(clusters)}")
    if name not in clusters:
        raise ConfigError(f"{path} has no cluster {name!r}", hint=nearest(name, clusters))
    return ClusterChoice(name, load_adapters()[clusters[name].system], clusters[name].settings)


def _from_profile(name: str) -> ClusterChoice:
    """Choose the cluster `name` of the user's own configuration. Raises ConfigError."""
    path = profiles_file()
    if not path.exists():
        raise ConfigError(
            f"{name!r} is not a URL, and there is no file with profiles",
            hint=f"Write SYSTEM://HOST:PORT, or define the cluster under this name in {path}, in the format of a configuration",
        )
    clusters = load(path).clusters
    if name not in clusters:
        raise ConfigError(f"{name!r} is neither a URL nor a cluster of {path}", hint=nearest(name, clusters))
    return ClusterChoice(name, load_adapters()[clusters[name].system], clusters[name].settings)


def _from_url(url: str) -> ClusterChoice:
    """Choose the cluster at the URL. Raises ConfigError, also if the URL contains the text of a secret."""
    scheme = url.partition("://")[0]
    system, shown = scheme.partition("+")[0].lower(), redact_url(url)  # `pulsar+ssl://` is the system pulsar, by TLS
    adapters = load_adapters()
    if system not in adapters:
        raise ConfigError(
            f"{shown!r} is not the URL of a known system", hint=nearest(system, (f"{name}://" for name in adapters))
        )
    if _USER_AND_PASSWORD.search(url.partition("?")[0]):
        raise ConfigError(
            f"{shown!r} contains a user and a password: process lists, shell histories and Spark's pages would show them",
            hint=f"Give credentials as parameters that name a file or a variable, or use a profile in {profiles_file()}",
        )
    try:
        settings = adapters[system].cluster_model.from_url(url)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{shown!r} cannot be used: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:
        raise ConfigError(f"{shown!r} cannot be used: {error}") from None
    secret_name = next(_literal_secrets(settings), None)
    if secret_name is not None:
        raise ConfigError(
            f"{shown!r} contains the secret {secret_name}: process lists, shell histories and Spark's pages would show it",
            hint=f"{_alternative_to_secret(settings, secret_name)} a profile in {profiles_file()}",
        )
    return ClusterChoice(settings.identity or redact_url(url.partition("?")[0]), adapters[system], settings)


def redact_url(url: str) -> str:
    """Return the URL without possible secrets: users and passwords are removed, the values of parameters are replaced by `…`."""
    rest, mark, query = url.partition("?")
    scheme, slashes, hosts = rest.partition("://")
    hosts = re.sub(r"[^/]*@", "", hosts)  # a password may contain commas
    names = "&".join(part.partition("=")[0] + "=…" for part in query.split("&") if part)
    return f"{scheme}{slashes}{hosts}{mark}{names}"


def _alternative_to_secret(settings: BaseModel, name: str) -> str:
    """Return the first half of a hint, up to its word "use": what to write instead of the text of the secret `name`."""
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part, None)
    return (
        f"Name its source, {name}.file=PATH or {name}.env=NAME, or use"
        if isinstance(value, Secret)
        else "Instead of typing it, use"
    )


def _literal_secrets(settings: BaseModel, prefix: str = "") -> Iterator[str]:
    """Yield the names of the settings that contain the text of a secret, not only its source."""
    for name, value in settings:
        if isinstance(value, BaseModel):
            yield from _literal_secrets(value, f"{prefix}{name}.")
        elif _is_literal_secret(value) and not _is_shown(settings, name):
            yield f"{prefix}{name}"


def _is_shown(settings: BaseModel, name: str) -> bool:
    """Return True if the setting is marked as not secret; False for options that the model does not declare."""
    field = type(settings).model_fields.get(name)
    return field is not None and IS_SHOWN in str(field.json_schema_extra)


def _is_literal_secret(value: object) -> bool:
    """Return True for a secret that is given as text, and for a URL with a user and a password."""
    return value.is_text if isinstance(value, Secret) else isinstance(value, str) and _USER_AND_PASSWORD.search(value) is not None
