"""TLS settings for connections to a cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mqbridge.net.secret import Secret

Verify = Literal["full", "authority", "none"]
MinimumVersion = Literal["1.2", "1.3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS settings of a cluster. Defaults: the platform's authorities, no client certificate, checked names, TLS 1.2 or newer."""

    authorities: Path | None = None
    """PEM file or folder with the authorities that verify the servers' certificates."""
    certificate: Path | None = None
    """Client certificate, PEM, followed by its chain without the root authority."""
    key: Path | None = None
    """Key of the client certificate, PEM; None if it is in the certificate's file."""
    key_password: Secret | None = None
    """Password of the key; None if the key is not encrypted."""
    server_name: str | None = None
    """The name that the servers' certificates must contain; None means the host of the connection."""
    minimum_version: MinimumVersion = "1.2"
    verify: Verify = "full"
    """`full` checks the authority and the name of a certificate, `authority` accepts any name, `none` accepts any server."""

    @property
    def files(self) -> tuple[Path, ...]:
        """All files that the settings name."""
        return tuple(path for path in (self.authorities, self.certificate, self.key) if path is not None)
