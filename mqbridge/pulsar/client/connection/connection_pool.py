"""Connection pool: one connection per pair of broker and address, replaced when it is lost.

The broker is the `host:port` by which the cluster knows it; the address is the one that the socket connects to. Behind a proxy
many brokers have the same address. `AddressMap` says where the address can be reached; only `dial` needs to know.
"""

import asyncio
import math
from collections.abc import Sequence

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.home_loop import HomeLoop
from mqbridge.net.tasks import cancel, is_cancelled, spawn
from mqbridge.net.tls.tls import Tls
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.connection.connection import HANDSHAKE_TIMEOUT_S, KEEP_ALIVE_S, Connection, CredentialsRefused
from mqbridge.pulsar.client.connection.handshake import open_connection
from mqbridge.pulsar.client.connection.service_url import Address

REFUSED_PAUSE_S = 1.0
"""Minimum time before refused credentials are sent to the same broker again. Without it, hundreds of partitions would each try
at once."""


class ConnectionPool:
    """The connections of one cluster. `service` are the configured service addresses, which are tried in turn.

    Each connection reports its state to `connectivity`, whose name is the cluster's (by default the service addresses).
    """

    def __init__(
        self,
        service: Sequence[Address],
        *,
        tls: Tls | None = None,
        auth: Auth = NO_AUTH,
        keep_alive_s: float = KEEP_ALIVE_S,
        connect_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        connectivity: Connectivity | None = None,
        addresses: AddressMap = DIRECT,
    ) -> None:
        self._addresses = addresses
        self._service = list(service)
        self.connectivity = connectivity or Connectivity(",".join(map(str, service)), service)
        self._home = HomeLoop(f"the client of Pulsar cluster {self.connectivity.name}")
        self._tls, self.auth = tls, auth
        self._credentials_refused = False
        """True if the last credentials were refused, so that the next attempt reads fresh ones."""
        self._refusals: dict[tuple[str, Address], tuple[float, str]] = {}
        """(broker, address) -> loop time and message of the last refusal."""
        self._keep_alive_s, self._connect_timeout_s = keep_alive_s, connect_timeout_s
        self._connections: dict[tuple[str, Address], Connection] = {}
        """(broker, address) -> connection; a lost connection stays until it is replaced."""
        self._dialing: dict[tuple[str, Address], asyncio.Task[Connection]] = {}
        """(broker, address) -> attempt in progress."""
        self._next_service = 0
        """Index of the service address to try first; it only grows, so it is taken modulo the number of addresses."""
        self._closed = False

    @property
    def is_tls(self) -> bool:
        """True if connections are encrypted."""
        return self._tls is not None

    async def connect_service(self) -> tuple[Connection, Address]:
        """Return a connection to a service address, and this address. Raises the last error if all addresses fail.

        The address that was used last is tried first.
        """
        last_error: ClusterError | None = None
        for _ in self._service:
            address = self._service[self._next_service % len(self._service)]
            try:
                return await self.get(address), address
            except ClusterError as error:
                self._next_service += 1
                last_error = error
        assert last_error is not None  # noqa: S101 - there is at least one address
        raise last_error

    async def connect_first(self, addresses: Sequence[Address]) -> tuple[Connection, Address]:
        """Return a connection to the first of these addresses that is reachable, and this address.

        Raises the last error if all addresses fail.
        """
        last_error = ClusterError("cannot connect: the list of broker addresses is empty", Failure.FATAL)
        for address in addresses:
            try:
                return await self.get(address), address
            except ClusterError as error:
                last_error = error
        raise last_error

    def skip_service(self) -> None:
        """Use the next service address from now on, because the broker at the current one is not ready."""
        self._next_service += 1

    async def get(self, address: Address, proxy_to: str | None = None) -> Connection:
        """Return the connection to this address; dial if there is none. Raises ClusterError.

        If the address is a proxy, `proxy_to` is the `host:port` of the broker behind it. Concurrent calls share one attempt and
        its error. For REFUSED_PAUSE_S after a refusal of the credentials, the same error is raised without an attempt.
        """
        self._home.check()
        if self._closed:
            raise ClusterError(f"the client of Pulsar cluster {self.connectivity.name} is closed", Failure.FATAL)
        key = (proxy_to or str(address), address)
        connection = self._connections.get(key)
        if connection is not None and connection.alive:
            return connection
        dialing = self._dialing.get(key)
        if dialing is None:
            refused_at, problem = self._refusals.get(key, (-math.inf, ""))
            if asyncio.get_running_loop().time() < refused_at + REFUSED_PAUSE_S:
                raise CredentialsRefused(problem)
            # Errors are not logged, because the calls of `get` that wait for the attempt raise them.
            dialing = self._dialing[key] = spawn(self._dial(key, proxy_to), f"dial {address}", log_errors=False)
            dialing.add_done_callback(lambda task: self._on_dialed(key, task))
        try:
            return await asyncio.shield(dialing)
        except asyncio.CancelledError:
            if dialing.cancelled() and not is_cancelled():  # `close` cancelled the attempt, nobody cancelled the caller
                raise ClusterError(f"the client of Pulsar cluster {self.connectivity.name} is closed", Failure.FATAL) from None
            raise

    async def _dial(self, key: tuple[str, Address], proxy_to: str | None) -> Connection:
        try:
            connection = await open_connection(
                *key[1],
                proxy_to=proxy_to,
                tls=self._tls,
                auth=self.auth,
                fresh=self._credentials_refused,
                keep_alive_s=self._keep_alive_s,
                timeout=self._connect_timeout_s,
                link=Link(self.connectivity, *key[1]),
                addresses=self._addresses,
            )
        except CredentialsRefused as error:
            self._credentials_refused = True
            self._refusals[key] = asyncio.get_running_loop().time(), str(error)
            raise
        self._credentials_refused = False
        self._refusals.pop(key, None)
        return connection

    def _on_dialed(self, key: tuple[str, Address], task: asyncio.Task[Connection]) -> None:
        """Store the new connection. If dialing failed, the waiting calls of `get` raise the error."""
        del self._dialing[key]
        if not task.cancelled() and task.exception() is None:
            self._connections[key] = task.result()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        await cancel(*self._dialing.values())
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))
        self._connections.clear()
