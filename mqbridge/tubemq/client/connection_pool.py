"""The connections of one cluster, by address; idle connections are closed."""

import asyncio

from mqbridge.net.connectivity import Connectivity
from mqbridge.net.tasks import cancel, spawn
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.client.server_connection import REQUEST_TIMEOUT_S, ServerConnection

IDLE_S = 180.0
"""Consumers and registered producers send heartbeats every 13 s, so only connections to Brokers without messages become idle."""
IDLE_CHECKS = 4
"""Checks for idle connections per IDLE_S."""


class ConnectionPool:
    """One shared connection per address, or with `shared=False` one per address and partition.

    Without sharing, a partition's responses do not queue behind the responses for another partition.
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
        self._connections: dict[tuple[str, int, str], ServerConnection] = {}
        self._reclaiming: asyncio.Task[None] | None = None
        self._closed = False

    def to(self, host: str, port: int, partition: str = "") -> ServerConnection:
        """Return the connection object for this address, connected or not; `partition` matters only with `shared=False`.

        After `close`, return a connection that never connects, because the pool would not close it.
        """
        key = host, port, "" if self._shared else partition
        connection = self._connections.get(key)
        if connection is None:
            connection = ServerConnection(
                host, port, timeout_s=self._timeout_s, tls=self._tls, connectivity=self.connectivity, closed=self._closed
            )
            if self._closed:
                return connection
            self._connections[key] = connection
            if self._reclaiming is None:
                self._reclaiming = spawn(self._reclaim(), "tubemq idle connections")
        return connection

    @property
    def is_encrypted(self) -> bool:
        """True if the connections use TLS."""
        return self._tls is not None

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Return the counters of every connection, by address and partition."""
        return {
            f"{host}:{port}{' ' + partition if partition else ''}": connection.counters.snapshot()
            for (host, port, partition), connection in self._connections.items()
        }

    async def close(self) -> None:
        """Close all connections; connections returned from now on never connect."""
        self._closed = True
        await cancel(self._reclaiming)
        self._reclaiming = None
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(connection.close() for connection in connections.values()))

    async def _reclaim(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / IDLE_CHECKS)
            for connection in list(self._connections.values()):
                await connection.reclaim(self._idle_s)
