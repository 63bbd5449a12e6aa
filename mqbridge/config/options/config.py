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
    routes: tuple[Route, ...] = Field(default=(), description="What goes from where to where.")
    state: Path | None = Field(
        default=None,
        description="The checkpoint database, a file that is made when missing, in a folder that exists; relative to the working "
        "directory. "
        "Without it a gap in a source cannot be noticed after a restart.",
    )
    http: Http = Field(default=Http(), description="Metrics and health over HTTP.")
    reload: Reload = Field(default=Reload(), description="Taking a changed file while running.")
    log: Log = Field(default=Log(), description="The gateway's own log.")
    shutdown_timeout: Duration = Field(
        default=30.0,
        gt=0,
        description="How long stopping may take: four fifths of it for what is in flight (the rest of "
        "that is delivered again), then confirming, leaving and closing.",
    )
