"""Parser of service URLs: `pulsar://a:6650,b:6650` and `pulsar+ssl://a:6651`."""

from typing import NamedTuple

from mqbridge.net.addresses import split_address

DEFAULT_PORT, DEFAULT_TLS_PORT = 6650, 6651
SCHEME = "pulsar://"
TLS_SCHEME = "pulsar+ssl://"


class Address(NamedTuple):
    """Address that a socket connects to."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_service_url(text: str, tls: bool) -> list[Address]:
    """Return the addresses in a service URL. Raises ValueError.

    If `tls` is set, the scheme must be `pulsar+ssl://`, otherwise `pulsar://`. The scheme may be missing, or precede each
    address. An address without a port gets the default port of the scheme.
    """
    scheme, port = (TLS_SCHEME, DEFAULT_TLS_PORT) if tls else (SCHEME, DEFAULT_PORT)
    addresses = []
    for part in text.removeprefix(scheme).split(","):
        address = part.strip().removeprefix(scheme)
        if "://" in address:
            raise ValueError(f"{part.strip()!r} does not begin with {scheme}")
        addresses.append(Address(*split_address(address.rstrip("/"), port)))
    return addresses
