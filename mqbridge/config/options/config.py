"""The whole configuration file."""

from pathlib import Path

from pydantic import Field

from mqbridge.config.base import Name, Options
from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.options.http import Http
from mqbridge.config.options.listener import ListenerConfig
from mqbridge.config.options.log import Log
from mqbridge.config.options.reload import Reload
from mqbridge.config.options.route import Route
from mqbridge.config.units import Duration


class Config(Options):
    """A whole configuration."""

    clusters: dict[Name, ClusterConfig] = Field(min_length=1, description="The clusters that the gateway connects to.")
    routes: tuple[Route, ...] = Field(default=(), description="The routes from source to target topics.")
    listeners: tuple[ListenerConfig, ...] = Field(
        default=(), description="The listeners: servers for unmodified clients of a system, over any of the clusters."
    )
    state: Path | None = Field(
        default=None,
        description="The path of the checkpoint database, relative to the working directory. The file is created if it is "
        "missing; its folder must exist. Without a checkpoint database, gaps in a source are not detected after a restart. It "
        "also keeps which brokers the topics of RocketMQ and TubeMQ have, so that a restart notices that one is missing. "
        "Listeners keep what their groups have acknowledged in a second file, `STATE.groups`.",
    )
    http: Http = Field(default=Http(), description="Metrics and health over HTTP.")
    reload: Reload = Field(default=Reload(), description="Reloading a changed configuration file while the gateway runs.")
    log: Log = Field(default=Log(), description="The gateway's own log.")
    shutdown_timeout: Duration = Field(
        default=30.0,
        gt=0,
        description="Time limit for stopping. Messages in flight are drained for at most four fifths of it; the messages that "
        "are still in flight are delivered again later. Then the gateway commits, leaves the groups and closes its connections.",
    )
