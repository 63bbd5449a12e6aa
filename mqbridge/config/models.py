"""The configuration's models: what may be written, in which unit, and what holds when it is not written.

Everything is frozen and unknown keys are refused. What belongs to a system (a cluster's body, the `options` of the two ends of a
route) is validated by that system's own models (`mqbridge.config.bodies`) before these see it: here it is a ready model already.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SerializeAsAny

from mqbridge.config.parts import Name, Part
from mqbridge.config.route import Route
from mqbridge.config.units import Address, Duration, split_address


class ClusterConfig(Part):
    """A cluster: the system that it runs, and that system's own settings beside it."""

    system: Name = Field(description="The system that the cluster runs: the name of an installed adapter.")
    settings: SerializeAsAny[BaseModel] = Field(description="The other keys, as the adapter's model read them.")


class Http(Part):
    """Metrics and health over HTTP."""

    enabled: bool = Field(default=True, description="Serve metrics and health at all.")
    listen: Address = Field(default="127.0.0.1:8098", description="Address to listen at, HOST:PORT; port 0 takes a free one.")

    @property
    def host(self) -> str:
        """The host part of `listen`."""
        return split_address(self.listen)[0]

    @property
    def port(self) -> int:
        """The port part of `listen`."""
        return split_address(self.listen)[1]


class Reload(Part):
    """Taking a changed file while running: only what changed is restarted. SIGHUP and `POST /reload` do it at any time."""

    watch: Duration | None = Field(
        default=None,
        ge=0.1,
        description="How often to look whether the file has changed; it is taken when two looks find the same. Null: never.",
    )


class Log(Part):
    """The gateway's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The least severe level written.")
    format: Literal["text", "json"] = Field(default="text", description="`text` for people, `json` one object per line.")


class Config(Part):
    """A whole configuration."""

    clusters: dict[Name, ClusterConfig] = Field(min_length=1, description="The clusters that the gateway is a client of.")
    routes: tuple[Route, ...] = Field(default=(), description="What goes from where to where.")
    state: Path | None = Field(
        default=None,
        description="The checkpoint database, a file that is made when missing; relative to the working directory. "
        "Without it a gap in a source cannot be noticed after a restart.",
    )
    http: Http = Field(default=Http(), description="Metrics and health over HTTP.")
    reload: Reload = Field(default=Reload(), description="Taking a changed file while running.")
    log: Log = Field(default=Log(), description="The gateway's own log.")
    shutdown_timeout: Duration = Field(
        default=30.0, gt=0, description="How long a stopping gateway waits for what is in flight; the rest is delivered again."
    )
