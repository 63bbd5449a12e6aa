"""Reachability of a cluster's servers, as reported by its connections; logs the start and the end of each outage once.

A server is missing after a connection to it fails, or is closed because the server is silent. It is known again when it responds
over another connection. A lost connection alone is no outage: it may be made again at once, or not be needed any more.
The bootstrap servers of a client (`any_of`: name servers, Masters, service addresses) replace each other, so they are missing
only while none of them is reachable. A server that no client has tried to reach for FORGET_S is not needed any more.

        connecting failed, silent                  responded
    known  ------------------>  missing  ------------------>  known
                                         not tried for FORGET_S
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from mqbridge.errors import ConnectionLost, Unreachable

log = logging.getLogger(__name__)

MAX_PAUSE_S = 15.0
"""The longest pause between two attempts to reach a needed server, by a client, a route or a gateway that starts."""
FORGET_S = 60.0
"""Longer than any pause between two attempts, plus the time of an attempt."""


def level_of(error: Exception, level: int) -> int:
    """Return the level for logging a retry after this error: DEBUG for an outage, which `Connectivity` logs; else `level`."""
    return logging.DEBUG if isinstance(error, (Unreachable, ConnectionLost)) else level


def address_of(host: str, port: int) -> str:
    """Return the address by which this module identifies a server."""
    return f"{host}:{port}"


class Connectivity:
    """Reachability of one cluster. All clients of the cluster share one object, and it outlives their connections."""

    def __init__(self, name: str, any_of: Iterable[tuple[str, int]] = ()) -> None:
        self.name = name
        self.failures = 0
        """Number of connections that could not be made, or were closed because the server was silent."""
        self.reconnects = 0
        """Number of connections to servers whose earlier connections had all ended; parallel connections do not count."""
        self.retries = 0
        """Number of retried sends; counted by the clients."""
        self.admitted = False
        """True if the cluster has ever accepted our credentials; then a later rejection may be transient."""
        self.missing: dict[str, str] = {}
        """Unreachable servers, with the reason."""
        self._any_of = [address_of(host, port) for host, port in any_of]
        self._failed: dict[str, str] = {}
        self._tried_at: dict[str, float] = {}
        self._live: dict[str, int] = {}
        """Open connections that have received bytes, by server; 0 once all of them have ended."""
        self._away_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def unreachable_s(self) -> float | None:
        """Seconds since a server became unreachable; None while none is missing."""
        return None if self._away_at is None else time.monotonic() - self._away_at

    @property
    def reason(self) -> str | None:
        """The errors of the missing servers, joined by semicolons; None while no server is missing."""
        return "; ".join(self.missing.values()) or None

    def level_of(self, error: Exception, level: int) -> int:
        """Return DEBUG during an outage of this cluster, which may be the cause of any error; else as the function `level_of`."""
        return logging.DEBUG if self.missing else level_of(error, level)

    # --- reported by connections ------------------------------------------------------------------------------------

    def answered(self, address: str) -> None:
        """Record the first bytes received over a new connection."""
        self.reconnects += self._live.get(address) == 0
        self._live[address] = self._live.get(address, 0) + 1
        self._failed.pop(address, None)
        self._update("can be reached again")

    def ended(self, address: str) -> None:
        """Record the end of a connection that had received bytes."""
        self._live[address] -= 1

    def failed(self, address: str, error: Exception) -> None:
        """Record a connection that could not be made, or whose server was silent."""
        if self._closed:
            return
        self.failures += 1
        self._failed[address] = str(error)
        self._tried_at[address] = time.monotonic()
        self._update("")
        self._forget_later()

    def close(self) -> None:
        """Stop recording failures: the client is closing, so connections that end now are no outage."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def open(self) -> None:
        """Start recording for a new client; servers that were missing before are forgotten unless this client tries them."""
        self._closed = False
        if self._failed:
            self._forget_later()

    # --- state ------------------------------------------------------------------------------------------------------

    def _update(self, why: str) -> None:
        has_bootstrap = any(address not in self._failed for address in self._any_of)
        self.missing = {
            address: reason for address, reason in self._failed.items() if address not in self._any_of or not has_bootstrap
        }
        if self.missing and self._away_at is None:
            self._away_at = time.monotonic()
            log.warning(
                "cluster %s cannot be reached, trying again with pauses of up to %g s: %s", self.name, MAX_PAUSE_S, self.reason
            )
        elif not self.missing and self._away_at is not None:
            log.info("cluster %s %s after %.1f s", self.name, why, time.monotonic() - self._away_at)
            self._away_at = None

    def _forget_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FORGET_S, self._forget)

    def _forget(self) -> None:
        """Forget servers that no client has tried for FORGET_S: the topic moved, or the server left the cluster."""
        oldest = time.monotonic() - FORGET_S
        for address in [address for address in self._failed if self._tried_at[address] <= oldest]:
            del self._failed[address]
        self._update(f"needs none of its missing servers any more (not tried for {FORGET_S:g} s),")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FORGET_S / 2, self._forget) if self._failed else None


class Link:
    """Reports the state of one connection to the `Connectivity` of its cluster."""

    __slots__ = ("_address", "_connectivity", "_heard")

    def __init__(self, connectivity: Connectivity, host: str, port: int) -> None:
        self._connectivity, self._address, self._heard = connectivity, address_of(host, port), False

    def repeats(self, sends: int) -> None:
        """Count sends that are retried over this connection because an earlier connection was lost."""
        self._connectivity.retries += sends

    @property
    def admitted(self) -> bool:
        """True if the cluster has ever accepted our credentials."""
        return self._connectivity.admitted

    def admit(self) -> None:
        """Record that the server accepted our credentials, or needs none."""
        self._connectivity.admitted = True

    def failed(self, error: Exception) -> None:
        """Record that the connection could not be made."""
        self._connectivity.failed(self._address, error)

    def record_received(self) -> None:
        """Record that the first bytes arrived."""
        self._heard = True
        self._connectivity.answered(self._address)

    def ended(self, error: Exception, *, wanted: bool, silent: bool) -> None:
        """Record that the connection ended: by us (`wanted`), because the server was `silent`, or for an unknown reason."""
        if self._heard:
            self._connectivity.ended(self._address)
        if silent or not (self._heard or wanted):
            self._connectivity.failed(self._address, error)
