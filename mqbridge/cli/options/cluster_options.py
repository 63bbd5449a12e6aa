"""Options that choose the cluster of a command or set options of its system, and errors about the chosen cluster.

The configuration is imported when a cluster is chosen, so that help and completion do not wait for it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.operations import Operations
from mqbridge.adapter.topics import Topic
from mqbridge.cli.options import completion
from mqbridge.errors import ClusterError, ConfigError, Failure

if TYPE_CHECKING:
    from pydantic import BaseModel

    from mqbridge.config.cluster_choice import ClusterChoice

CLUSTER_PANEL = "Which cluster"
"""Heading of the options that choose the cluster, in the help."""

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", "-F", help="Configuration that names the cluster.", rich_help_panel=CLUSTER_PANEL),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        "-b",
        help="The cluster's name in that configuration; not needed if it has only one.",
        autocompletion=completion.clusters,
        rich_help_panel=CLUSTER_PANEL,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="URL|PROFILE",
        help="Instead of --config: SYSTEM://HOST:PORT[,HOST:PORT], such as pulsar://localhost:6650, or log:///PATH; or the name "
        "of a cluster in your own configuration, ~/.config/mqbridge/clusters.yaml ($MQBRIDGE_PROFILES).",
        autocompletion=completion.profiles,
        rich_help_panel=CLUSTER_PANEL,
    ),
]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", autocompletion=completion.topics)]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-X", metavar="NAME=VALUE", help="A setting of the system, as under `options` in a route; may be repeated."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", "-J", help="Print JSON.")]


def choose(config: Path | None, cluster: str | None, url: str | None) -> "ClusterChoice":
    """Return the cluster that the options choose. Raises ConfigError unless they choose exactly one."""
    from mqbridge.config import cluster_choice

    return cluster_choice.choose(config, cluster, url)


def parse_settings(model: "type[BaseModel]", pairs: Iterable[str]) -> "BaseModel":
    """Build a system's settings for consuming or producing from NAME=VALUE pairs. Raises ConfigError."""
    from pydantic import ValidationError

    values: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError(f"-X {pair!r} is not a setting", hint="Write NAME=VALUE")
        if name not in model.model_fields:
            known = ", ".join(model.model_fields) or "none"
            raise ConfigError(f"-X {name}: there is no such setting", hint=f"Known: {known}")
        values[name] = value
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"-X {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def operations_of(cluster: Cluster) -> Operations:
    """Return the cluster's operations on groups and offsets. Raises ClusterError if the cluster supports none."""
    if cluster.operations is None:
        raise ClusterError(
            f"cluster {cluster.name!r} cannot report groups and offsets; give its admin_url (--at URL?admin=http://HOST:PORT)",
            Failure.FATAL,
        )
    return cluster.operations


async def readable_topic(cluster: Cluster, name: str) -> Topic:
    """Return the description of a topic to read. Raises ClusterError: FATAL if it does not exist, RETRY if nobody may read it."""
    topic = await cluster.describe(name)
    if topic is None:
        raise topic_not_found(name, cluster)
    if topic.unreadable is not None:
        raise ClusterError(topic.unreadable, Failure.RETRY)
    return topic


def topic_not_found(topic: str, cluster: Cluster) -> ClusterError:
    """Make the error for a missing topic; it names the commands that list and create topics."""
    return ClusterError(
        f"there is no topic {topic!r} in cluster {cluster.name!r}; `mqbridge topics` lists them, "
        f"`mqbridge topics {topic} --create N` creates it with N partitions",
        Failure.FATAL,
    )
