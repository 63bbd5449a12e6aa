"""The options of a log's two ends: there are none."""

from pydantic import BaseModel, ConfigDict


class LogInboundOptions(BaseModel):
    """Nothing to set when consuming from a log."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LogOutboundOptions(BaseModel):
    """Nothing to set when producing to a log."""

    model_config = ConfigDict(extra="forbid", frozen=True)
