"""How a command is told which cluster to work on: the options, and settings of its system."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from pydantic import BaseModel, ValidationError

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import Operations
from mqbridge.config.chosen import profiles_file
from mqbridge.config.load import load
from mqbridge.errors import ClusterError, ConfigError, Failure

PANEL = "Which cluster"


def _profiles(incomplete: str) -> list[str]:
    """The user's own clusters that begin so, for the shell's completion."""
    try:
        return [name for name in load(profiles_file()).clusters if name.startswith(incomplete)]
    except ConfigError:
        return []


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
        metavar="URL|PROFILE",
        help="Instead: SYSTEM://HOST:PORT[,HOST:PORT], such as pulsar://localhost:6650, or log:///PATH; or the name of a cluster "
        "in your own configuration, ~/.config/mqbridge/clusters.yaml ($MQBRIDGE_PROFILES).",
        autocompletion=_profiles,
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


def options_from(model: type[BaseModel], pairs: Iterable[str]) -> BaseModel:
    """A system's settings for consuming or producing, of NAME=VALUE pairs. Raises ConfigError."""
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
