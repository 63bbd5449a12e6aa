"""Which cluster to work on, outside of a route: a configuration and a name, a URL, or a profile.

A profile is a cluster of the user's own configuration, so that nobody has to type addresses and secrets. A secret's text in a URL
is refused: URLs are seen in lists of processes, and kept in the histories of shells and on the pages of Spark.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import Adapter, load_adapters
from mqbridge.config.load import load
from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError, RequestTimeout
from mqbridge.secret import IS_SHOWN, Secret

CONNECT_TIMEOUT_S = 30.0
"""A person waits in front; an adapter's own deadlines are shorter."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """What the three are called where they are given, for hints."""

    config: str
    cluster: str
    url: str


COMMAND_LINE = Spelling("--config FILE", "--cluster", "--at URL")

PROFILES = "MQBRIDGE_PROFILES"
"""The environment variable with the path of the user's own configuration."""


_USER = re.compile(r"://[^/@]*:[^/@]+@")
"""A user and a password in an address."""


def profiles_file() -> Path:
    """Where the user's own configuration is, or would be."""
    if given := os.environ.get(PROFILES):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "mqbridge" / "clusters.yaml"


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
    """`url` may be the name of a profile. Raises ConfigError when these do not name one cluster."""
    if (config is None) == (url is None):
        raise ConfigError(
            "no cluster is named",
            hint=f"Give {spelling.config} with {spelling.cluster} NAME, or {spelling.url}, not both",
        )
    if url is not None:
        return _from_url(url) if "://" in url else _from_profile(url)
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


def _from_profile(name: str) -> Chosen:
    path = profiles_file()
    if not path.exists():
        raise ConfigError(
            f"{name!r} is no URL, and there are no profiles",
            hint=f"Write SYSTEM://HOST:PORT, or clusters with their names into {path}, as in a configuration",
        )
    clusters = load(path).clusters
    if name not in clusters:
        raise ConfigError(f"{name!r} is neither a URL nor a cluster of {path}", hint=nearest(name, clusters))
    return Chosen(name, load_adapters()[clusters[name].system], clusters[name].settings)


def _from_url(url: str) -> Chosen:
    scheme = url.partition("://")[0]
    system, shown = scheme.partition("+")[0].lower(), shown_url(url)  # pulsar+ssl:// is pulsar over TLS
    adapters = load_adapters()
    if system not in adapters:
        raise ConfigError(
            f"{shown!r} is not the URL of a known system", hint=nearest(system, (f"{name}://" for name in adapters))
        )
    if _USER.search(url.partition("?")[0]):
        raise ConfigError(
            f"{shown!r} holds a user and a password: others on this machine see them, and the shell, or Spark's pages, keep them",
            hint=f"Give credentials as parameters that say where they are, or use a profile in {profiles_file()}",
        )
    try:
        settings = adapters[system].cluster_model.from_url(url)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{shown!r} cannot be used: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except ValueError as error:
        raise ConfigError(f"{shown!r} cannot be used: {error}") from None
    if (typed := next(_typed_secrets(settings), None)) is not None:
        raise ConfigError(
            f"{shown!r} holds the secret {typed}: others on this machine see it, and the shell, or Spark's pages, keep it",
            hint=f"{_advice(settings, typed)} a profile in {profiles_file()}",
        )
    return Chosen(system, adapters[system], settings)


def shown_url(url: str) -> str:
    """A URL without what may be secret in it: users with their passwords, and the values of parameters."""
    rest, mark, query = url.partition("?")
    scheme, slashes, hosts = rest.partition("://")
    hosts = re.sub(r"[^/]*@", "", hosts)  # a password may hold commas
    names = "&".join(part.partition("=")[0] + "=…" for part in query.split("&") if part)
    return f"{scheme}{slashes}{hosts}{mark}{names}"


def _advice(settings: BaseModel, name: str) -> str:
    """What to do with a secret instead of typing it."""
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part, None)
    return (
        f"Write where it is, {name}.file=PATH or {name}.env=NAME; or use"
        if isinstance(value, Secret)
        else "Do not type it, but use"
    )


def _typed_secrets(settings: BaseModel, prefix: str = "") -> Iterator[str]:
    """The names of the settings that hold a secret's text."""
    for name, value in settings:
        if isinstance(value, BaseModel):
            yield from _typed_secrets(value, f"{prefix}{name}.")
        elif _is_typed(value) and not _is_shown(settings, name):
            yield f"{prefix}{name}"


def _is_shown(settings: BaseModel, name: str) -> bool:
    """Whether it is known to be no secret; an option of a plugin is not."""
    field = type(settings).model_fields.get(name)
    return field is not None and IS_SHOWN in str(field.json_schema_extra)


def _is_typed(value: object) -> bool:
    return value.is_text if isinstance(value, Secret) else isinstance(value, str) and _USER.search(value) is not None
