"""TLS of one cluster: the SSL context of new connections, made anew when its files change, and the expiry of certificates.

The old context stays in use if the new files are unusable: a certificate and its key are seldom written at the same moment.
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

OWN = "own certificate"
MAX_SEEN = 1000
"""Maximum number of servers whose certificates are remembered."""
_Stamp = tuple[tuple[int, int, int] | None, ...]


class HasExtraInfo(Protocol):
    """An asyncio transport."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return `ssl_object`, among others."""


class Tls:
    """TLS state shared by all connections to one cluster."""

    def __init__(self, settings: TlsSettings | None = None, *, name: str = "") -> None:
        """`name` is the cluster's name, for the log."""
        self.settings = settings or TlsSettings()
        self._name = name
        self._context: ssl.SSLContext | None = None
        self._stamp: _Stamp = ()
        self._expiries: dict[str, float] = {}
        if self.settings.verify != "full":
            log.warning("cluster %s: %s", name, _LAX[self.settings.verify])

    async def context(self) -> ssl.SSLContext:
        """Return the context for a new connection.

        Raises ClusterError (FATAL), which names the option, if the files are unusable and there is no earlier context.
        """
        stamp = _stamp(self.settings.files)
        if self._context is not None and stamp == self._stamp:
            return self._context
        try:
            context = await make_context(self.settings)
        except ClusterError as error:
            if self._context is None:
                raise
            log.warning("cluster %s: the changed TLS files are not used: %s", self._name, error)
            return self._context
        if self._context is not None:
            log.info("cluster %s: the TLS files changed, new connections use them", self._name)
        self._context, self._stamp = context, stamp
        if self.settings.certificate is not None:
            with contextlib.suppress(OSError, ValueError):  # it is being written now: the next connection tries again
                self._expiries[OWN] = _expiry_of(self.settings.certificate)
        return context

    def server_name(self, host: str) -> str:
        """Return the name that this host's certificate must contain."""
        return self.settings.server_name or host

    # --- expiry -----------------------------------------------------------------------------------------------------

    def met(self, address: str, transport: HasExtraInfo) -> None:
        """Record the expiry of the server's certificate, when a connection was made."""
        connection = transport.get_extra_info("ssl_object")
        if isinstance(connection, (ssl.SSLObject, ssl.SSLSocket)) and (raw := connection.getpeercert(binary_form=True)):
            name = f"certificate of {address}"
            self._expiries.pop(name, None)
            while len(self._expiries) >= MAX_SEEN:
                self._expiries.pop(next(one for one in self._expiries if one != OWN))
            with contextlib.suppress(ValueError):  # stricter than OpenSSL, which accepted it
                from cryptography import x509  # noqa: PLC0415 - 7 MB, not needed without TLS

                self._expiries[name] = x509.load_der_x509_certificate(raw).not_valid_after_utc.timestamp()

    @property
    def expiries(self) -> Mapping[str, float]:
        """Expiry times of certificates, s since the epoch: `own certificate`, `certificate of HOST:PORT`."""
        return self._expiries


_LAX = {
    "none": "tls.verify is `none`: ANYBODY on the way can read and change all, credentials too: for laboratories only",
    "authority": "tls.verify is `authority`: any server with a certificate of the authorities is taken for this cluster's",
}


def _stamp(paths: tuple[Path, ...]) -> _Stamp:
    """Return a value that changes when one of the files does; a folder's mtime changes with its entries."""

    def one(path: Path) -> tuple[int, int, int] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    return tuple(map(one, paths))


def _expiry_of(certificate: Path) -> float:
    """Return the expiry of the first certificate of the file; the chain after it is not ours."""
    from cryptography import x509  # noqa: PLC0415 - as above

    return x509.load_pem_x509_certificates(certificate.read_bytes())[0].not_valid_after_utc.timestamp()
