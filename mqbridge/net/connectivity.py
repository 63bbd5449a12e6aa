"""Reachability of a cluster's servers, as reported by its connections; logs the start and the end of each outage once.

A server is missing after a connection to it fails, or is closed because the server sent nothing for too long. It is reachable
again when it responds over another connection. A lost connection alone is no outage: clients may reconnect at once, or not need
it any more.
The bootstrap servers of a client (name servers, Masters, service addresses) replace each other, so they are missing only while
the last connection to each of them has failed. A server that no client has tried to reach for FORGET_S is not needed any more,
and is forgotten.

              connecting failed, silent                 responded
    reachable  ------------------>  missing  ------------------>  reachable
                                             not tried for FORGET_S
                                             ------------------>  forgotten
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from mqbridge.errors import ConnectionLost, Unreachable

log = logging.getLogger(__name__)

MAX_PAUSE_S = 15.0
"""Maximum pause between two attempts to reach a server, by a client, a route, or a gateway during its start."""
FORGET_S = 60.0
"""A missing server is forgotten after this time without an attempt; longer than any pause plus the duration of an attempt."""


def retry_log_level(error: Exception, level: int) -> int:
    """Return the log level for a retry after this error: DEBUG for an outage, which `Connectivity` logs itself; else `level`."""
    return logging.DEBUG if isinstance(error, (Unreachable, ConnectionLost)) else level


def address_of(host: str, port: int) -> str:
    """Return the address by which this module identifies a server."""
    return f"{host}:{port}"


class Connectivity:
    """Reachability of one cluster. All clients of the cluster share one object, and it outlives their connections."""

    def __init__(self, name: str, bootstrap_servers: Iterable[tuple[str, int]] = ()) -> None:
        """`name` is the cluster's name, for the log; `bootstrap_servers` are hosts and ports from the configuration."""
        self.name = name
        self.failures = 0
        """Number of connection attempts that failed, plus connections that were closed because the server was silent."""
        self.reconnects = 0
        """Number of new connections to servers whose earlier connections had all ended; parallel connections do not count."""
        self.retries = 0
        """Number of retried sends; counted by the clients."""
        self.unreplicated = 0
        """Number of messages stored without the flush or replica that the server's settings demand; counted by the clients."""
        self.credentials_accepted = False
        """True once the cluster has accepted our credentials, or needed none; a later rejection is then retried."""
        self.missing: dict[str, str] = {}
        """Error text of each missing server, by address; bootstrap servers are missing only together (see above)."""
        self._bootstrap_servers = [address_of(host, port) for host, port in bootstrap_servers]
        self._errors: dict[str, str] = {}
        """Error text of each server whose last connection failed, by address; a response removes it, and so does `_forget`."""
        self._last_failed_at: dict[str, float] = {}
        """Time of the last failed connection, by address (`time.monotonic`)."""
        self._open_connections: dict[str, int] = {}
        """Number of open connections that have received bytes, by address; 0 after all of them have ended."""
        self._outage_began_at: float | None = None
        """Time at which a server became missing while no other server was (`time.monotonic`); None while none is missing."""
        self._useless_ips: dict[str, set[str]] = {}
        """By server: the IP addresses of its name whose last connection failed without a response. They are tried last."""
        self._forget_timer: asyncio.TimerHandle | None = None
        """Runs `_forget` while `_errors` has entries."""
        self._closed = False
        """True from `close` to the next `open`; failures are then not recorded."""

    @property
    def unreachable_s(self) -> float | None:
        """Duration of the outage in seconds, since its first server became missing; None while none is missing."""
        return None if self._outage_began_at is None else time.monotonic() - self._outage_began_at

    @property
    def reason(self) -> str | None:
        """The errors of the missing servers, joined by semicolons; None while no server is missing."""
        return "; ".join(self.missing.values()) or None

    def retry_log_level(self, error: Exception, level: int) -> int:
        """Return DEBUG during an outage of this cluster: it may be the cause. Else see the function `retry_log_level`."""
        return logging.DEBUG if self.missing else retry_log_level(error, level)

    # --- reported by connections ------------------------------------------------------------------------------------

    def record_response(self, address: str) -> None:
        """Record the first bytes received over a new connection."""
        self.reconnects += self._open_connections.get(address) == 0
        self._open_connections[address] = self._open_connections.get(address, 0) + 1
        self._errors.pop(address, None)
        self._update_missing("can be reached again")

    def record_end(self, address: str) -> None:
        """Record the end of a connection that had received bytes."""
        self._open_connections[address] -= 1

    def record_failure(self, address: str, error: Exception) -> None:
        """Record a connection that could not be made, or that was closed because the server was silent."""
        if self._closed:
            return
        self.failures += 1
        self._errors[address] = str(error)
        self._last_failed_at[address] = time.monotonic()
        self._update_missing("")  # no text: a failure ends no outage
        self._schedule_forgetting()

    def close(self) -> None:
        """Stop recording failures: the cluster's clients are closing, so connections that end now are no outage."""
        self._closed = True
        if self._forget_timer is not None:
            self._forget_timer.cancel()
            self._forget_timer = None

    def open(self) -> None:
        """Record failures again, for new clients. Servers that are already missing are forgotten unless a client tries them."""
        self._closed = False
        if self._errors:
            self._schedule_forgetting()

    # --- several addresses of one name ------------------------------------------------------------------------------

    def record_useless_ip(self, address: str, ip: str) -> None:
        """Record that a connection to this IP address of the server was accepted and not served."""
        self._useless_ips.setdefault(address, set()).add(ip)

    def record_useful_ip(self, address: str, ip: str) -> None:
        """Record that the server responded at this IP address."""
        self._useless_ips.get(address, set()).discard(ip)

    def sort_ips(self, address: str, ips: list[str]) -> list[str]:
        """Return the current IP addresses of a server in the order in which to try them.

        Those that were useless come last. If all were, none is better than another, and all are trusted again.
        """
        useless = self._useless_ips.get(address, set()) & set(ips)
        if len(useless) == len(ips):
            useless = set()
        if useless:
            self._useless_ips[address] = useless
        else:
            self._useless_ips.pop(address, None)
        return sorted(ips, key=lambda ip: ip in useless)

    # --- state ------------------------------------------------------------------------------------------------------

    def _update_missing(self, ending: str) -> None:
        """Compute `missing` anew, and log the start or the end of an outage; `ending` is the log's text for how it ended."""
        is_bootstrap_reachable = any(address not in self._errors for address in self._bootstrap_servers)
        self.missing = {
            address: reason
            for address, reason in self._errors.items()
            if address not in self._bootstrap_servers or not is_bootstrap_reachable
        }
        if self.missing and self._outage_began_at is None:
            self._outage_began_at = time.monotonic()
            log.warning(
                "cluster %s cannot be reached, trying again with pauses of up to %g s: %s", self.name, MAX_PAUSE_S, self.reason
            )
        elif not self.missing and self._outage_began_at is not None:
            log.info("cluster %s %s after an outage of %.1f s", self.name, ending, time.monotonic() - self._outage_began_at)
            self._outage_began_at = None

    def _schedule_forgetting(self) -> None:
        """Start the timer of `_forget`, unless it runs already."""
        if self._forget_timer is None:
            self._forget_timer = asyncio.get_running_loop().call_later(FORGET_S, self._forget)

    def _forget(self) -> None:
        """Forget servers that no client has tried for FORGET_S: their topics moved, or they left the cluster."""
        forget_before = time.monotonic() - FORGET_S
        forgotten = [address for address in self._errors if self._last_failed_at[address] <= forget_before]
        for address in forgotten:
            del self._errors[address]
        self._update_missing(f"no longer needs {', '.join(forgotten)} (not tried for {FORGET_S:g} s)")
        loop = asyncio.get_running_loop()
        # Checks twice per FORGET_S, so a server is forgotten at most FORGET_S / 2 too late.
        self._forget_timer = loop.call_later(FORGET_S / 2, self._forget) if self._errors else None


class Link:
    """Reports the state of one connection to the `Connectivity` of its cluster."""

    __slots__ = ("_address", "_connectivity", "_has_received", "ip")

    def __init__(self, connectivity: Connectivity, host: str, port: int) -> None:
        self._connectivity, self._address = connectivity, address_of(host, port)
        self._has_received = False
        self.ip: str | None = None
        """The IP address of the connection if the server's name has several; else None."""

    def sort_addresses(self, ips: list[str]) -> list[str]:
        """Return the IP addresses of the server's name in the order in which to try them."""
        return self._connectivity.sort_ips(self._address, ips)

    def count_retries(self, sends: int) -> None:
        """Count `sends` sends that are retried over this connection because an earlier connection to the server was lost."""
        self._connectivity.retries += sends

    @property
    def credentials_accepted(self) -> bool:
        """True once the cluster has accepted our credentials, or needed none."""
        return self._connectivity.credentials_accepted

    def record_credentials_accepted(self) -> None:
        """Record that the server accepted our credentials, or needs none."""
        self._connectivity.credentials_accepted = True

    def record_failure(self, error: Exception) -> None:
        """Record that the connection could not be made."""
        if self.ip is not None:
            self._connectivity.record_useless_ip(self._address, self.ip)
        self._connectivity.record_failure(self._address, error)

    def record_received(self) -> None:
        """Record that the first bytes arrived."""
        self._has_received = True
        if self.ip is not None:
            self._connectivity.record_useful_ip(self._address, self.ip)
        self._connectivity.record_response(self._address)

    def record_end(self, error: Exception, *, intended: bool, silent: bool) -> None:
        """Record that the connection ended. `intended`: we closed it; `silent`: the server sent nothing for too long.

        This counts as a failure if the server was silent, or if the connection ended unintended before any bytes arrived.
        """
        if self._has_received:
            self._connectivity.record_end(self._address)
        if silent or not (self._has_received or intended):
            self.record_failure(error)
