"""Options of inbounds and outbounds of a log: there are none."""

from pydantic import BaseModel, ConfigDict


class LogInboundOptions(BaseModel):
    """Consuming from a log has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LogOutboundOptions(BaseModel):
    """Producing to a log has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)
