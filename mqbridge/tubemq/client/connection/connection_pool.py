"""The connections of one cluster, by address; idle connections are closed."""

import asyncio

from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, spawn
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.client.connection.server_connection import REQUEST_TIMEOUT_S, ServerConnection

IDLE_S = 180.0
"""A connection without requests for this time is closed.

The connections to Masters, and those of consumers to Brokers, carry a heartbeat every 13 s by default, so they are never idle. In
practice, a producer's connection is closed when the producer sends no more messages to this Broker.
"""
IDLE_CHECKS = 4
"""Number of checks for idle connections within `idle_s`."""


class ConnectionPool:
    """The connections of one cluster: one per address, or with `shared=False` one per address and partition.

    Without sharing, the responses for one partition do not wait behind the responses for another.

    timeout_s     seconds for which a server may be silent before the requests to it time out
    idle_s        a connection without requests for this many seconds is closed
    connectivity  records which servers are reachable; None for a new object that only this pool uses
    addresses     where the servers can be reached
    """

    def __init__(
        self,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        tls: Tls | None = None,
        shared: bool = True,
        idle_s: float = IDLE_S,
        connectivity: Connectivity | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        self._addresses = addresses
        self.connectivity = connectivity or Connectivity("tubemq")
        self._home = HomeLoop(f"the client of TubeMQ cluster {self.connectivity.name}")
        self._timeout_s, self._tls = timeout_s, tls
        self._shared, self._idle_s = shared, idle_s
        self._connections: dict[tuple[str, int, str], ServerConnection] = {}
        self._idle_check_task: asyncio.Task[None] | None = None
        self._closed = False

    def connection_to(self, host: str, port: int, partition: str = "") -> ServerConnection:
        """Return the connection to this address, connected or not.

        `partition` is the partition's key as text; it matters only with `shared=False`, and is empty for calls to a Master.

        After `close`, the returned connection never connects, because the pool would not close it any more.
        """
        self._home.check_running()
        key = host, port, "" if self._shared else partition
        connection = self._connections.get(key)
        if connection is None:
            connection = ServerConnection(
                host,
                port,
                timeout_s=self._timeout_s,
                tls=self._tls,
                connectivity=self.connectivity,
                addresses=self._addresses,
                closed=self._closed,
            )
            if self._closed:
                return connection
            self._connections[key] = connection
            if self._idle_check_task is None:
                self._idle_check_task = spawn(self._close_idle_connections(), "tubemq idle connections")
        return connection

    @property
    def is_encrypted(self) -> bool:
        """True if the connections use TLS."""
        return self._tls is not None

    def snapshot(self) -> dict[str, dict[str, int]]:
        """Return the counters of each connection, by "host:port", or by "host:port partition" with `shared=False`."""
        return {
            f"{host}:{port}{' ' + partition if partition else ''}": connection.counters.snapshot()
            for (host, port, partition), connection in self._connections.items()
        }

    async def close(self) -> None:
        """Close all connections; connections returned from now on never connect."""
        self._closed = True
        await cancel(self._idle_check_task)
        self._idle_check_task = None
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(connection.close() for connection in connections.values()))

    async def _close_idle_connections(self) -> None:
        while True:
            await asyncio.sleep(self._idle_s / IDLE_CHECKS)
            for connection in list(self._connections.values()):
                await connection.close_if_idle(self._idle_s)
