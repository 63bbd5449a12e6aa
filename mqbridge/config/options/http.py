"""Options of the HTTP server."""

from pydantic import Field

from mqbridge.config.base import Options
from mqbridge.config.units import Address, split_listen_address


class Http(Options):
    """Metrics and health over HTTP."""

    enabled: bool = Field(default=True, description="Serve metrics and health.")
    listen: Address = Field(default="127.0.0.1:8098", description="Address to listen at, HOST:PORT; port 0 selects a free port.")

    @property
    def host(self) -> str:
        """The host part of `listen`."""
        return split_listen_address(self.listen)[0]

    @property
    def port(self) -> int:
        """The port part of `listen`."""
        return split_listen_address(self.listen)[1]
