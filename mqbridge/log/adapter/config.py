"""Options of inbounds and outbounds of the embedded log. There are none, so any option in a configuration is an error."""

from pydantic import BaseModel, ConfigDict


class LogInboundOptions(BaseModel):
    """Consuming from a log has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LogOutboundOptions(BaseModel):
    """Producing to a log has no options."""

    model_config = ConfigDict(extra="forbid", frozen=True)
