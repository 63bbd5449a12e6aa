"""One shared connection per address, opened on demand and replaced when lost.

A new connection is used only after its greeting, a heartbeat: a broker knows the groups of a client only from heartbeats over the
same connection.
"""

import asyncio
from collections.abc import Awaitable, Callable

from mqbridge.errors import ClusterError, ConnectionLost, Failure, Unreachable
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.connectivity import Connectivity
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, is_cancelled, mark_error_retrieved, spawn
from mqbridge.net.tls.tls import Tls
from mqbridge.rocketmq.client.connection.connection import CONNECT_TIMEOUT_S, Connection, OnLost, OnRequest, open_connection
from mqbridge.rocketmq.client.connection.credentials import Credentials

Greet = Callable[[Connection], Awaitable[None]]
"""Sends the first heartbeat over a new connection; name servers get none. If this fails, the connection is closed."""


class ConnectionPool:
    """The connections of one client, to name servers and brokers.

    `on_request` gets the requests of brokers. `on_lost` is called when a connection is lost that `get` would have returned: not
    a retired one, and not after `close`.
    """

    def __init__(
        self,
        on_request: OnRequest,
        on_lost: OnLost,
        greet: Greet,
        *,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        connectivity: Connectivity | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        self._addresses = addresses
        self.connectivity = connectivity or Connectivity("rocketmq")
        self._home = HomeLoop(f"the client of RocketMQ cluster {self.connectivity.name}")
        self._on_request, self._on_lost, self._greet = on_request, on_lost, greet
        self._tls, self._credentials, self._connect_timeout_s = tls, credentials, connect_timeout_s
        self._connections: dict[str, Connection] = {}
        self._retired: set[Connection] = set()
        """Connections that get no new requests, and are open until their broker closes them."""
        self._dialing: dict[str, asyncio.Task[Connection]] = {}
        """Attempts to connect that are in progress, by address."""
        self._closed = False

    @property
    def may_be_refused(self) -> bool:
        """True if the client has TLS or credentials: a broker may refuse its certificate or credentials."""
        return self._tls is not None or self._credentials is not None

    async def read_credentials(self) -> None:
        """Read the credentials again. Raises ClusterError (FATAL) if they cannot be read now and were never read before."""
        if self._credentials is not None:
            await self._credentials.read()

    def ready(self, address: str) -> Connection | None:
        """Return the connection to an address if it is open, without waiting."""
        connection = self._connections.get(address)
        return connection if connection is not None and connection.alive else None

    def open_connections(self) -> list[Connection]:
        """Return every open connection that accepts new requests."""
        return [connection for connection in self._connections.values() if connection.alive]

    async def get(self, address: str) -> Connection:
        """Return the connection to an address; connect if there is none. Concurrent calls share one attempt and its error.

        Raises ClusterError: FATAL if the client is closed, else the error of connecting or of the first heartbeat.
        """
        self._home.check()
        connection = self.ready(address)
        if connection is not None:
            return connection
        if self._closed:
            raise client_closed_error(self.connectivity.name)
        dialing = self._start_dialing(address)
        try:
            return await asyncio.shield(dialing)
        except asyncio.CancelledError:
            if dialing.cancelled() and not is_cancelled():  # by `close`
                raise client_closed_error(self.connectivity.name) from None
            raise

    def retire(self, connection: Connection) -> None:
        """Stop using this connection for new requests: its broker is shutting down, and closes it after the last response."""
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            self._retired.add(connection)

    def _start_dialing(self, address: str) -> "asyncio.Task[Connection]":
        """Return the attempt to connect that is in progress, or start one."""
        dialing = self._dialing.get(address)
        if dialing is None:
            dialing = self._dialing[address] = spawn(self._dial(address), f"dial {address}", log_errors=False)
            dialing.add_done_callback(lambda task: self._on_dialing_done(address, task))
        return dialing

    async def _dial(self, address: str) -> Connection:
        await self.read_credentials()
        try:
            connection = await open_connection(
                address,
                self._on_request,
                self._on_connection_lost,
                tls=self._tls,
                credentials=self._credentials,
                timeout=self._connect_timeout_s,
                connectivity=self.connectivity,
                addresses=self._addresses,
            )
        except ValueError as error:
            raise Unreachable(f"{address!r} is not host:port: {error}") from error
        try:
            await self._greet(connection)
        except BaseException as error:
            lost = ConnectionLost(f"the first heartbeat to {address} failed: {error}")
            connection.endpoint.abort(lost, intended=isinstance(error, asyncio.CancelledError))
            raise
        if self._closed:  # it was open before `close`, but not yet in the table
            connection.endpoint.abort(client_closed_error(self.connectivity.name), intended=True)
        else:
            self._connections[address] = connection  # before any await: a change of groups must reach this broker too
        return connection

    def _on_dialing_done(self, address: str, task: asyncio.Task[Connection]) -> None:
        del self._dialing[address]
        mark_error_retrieved(task)

    def _on_connection_lost(self, connection: Connection, error: Exception) -> None:
        self._retired.discard(connection)
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]
            if not self._closed:
                self._on_lost(connection, error)
                if connection.endpoint.has_received:
                    # Reconnect now: name servers drop the routes of a dead broker, so perhaps no request will try to connect.
                    # But a server that never sent anything could end each new connection, too, so it is not tried at once.
                    self._start_dialing(connection.address)

    async def close(self) -> None:
        """Close all connections; pending requests fail."""
        self._closed = True
        await cancel(*self._dialing.values())
        await asyncio.gather(*(connection.close() for connection in [*self._connections.values(), *self._retired]))
        self._connections.clear()
        self._retired.clear()


def client_closed_error(cluster: str) -> ClusterError:
    """Return the error for requests of a closed client of the cluster with this name."""
    return ClusterError(f"the client is closed (cluster {cluster})", Failure.FATAL)
