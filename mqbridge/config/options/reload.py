"""Options of reloading."""

from pydantic import Field

from mqbridge.config.base import Options
from mqbridge.config.units import Duration


class Reload(Options):
    """Reloading a changed file while running: only changed routes are restarted. SIGHUP and `POST /reload` reload at any time."""

    watch: Duration | None = Field(
        default=None,
        ge=0.1,
        description="Interval of checks for a changed file. A changed file is reloaded when two checks in a row find the same "
        "content. Null means no checks.",
    )
