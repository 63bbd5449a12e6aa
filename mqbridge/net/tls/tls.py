"""TLS of one cluster: the context that new connections use, made anew when its files change, and whose certificates end when.

A context is kept when the files that replace it cannot be used: a certificate and its key are seldom written at the same moment.
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
"""Most servers whose certificates are remembered."""
_Stamp = tuple[tuple[int, int, int] | None, ...]


class HasExtraInfo(Protocol):
    """A transport."""

    def get_extra_info(self, name: str, default: object = None) -> object:
        """`ssl_object` among others."""


class Tls:
    """Shared by all connections to one cluster."""

    def __init__(self, settings: TlsSettings | None = None, *, name: str = "") -> None:
        """`name` is the cluster's, for the log."""
        self.settings = settings or TlsSettings()
        self._name = name
        self._context: ssl.SSLContext | None = None
        self._stamp: _Stamp = ()
        self._expiries: dict[str, float] = {}
        if self.settings.verify != "full":
            log.warning("cluster %s: %s", name, _LAX[self.settings.verify])

    async def context(self) -> ssl.SSLContext:
        """What a new connection uses.

        Raises ClusterError (FATAL), which names the option, when the files cannot be used and never could.
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
            with contextlib.suppress(OSError, ValueError):  # it changes at this very moment: the next connection looks again
                self._expiries[OWN] = _expiry_of(self.settings.certificate)
        return context

    def server_name(self, host: str) -> str:
        """The name that this host's certificate must hold."""
        return self.settings.server_name or host

    # --- expiry -----------------------------------------------------------------------------------------------------

    def met(self, address: str, transport: HasExtraInfo) -> None:
        """A connection was made: note when the server's certificate ends."""
        connection = transport.get_extra_info("ssl_object")
        if isinstance(connection, (ssl.SSLObject, ssl.SSLSocket)) and (raw := connection.getpeercert(binary_form=True)):
            name = f"certificate of {address}"
            self._expiries.pop(name, None)
            while len(self._expiries) >= MAX_SEEN:
                self._expiries.pop(next(one for one in self._expiries if one != OWN))
            with contextlib.suppress(ValueError):  # stricter than OpenSSL, which took it
                from cryptography import x509  # noqa: PLC0415 - 7 MB, of no use to who speaks no TLS

                self._expiries[name] = x509.load_der_x509_certificate(raw).not_valid_after_utc.timestamp()

    @property
    def expiries(self) -> Mapping[str, float]:
        """When certificates end, s since the epoch: `own certificate`, `certificate of HOST:PORT`."""
        return self._expiries


_LAX = {
    "none": "tls.verify is `none`: ANYBODY on the way can read and change all, credentials too: for laboratories only",
    "authority": "tls.verify is `authority`: any server with a certificate of the authorities is taken for this cluster's",
}


def _stamp(paths: tuple[Path, ...]) -> _Stamp:
    """What changes when one of the files does; a folder's own time changes with its entries."""

    def one(path: Path) -> tuple[int, int, int] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino

    return tuple(map(one, paths))


def _expiry_of(certificate: Path) -> float:
    """When the first certificate of the file ends; the chain behind it is somebody else's."""
    from cryptography import x509  # noqa: PLC0415 - as above

    return x509.load_pem_x509_certificates(certificate.read_bytes())[0].not_valid_after_utc.timestamp()
