"""Options of reloading."""

from pydantic import Field

from mqbridge.config.base import Options
from mqbridge.config.units import Duration


class Reload(Options):
    """Taking a changed file while running: only what changed is restarted. SIGHUP and `POST /reload` do it at any time."""

    watch: Duration | None = Field(
        default=None,
        ge=0.1,
        description="How often to look whether the file has changed; it is taken when two looks find the same. Null: never.",
    )
