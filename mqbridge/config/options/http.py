"""Options of the HTTP server."""

from typing import Annotated

from pydantic import Field

from mqbridge.config.base import Name, OneOrMore, Options
from mqbridge.config.units import Address, split_listen_address
from mqbridge.net.secret import Secret


class Http(Options):
    """Metrics and health over HTTP."""

    enabled: bool = Field(default=True, description="Serve metrics and health.")
    listen: Address = Field(default="127.0.0.1:8098", description="Address to listen at, HOST:PORT; port 0 selects a free port.")

    ready_without: Annotated[tuple[Name, ...], OneOrMore] = Field(
        default=(),
        description="Names of clusters whose troubles leave `/health/ready` at 200: routes that wait for them, their outages, "
        "and targets there that are stuck or unprotected are shown, and do not count. For a gateway beside an application in one "
        "pod: the outage of a remote cluster must not take the application out of service.",
    )
    reload_token: Secret | None = Field(
        default=None,
        description="The token by which clients on other machines may reload the configuration: `POST /reload` with the header "
        "`Authorization: Bearer TOKEN`. Without it, only clients on this machine may, that is over a loopback address and not "
        "through a proxy.",
    )

    @property
    def host(self) -> str:
        """The host part of `listen`."""
        return split_listen_address(self.listen)[0]

    @property
    def port(self) -> int:
        """The port part of `listen`."""
        return split_listen_address(self.listen)[1]
