"""Calls to one server over one TCP connection. Many calls may be pending at once; a serial number assigns a response to its call.

`call` and `request` connect if there is no connection, also after it was lost. A lost connection fails its pending calls; their
callers retry. `post` passes the response directly to a callback: producers make one call per message, and a future
and an event loop iteration per call would double the cost.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TypeVar, cast

from google.protobuf.message import Message

from mqbridge.errors import ConnectionLost
from mqbridge.net.addresses import DIRECT, AddressMap
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.dial import dial
from mqbridge.net.tasks import mark_error_retrieved, spawn
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.client.connection.counters import CallCounters
from mqbridge.tubemq.client.connection.tcp_connection import OnResponse, Response, TcpConnection
from mqbridge.tubemq.wire.frame import join_frame
from mqbridge.tubemq.wire.rpc import parse, request_prefix

REQUEST_TIMEOUT_S = 10.0
"""How long a server may send nothing while calls are pending; the Java clients' default. Each request contains it: the server
drops a request that has waited longer."""
CONNECT_TIMEOUT_S = 3.0
"""How long one attempt to connect may take, TLS handshake included."""

M = TypeVar("M", bound=Message)


class ServerConnection:
    """The connection to one server. Call `connect` before `post`; `call` and `request` connect by themselves.

    timeout_s     seconds for which the server may send nothing before pending requests time out
    tls           None for a connection without TLS
    connectivity  records whether the server is reachable; None for a new object that only this connection uses
    addresses     where the server can be reached
    closed        True: the connection is closed from the start and never connects, because its pool was closed before
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        tls: Tls | None = None,
        connectivity: Connectivity | None = None,
        addresses: AddressMap = DIRECT,
        closed: bool = False,
    ) -> None:
        self._addresses = addresses
        self._connectivity = connectivity or Connectivity(f"{host}:{port}")
        self.host, self.port = host, port
        self.address = f"{host}:{port}"
        self.local_host = ""
        """Our address on this connection; empty before the first connection."""
        self._timeout_s, self._tls = timeout_s, tls
        self._timeout_ms = max(1, round(timeout_s * 1000))
        self._tcp: TcpConnection | None = None
        """The current TCP connection, or the last one, which says why it ended; None before the first, and after one was idle."""
        self._dial_task: asyncio.Task[None] | None = None
        self._serials = count(1)
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self.counters = CallCounters()

    @property
    def alive(self) -> bool:
        """True while `post` may be called."""
        return self._tcp is not None and self._tcp.alive

    @property
    def number(self) -> int:
        """The number of the current or last TCP connection, from 1; 0 before the first. A server that restarts ends them all."""
        return self.counters.connections

    @property
    def is_writable(self) -> bool:
        """False while the send buffer is full: callers then have to stop posting."""
        return self._tcp is None or not self._tcp.alive or self._tcp.is_writable

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the send buffer has room again or the connection is lost.

        To be called only while the connection is not `is_writable`.
        """
        if self._tcp is not None:
            self._tcp.when_writable(callback)

    async def connect(self) -> None:
        """Connect if there is no connection. Concurrent calls share one attempt and its error.

        Raises Unreachable, or ConnectionLost if this object was closed.
        """
        if self.alive:
            return
        if self._dial_task is None:
            self._dial_task = spawn(self._dial(), f"tubemq dialling {self.address}", log_errors=False)
            self._dial_task.add_done_callback(self._on_dial_done)
        await asyncio.shield(self._dial_task)

    async def _dial(self) -> None:
        if self._closed:
            raise ConnectionLost(f"the connection to {self.address} is closed")
        make = partial(TcpConnection, self.address, self._timeout_s, self.counters)
        link = Link(self._connectivity, self.host, self.port)
        endpoint = await dial(
            self.host, self.port, make, tls=self._tls, timeout=CONNECT_TIMEOUT_S, link=link, addresses=self._addresses
        )
        tcp = cast(TcpConnection, endpoint)
        if self._closed:
            await tcp.close()
            raise ConnectionLost(f"the connection to {self.address} was closed")
        self.local_host = tcp.local_host
        self._tcp = tcp
        self.counters.connections += 1

    def _on_dial_done(self, task: "asyncio.Task[None]") -> None:
        self._dial_task = None
        mark_error_retrieved(task)

    def post(self, service: int, method: int, body: bytes, on_response: OnResponse) -> None:
        """Send a request now. `on_response` is called with the serialized response or an exception, after this call has returned.

        Raises ConnectionLost if there is no connection. `on_response` must not raise.
        """
        tcp = self._tcp
        if tcp is None:
            raise ConnectionLost(f"there is no connection to {self.address}")
        serial = next(self._serials) & 0xFFFFFFFF
        prefix = request_prefix(service, method, self._timeout_ms, len(body))
        tcp.post(serial, join_frame(serial, (*prefix, body)), on_response, method)
        self.counters.requests += 1

    async def call(self, service: int, method: int, body: Message, response_type: type[M]) -> M:
        """Send a request and wait for its response.

        Raises Unreachable, ConnectionLost, RequestTimeout, RemoteProtocolError, and RemoteError for an exception of the server.
        """
        return parse(response_type, await self.request(service, method, body.SerializeToString()))

    async def request(self, service: int, method: int, body: bytes) -> bytes:
        """Like `call`, but `body` and the returned response are serialized."""
        if not self.alive:
            await self.connect()
        future: asyncio.Future[bytes] = self._loop.create_future()
        self.post(service, method, body, partial(_settle, future))
        return await future

    async def close_if_idle(self, idle_s: float) -> None:
        """Close the TCP connection if it has been unused for `idle_s` seconds; the next call reconnects."""
        tcp = self._tcp
        if tcp is not None and tcp.alive and not tcp.pending and self._loop.time() - tcp.used_at >= idle_s:
            self._tcp = None
            self.counters.reclaimed += 1
            await tcp.close()

    async def close(self) -> None:
        """Close the connection for good; pending calls fail with ConnectionLost."""
        self._closed = True
        if self._tcp is not None:
            await self._tcp.close()


def _settle(future: "asyncio.Future[bytes]", response: Response) -> None:
    """Set the result or the exception of a future, unless its caller was cancelled."""
    if future.done():
        return
    if isinstance(response, Exception):
        future.set_exception(response)
    else:
        future.set_result(response)
