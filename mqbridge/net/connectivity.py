"""Whether the servers of a cluster can be reached, as its connections know; said once per outage, and once when it is over.

A server is missing from the first connection that could not be made to it, or that ended because the server was silent, until it
answers over another one. A connection that was merely lost is no outage: it may be made again at once, and if nobody makes it
again nobody misses it. The servers that a client begins with (`any_of`: name servers, Masters, service addresses) stand in for
each other and are missing when none of them can be reached. What nobody tried to reach for FORGET_S is not needed any more.

        could not be made, silent                  answered
    known  ------------------>  missing  ------------------>  known
                                         not tried for FORGET_S
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from mqbridge.errors import ConnectionLost, Unreachable

log = logging.getLogger(__name__)

MOST_PAUSE_S = 15.0
"""The longest pause between two tries of anybody who needs a server: clients, sessions of routes, a gateway that starts."""
FORGET_S = 60.0
"""Longer than any pause between two tries, with the time that a try takes."""


def level_of(error: Exception, level: int) -> int:
    """How loud to say that something waits because of this error: `level`, but an outage is said once, for its cluster."""
    return logging.DEBUG if isinstance(error, (Unreachable, ConnectionLost)) else level


def address_of(host: str, port: int) -> str:
    """How servers are named here."""
    return f"{host}:{port}"


class Connectivity:
    """Of one cluster. All clients of the cluster share one, and it outlives their connections."""

    def __init__(self, name: str, any_of: Iterable[tuple[str, int]] = ()) -> None:
        self.name = name
        self.failures = 0
        """Connections that could not be made, or ended because the server was silent."""
        self.reconnects = 0
        """Connections to servers that had answered over another one before; several side by side are no reconnects."""
        self.retries = 0
        """Sends that were repeated; counted by the clients."""
        self.admitted = False
        """Whether the cluster has ever let us in: what refuses us from then on may pass."""
        self.missing: dict[str, str] = {}
        """Servers that cannot be reached, and why."""
        self._any_of = [address_of(host, port) for host, port in any_of]
        self._failed: dict[str, str] = {}
        self._tried_at: dict[str, float] = {}
        self._live: dict[str, int] = {}
        """Connections over which something was heard; 0 for a server that answered once."""
        self._away_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def away_s(self) -> float | None:
        """For how many seconds something has been missing; None while nothing is."""
        return None if self._away_at is None else time.monotonic() - self._away_at

    @property
    def reason(self) -> str | None:
        """Why, in a sentence; None while nothing is missing."""
        return "; ".join(self.missing.values()) or None

    def level_of(self, error: Exception, level: int) -> int:
        """The same, where the answers of other servers may be due to the outage too."""
        return logging.DEBUG if self.missing else level_of(error, level)

    # --- told by connections ----------------------------------------------------------------------------------------

    def answered(self, address: str) -> None:
        """The first bytes over a new connection."""
        self.reconnects += self._live.get(address) == 0
        self._live[address] = self._live.get(address, 0) + 1
        self._failed.pop(address, None)
        self._judge("can be reached again")

    def ended(self, address: str) -> None:
        """A connection over which something was heard is over."""
        self._live[address] -= 1

    def failed(self, address: str, error: Exception) -> None:
        """A connection could not be made, or the server was silent."""
        if self._closed:
            return
        self.failures += 1
        self._failed[address] = str(error)
        self._tried_at[address] = time.monotonic()
        self._judge("")
        self._forget_later()

    def close(self) -> None:
        """Its client is being closed: connections that end now say nothing."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def open(self) -> None:
        """A client begins (again); what was missing before may be none of its business."""
        self._closed = False
        if self._failed:
            self._forget_later()

    # --- judging ----------------------------------------------------------------------------------------------------

    def _judge(self, why: str) -> None:
        begins_somewhere = any(address not in self._failed for address in self._any_of)
        self.missing = {
            address: reason for address, reason in self._failed.items() if address not in self._any_of or not begins_somewhere
        }
        if self.missing and self._away_at is None:
            self._away_at = time.monotonic()
            log.warning(
                "cluster %s cannot be reached, trying again with pauses of up to %g s: %s", self.name, MOST_PAUSE_S, self.reason
            )
        elif not self.missing and self._away_at is not None:
            log.info("cluster %s %s after %.1f s", self.name, why, time.monotonic() - self._away_at)
            self._away_at = None

    def _forget_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FORGET_S, self._forget)

    def _forget(self) -> None:
        """Nobody has needed these for a while: the topic moved, or the server was taken out of the cluster."""
        before = time.monotonic() - FORGET_S
        for address in [one for one in self._failed if self._tried_at[one] <= before]:
            del self._failed[address]
        self._judge(f"needs none of its missing servers any more (not tried for {FORGET_S:g} s),")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FORGET_S / 2, self._forget) if self._failed else None


class Link:
    """One connection, as it tells its cluster's connectivity."""

    __slots__ = ("_address", "_connectivity", "_heard")

    def __init__(self, connectivity: Connectivity, host: str, port: int) -> None:
        self._connectivity, self._address, self._heard = connectivity, address_of(host, port), False

    def repeats(self, sends: int) -> None:
        """So many sends that were lost with another connection are sent again over this one."""
        self._connectivity.retries += sends

    @property
    def admitted(self) -> bool:
        """Whether the cluster has ever let us in."""
        return self._connectivity.admitted

    def admit(self) -> None:
        """The server let us in: it took our credentials, or wants none."""
        self._connectivity.admitted = True

    def failed(self, error: Exception) -> None:
        """It could not be made."""
        self._connectivity.failed(self._address, error)

    def heard(self) -> None:
        """The first bytes arrived."""
        self._heard = True
        self._connectivity.answered(self._address)

    def over(self, error: Exception, *, wanted: bool, silent: bool) -> None:
        """It ended: by us (`wanted`), because the server was `silent`, or without a reason that we know."""
        if self._heard:
            self._connectivity.ended(self._address)
        if silent or not (self._heard or wanted):
            self._connectivity.failed(self._address, error)
