"""The whole configuration file."""

from pathlib import Path

from pydantic import Field

from mqbridge.config.base import Name, Options
from mqbridge.config.options.cluster import ClusterConfig
from mqbridge.config.options.http import Http
from mqbridge.config.options.log import Log
from mqbridge.config.options.reload import Reload
from mqbridge.config.options.route import Route
from mqbridge.config.units import Duration


class Config(Options):
    """A whole configuration."""

    clusters: dict[Name, ClusterConfig] = Field(min_length=1, description="The clusters that the gateway is a client of.")
    routes: tuple[Route, ...] = Field(default=(), description="The routes from source to target topics.")
    state: Path | None = Field(
        default=None,
        description="The checkpoint database, a file that is created if missing, in an existing folder; relative to the working "
        "directory. "
        "Without it a gap in a source goes unnoticed after a restart.",
    )
    http: Http = Field(default=Http(), description="Metrics and health over HTTP.")
    reload: Reload = Field(default=Reload(), description="Reloading a changed file while running.")
    log: Log = Field(default=Log(), description="The gateway's own log.")
    shutdown_timeout: Duration = Field(
        default=30.0,
        gt=0,
        description="Time limit for stopping: four fifths for draining messages in flight (the rest of "
        "them is delivered again), then committing, leaving the groups and closing.",
    )
