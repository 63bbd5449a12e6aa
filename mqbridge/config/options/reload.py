"""Options of reloading."""

from pydantic import Field

from mqbridge.config.base import Options
from mqbridge.config.units import Duration


class Reload(Options):
    """Reloading a changed file while running: only what changed is restarted. SIGHUP and `POST /reload` do it at any time."""

    watch: Duration | None = Field(
        default=None,
        ge=0.1,
        description="Interval of checks for a changed file; it is reloaded when two checks find the same content. Null: never.",
    )
