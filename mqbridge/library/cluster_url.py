"""The addresses that a client is given: the URL of a cluster, `scheme://host:port[,host:port]` or `scheme+ssl://`, and others."""

from collections.abc import Mapping
from typing import NamedTuple

from mqbridge.errors import ConfigError
from mqbridge.net.addresses import AddressMap, AddressMapError, split_address
from mqbridge.net.proxy_url import check_proxy_url
from mqbridge.net.tls.tls import Tls


class ClusterUrl(NamedTuple):
    """The addresses of a cluster, and its TLS settings."""

    addresses: list[tuple[str, int]]
    tls: Tls | None
    """TLS settings of the connections; None without TLS."""


def parse_cluster_url(
    url: str, scheme: str, default_port: int, tls: Tls | None = None, default_tls_port: int | None = None
) -> ClusterUrl:
    """Parse the URL of a cluster. `default_tls_port` None means `default_port`.

    Without `tls`, `scheme+ssl://` trusts the certificate authorities of the platform.
    Raises ConfigError.
    """
    tls_port = default_port if default_tls_port is None else default_tls_port
    url_scheme, separator, address_list = url.partition("://")
    if not separator or url_scheme not in (scheme, f"{scheme}+ssl"):
        shown = f"{url_scheme}://" if separator else url.rpartition("@")[2]  # the part before `@` may be a password
        raise ConfigError(
            f"the URL begins with {shown!r}: write {scheme}://host:{default_port} or {scheme}+ssl://host:{tls_port}"
        )
    is_tls = url_scheme != scheme
    if tls is not None and not is_tls:
        raise ConfigError(f"tls is given, but the URL begins with {scheme}://: write {scheme}+ssl://")
    try:
        addresses = [
            split_address(part.strip().rstrip("/"), tls_port if is_tls else default_port)
            for part in address_list.split(",")
            if part.strip()
        ]
    except ValueError as error:
        raise ConfigError(f"the {scheme}:// URL cannot be used: {error}") from None
    if not addresses:
        raise ConfigError(f"the URL {url!r} has no address: write {url_scheme}://host:{tls_port if is_tls else default_port}")
    return ClusterUrl(addresses, (tls or Tls()) if is_tls else None)


def parse_proxy(url: str | None) -> str | None:
    """Return the address of a forward proxy; None for none. Raises ConfigError."""
    try:
        return None if url is None else check_proxy_url(url)
    except ValueError as error:
        raise ConfigError(f"admin_proxy cannot be used: {error}") from None


def parse_addresses(entries: Mapping[str, str] | None) -> AddressMap:
    """Return the map of advertised to reachable addresses. Raises ConfigError."""
    try:
        return AddressMap(entries)
    except AddressMapError as error:
        raise ConfigError(f"addresses[{error.advertised!r}] cannot be used: {error}") from None
