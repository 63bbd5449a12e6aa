"""Options of the gateway's own log."""

from typing import Literal

from pydantic import Field

from mqbridge.config.base import Options


class Log(Options):
    """The gateway's own log, on standard error. A line about the same thing is written at most ten times a minute."""

    level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="The lowest level that is logged.")
    format: Literal["text", "json"] = Field(default="text", description="`text` for people, `json` one object per line.")
