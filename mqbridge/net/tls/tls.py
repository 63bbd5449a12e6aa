"""TLS of one cluster: the SSL context for new connections, and the expiry times of certificates.

A new context is made when the TLS files change. The old context stays in use while the new files are unusable: a certificate and
its key are seldom written at the same moment.
"""

import contextlib
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from mqbridge.errors import ClusterError
from mqbridge.net.tls.context import make_context
from mqbridge.net.tls.settings import TlsSettings

log = logging.getLogger(__name__)

OWN_CERTIFICATE = "own certificate"
"""Key of the client certificate in `Tls.expiries`."""
MAX_CERTIFICATES = 1000
"""Maximum number of certificates whose expiry is stored; the oldest are forgotten."""
_FileStamps = tuple[tuple[int, int, int] | None, ...]
"""Modification time (ns), size and inode of each TLS file; None for a missing file."""


class HasExtraInfo(Protocol):
    """The part of an asyncio transport that is used here."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return information about the connection by name; only `ssl_object` is used."""


class Tls:
    """TLS state shared by all connections to one cluster."""

    def __init__(self, settings: TlsSettings | None = None, *, name: str = "") -> None:
        """`settings` None means the defaults of TlsSettings; `name` is the cluster's name, for the log."""
        self.settings = settings or TlsSettings()
        self._name = name
        self._context: ssl.SSLContext | None = None
        self._stamps: _FileStamps = ()
        """The stamps of the files from which `_context` was made."""
        self._expiries: dict[str, float] = {}
        """See `expiries`; in the order in which the server certificates were last recorded, oldest first."""
        if self.settings.verify != "full":
            log.warning(
                "cluster %s: server certificates are not fully checked: %s", name, _WEAK_CHECK_WARNINGS[self.settings.verify]
            )

    async def context(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        Raises ClusterError (FATAL), which names the option, if the files are unusable and there is no earlier context.
        """
        stamps = _file_stamps(self.settings.files)
        if self._context is not None and stamps == self._stamps:
            return self._context
        try:
            context = await make_context(self.settings)
        except ClusterError as error:
            if self._context is None:
                raise
            log.warning(
                "cluster %s: the changed TLS files cannot be used, new connections use the earlier ones: %s", self._name, error
            )
            return self._context
        if self._context is not None:
            log.info("cluster %s: the TLS files changed, new connections use them", self._name)
        self._context, self._stamps = context, stamps
        if self.settings.certificate is not None:
            with contextlib.suppress(OSError, ValueError):  # the file is being replaced: the next changed stamp reads it again
                self._expiries[OWN_CERTIFICATE] = _expiry_of(self.settings.certificate)
        return context

    def server_name(self, host: str) -> str:
        """Return the name that this host's certificate must contain."""
        return self.settings.server_name or host

    # --- expiry -----------------------------------------------------------------------------------------------------

    def record_server_certificate(self, address: str, transport: HasExtraInfo) -> None:
        """Record the expiry of the certificate that the server at `address` presented on a new connection."""
        connection = transport.get_extra_info("ssl_object")
        if isinstance(connection, (ssl.SSLObject, ssl.SSLSocket)) and (der := connection.getpeercert(binary_form=True)):
            name = f"certificate of {address}"
            self._expiries.pop(name, None)
            while len(self._expiries) >= MAX_CERTIFICATES:
                self._expiries.pop(next(oldest for oldest in self._expiries if oldest != OWN_CERTIFICATE))
            with contextlib.suppress(ValueError):  # cryptography rejects some certificates that OpenSSL accepts
                from cryptography import x509  # noqa: PLC0415 - 7 MB, not needed without TLS

                self._expiries[name] = x509.load_der_x509_certificate(der).not_valid_after_utc.timestamp()

    @property
    def expiries(self) -> Mapping[str, float]:
        """Expiry times in seconds since the epoch, by name: `own certificate`, `certificate of HOST:PORT`."""
        return self._expiries


_WEAK_CHECK_WARNINGS = {
    "none": "tls.verify is `none`: ANYONE on the network path can read and change data and credentials; use it for tests only",
    "authority": "tls.verify is `authority`: any server with a certificate from these authorities can pose as this cluster",
}


def _file_stamps(paths: tuple[Path, ...]) -> _FileStamps:
    """Return a stamp per path. It changes when the file changes; for a folder, when a file in it is added or removed."""

    def file_stamp(path: Path) -> tuple[int, int, int] | None:
        try:
            stat = path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    return tuple(map(file_stamp, paths))


def _expiry_of(certificate: Path) -> float:
    """Return the expiry, in seconds since the epoch, of the first certificate in the file: our own, before its chain."""
    from cryptography import x509  # noqa: PLC0415 - 7 MB, not needed without TLS

    return x509.load_pem_x509_certificates(certificate.read_bytes())[0].not_valid_after_utc.timestamp()
