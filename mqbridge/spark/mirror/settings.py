"""The settings of a mirror, as given on the command line."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from mqbridge.adapter.inbound import Start
from mqbridge.config.options.config import Config
from mqbridge.config.options.route import Route
from mqbridge.config.problems import nearest
from mqbridge.errors import ConfigError

Through = Literal["pump", "rows"]
"""How messages move from the source to the targets, see `MirrorSettings.through`."""
DEFAULT_BATCH_BYTES = 256 << 20
"""A batch of this size takes a second or more. Every batch costs Spark a third of a second, whatever its size."""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """The settings of one run of `mqbridge spark mirror`."""

    file: Path
    """The configuration file."""
    checkpoint: str
    """The checkpoint folder: a path or a URL."""
    routes: tuple[str, ...] = ()
    """Names of the routes to mirror; empty for all."""
    through: Through = "pump"
    """`pump`: tasks copy messages from cluster to cluster, Spark sees only ranges. `rows`: Spark passes messages as rows."""
    follow: bool = True
    """Continue with new messages. False: stop at the positions where the source ended when the mirror started."""
    start: Start | int | None = None
    """Where a route without checkpoint begins: earliest, latest, or a time in ms since 1970. None: the route's own `start`."""
    batch_bytes: int = DEFAULT_BATCH_BYTES
    """Limit of the bytes that one batch of a route reads."""
    master: str | None = None
    """The URL of the Spark master. None: the master of `spark-submit`, else all cores of this machine."""
    conf: Mapping[str, str] = field(default_factory=dict)
    """Additional settings of Spark, by name."""
    metrics: tuple[str, int] | None = None
    """Host and port to serve metrics on; None to serve none."""
    quiet: bool = True
    """Whether Spark's own log shows only errors. False: as much as Spark is configured to log."""


def select_routes(config: Config, names: tuple[str, ...]) -> list[Route]:
    """Return the routes with these names, or all routes if `names` is empty. Raises ConfigError if a route cannot be mirrored."""
    if not config.routes:
        raise ConfigError("the configuration has no routes to mirror")
    by_name = {route.name: route for route in config.routes}
    for name in names:
        if name not in by_name:
            raise ConfigError(f"there is no route {name!r}", hint=nearest(name, by_name))
    selected = [route for route in config.routes if not names or route.name in names]
    for route in selected:
        if not route.delivery.stamp_origin:
            raise ConfigError(
                f"route {route.name!r}: a mirror finds stored messages by their origins, but `stamp_origin` is off",
                hint="Remove delivery.stamp_origin: false, or use `mqbridge run`",
            )
    return selected
