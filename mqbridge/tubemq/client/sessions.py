"""The sessions of one cluster, by address; a connection that nothing was sent over for a while is closed without a word."""

import asyncio

from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tasks import cancel, spawn
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.client.session import REQUEST_TIMEOUT_S, Session

IDLE_S = 180.0
"""Consumers and registered producers speak to their servers every 13 s, so only Brokers that get no messages go idle."""
IDLE_LOOKS = 4
"""How often in that time it is looked at."""


class Sessions:
    """One session for each address, shared by all, or with `shared=False` one for each partition too.

    A connection of its own keeps a partition's answers from queuing behind another's, at the price of as many connections.
    """

    def __init__(
        self,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        tls: Tls | None = None,
        shared: bool = True,
        idle_s: float = IDLE_S,
        connectivity: Connectivity | None = None,
    ) -> None:
        self.connectivity = connectivity or Connectivity("tubemq")
        self._timeout_s, self._tls, self._shared, self._idle_s = timeout_s, tls, shared, idle_s
        self._sessions: dict[tuple[str, int, str], Session] = {}
        self._reclaiming: asyncio.Task[None] | None = None
        self._closed = False

    def to(self, host: str, port: int, partition: str = "") -> Session:
        """The session of this address, connected or not; `partition` names what it is for, where sessions are not shared.

        After `close` it is one that never connects: nobody would close it.
        """
        key = host, port, "" if self._shared else partition
        session = self._sessions.get(key)
        if session is None:
            session = Session(
                host, port, timeout_s=self._timeout_s, tls=self._tls, connectivity=self.connectivity, closed=self._closed
            )
            if self._closed:
                return session
            self._sessions[key] = session
            if self._reclaiming is None:
                self._reclaiming = spawn(self._reclaim(), "tubemq idle connections")
        return session

    @property
    def is_encrypted(self) -> bool:
        """Whether the servers are reached by TLS."""
        return self._tls is not None

    def snapshot(self) -> dict[str, dict[str, int]]:
        """The counters of every session, by address and by the partition that it is for."""
        return {
            f"{host}:{port}{' ' + partition if partition else ''}": session.counters.snapshot()
            for (host, port, partition), session in self._sessions.items()
        }

    async def close(self) -> None:
        """Close all of them, and those that are asked for later."""
        self._closed = True
        await cancel(self._reclaiming)
        self._reclaiming = None
        sessions, self._sessions = self._sessions, {}
        await asyncio.gather(*(session.close() for session in sessions.values()))

    async def _reclaim(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / IDLE_LOOKS)
            for session in list(self._sessions.values()):
                await session.reclaim(self._idle_s)
