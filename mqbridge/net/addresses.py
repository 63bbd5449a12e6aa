"""Addresses as text, `host:port`, and the map from the addresses that servers advertise to those that can be reached from here.

Behind NAT, in Docker, or through `kubectl port-forward`, brokers report addresses that exist only in their own network. The map
is applied where a connection is made and nowhere else: the name in a certificate, for example, is the advertised one.
"""

import difflib
import logging
from collections.abc import Iterator, Mapping
from typing import NamedTuple

log = logging.getLogger(__name__)

_SOME_PORT = 1
"""Stands for a missing port while an address is split."""


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Split `host:port`, `host` or `[IPv6]:port` into host and port; without a port, it is `default_port`.

    Raises ValueError if the host is empty, the port is not a number from 1 to 65535, or the address contains a user.
    """
    host, _, port = address.rpartition(":") if _has_port(address) else (address, "", "")
    if "@" in address:  # not shown: it may be a password
        raise ValueError("an address must not contain a user or a password: give credentials as `auth`")
    number = default_port if not port else int(port) if port.isdecimal() else 0
    if not host or not 0 < number < 65536:
        raise ValueError(f"{address!r} is not host:port, with a port from 1 to 65535")
    return host.strip("[]"), number


def _has_port(address: str) -> bool:
    return ":" in address.rsplit("]", 1)[-1]  # the colons of an IPv6 address are inside its brackets


class HostPort(NamedTuple):
    """One side of an entry: a host, with a port or for all ports."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "HostPort":
        """Parse `host:port` or `host`. Raises ValueError."""
        host, port = split_address(text.strip(), _SOME_PORT)
        if "/" in text:
            raise ValueError(f"{text!r} is not host:port or host: leave out the scheme and the path")
        if ":" in host and "[" not in text:
            raise ValueError(f"{text!r} is not host:port or host: write an IPv6 address in brackets")
        if text.rstrip().endswith(":"):
            raise ValueError(f"{text!r} has no port after its colon")
        return cls(host, port if _has_port(text.strip()) else None)


class AddressMap:
    """Reachable addresses by the advertised ones, both `host:port`, or both `host` for all ports of a host.

    An entry with a port takes precedence over one without. Host names are compared without regard to case. A reachable address is
    not looked up again.
    """

    def __init__(self, entries: Mapping[str, str] | None = None) -> None:
        """Raises AddressMapError for the first wrong entry."""
        self.entries = dict(entries or {})
        """The entries as they were given."""
        self._reachable: dict[HostPort, HostPort] = {}
        for advertised, reachable in self.entries.items():
            try:
                self._add(advertised, reachable)
            except ValueError as error:
                raise AddressMapError(advertised, str(error)) from None
        self._used: set[HostPort] = set()
        """The entries that a connection has needed, by their advertised address."""

    def _add(self, advertised: str, reachable: str) -> None:
        key, value = HostPort.parse(advertised), HostPort.parse(reachable)
        if (key.port is None) is not (value.port is None):
            raise ValueError(f"{advertised!r} and {reachable!r}: give a port on both sides, or on neither")
        key = key._replace(host=key.host.lower())
        if key in self._reachable:
            raise ValueError(f"{advertised!r} is there twice, in another spelling")
        self._reachable[key] = value

    def __bool__(self) -> bool:
        return bool(self._reachable)

    def __eq__(self, other: object) -> bool:
        return self._reachable == other._reachable if isinstance(other, AddressMap) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self._reachable.items()))

    def __repr__(self) -> str:
        return f"AddressMap({self.entries!r})"

    def reachable(self, host: str, port: int) -> tuple[str, int]:
        """Return the host and the port to connect to for these advertised ones; the same without an entry."""
        for key in (HostPort(host.lower(), port), HostPort(host.lower(), None)):
            if (found := self._reachable.get(key)) is not None:
                self._used.add(key)
                return found.host, port if found.port is None else found.port
        return host, port

    def describe(self, host: str, port: int) -> str:
        """Return `host:port`, and where that is reached if there is an entry, for errors."""
        reachable = self.reachable(host, port)
        return f"{host}:{port}" if reachable == (host, port) else f"{host}:{port} (at {HostPort(*reachable)})"

    def hint(self, host: str, port: int) -> str:
        """Return the end of the error for an address that was not reached: no entry, and a similar one; else an empty text."""
        if not self or self.reachable(host, port) != (host, port):
            return ""
        names = [str(key) for key in self._reachable]
        near = difflib.get_close_matches(f"{host.lower()}:{port}", names, n=1)
        return f"; `addresses` has no entry for it{f', but one for {near[0]!r}' if near else ''}"

    def unused(self) -> Iterator[str]:
        """Yield the advertised addresses that no connection has needed yet."""
        yield from (str(key) for key in self._reachable if key not in self._used)

    def log_unused(self, cluster: str) -> None:
        """Log the entries that the closed cluster has not needed: they may be misspelt."""
        if unused := ", ".join(self.unused()):
            log.info("cluster %s: these entries of `addresses` were not needed, no server had their names: %s", cluster, unused)


class AddressMapError(ValueError):
    """A wrong entry; `advertised` is its key."""

    def __init__(self, advertised: str, problem: str) -> None:
        super().__init__(problem)
        self.advertised = advertised


DIRECT = AddressMap()
"""The map of a cluster whose addresses can be reached as they are."""
