"""What TLS toward a cluster is set to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mqbridge.secret import Secret

Verify = Literal["full", "authority", "none"]
MinimumVersion = Literal["1.2", "1.3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """All have defaults: the platform's authorities, no certificate of our own, names verified, TLS 1.2 or newer."""

    authorities: Path | None = None
    """PEM file, or folder, with the authorities that servers' certificates are verified by."""
    certificate: Path | None = None
    """Our own, PEM, with the chain up to but without the authority."""
    key: Path | None = None
    """Its key, PEM; None when it is in the certificate's file."""
    key_password: Secret | None = None
    server_name: str | None = None
    """The name that servers' certificates must hold; None is the host that is connected to."""
    minimum_version: MinimumVersion = "1.2"
    verify: Verify = "full"
    """`authority` lets a certificate be of another name, `none` lets in anybody."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Everything that is read."""
        return tuple(path for path in (self.authorities, self.certificate, self.key) if path is not None)
