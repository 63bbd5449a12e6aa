"""How a connection says who it is. A method gives its name and, whenever asked, its current credentials."""

from typing import Protocol


class Auth(Protocol):
    """An authentication method."""

    method: str
    """The name that brokers know it by."""

    def credentials(self) -> bytes:
        """What CONNECT carries now; asked again when the broker wants fresh ones."""


class NoAuth:
    """For brokers that let everybody in."""

    method = "none"

    def credentials(self) -> bytes:
        """Nothing."""
        return b""


NO_AUTH = NoAuth()
