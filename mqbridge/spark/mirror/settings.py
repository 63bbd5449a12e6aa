"""What a mirror is asked to do, as the command line says it."""

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
BATCH_BYTES = 256 << 20
"""A batch costs Spark a third of a second whatever is in it: this is a second of work or more."""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """One run of `mqbridge spark mirror`."""

    file: Path
    checkpoint: str
    routes: tuple[str, ...] = ()
    """By name; none named: all."""
    through: Through = "pump"
    follow: bool = True
    """Go on with what comes, instead of ending where the source ended at the start."""
    start: Start | int | None = None
    """Where a route begins that has no checkpoint: an end, or a time in ms; None is what the route's own `start` says."""
    batch_bytes: int = BATCH_BYTES
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    metrics: tuple[str, int] | None = None
    """Host and port."""
    quiet: bool = True
    """Spark's own log shows errors only."""


def chosen_routes(config: Config, names: tuple[str, ...]) -> list[Route]:
    """The routes of these names, or all. Raises ConfigError."""
    if not config.routes:
        raise ConfigError("the configuration has no routes to mirror")
    known = {route.name: route for route in config.routes}
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no route {name!r}", hint=nearest(name, known))
    chosen = [route for route in config.routes if not names or route.name in names]
    for route in chosen:
        if not route.delivery.stamp_origin:
            raise ConfigError(
                f"route {route.name!r}: a mirror is told by the origins of messages what is stored, and `stamp_origin` is off",
                hint="Remove delivery.stamp_origin: false, or use `mqbridge run`",
            )
    return chosen
