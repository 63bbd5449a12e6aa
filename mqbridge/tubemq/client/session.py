"""Calls to one server over one connection, shared by all producers and consumers and pipelined by serial number.

The connection is made when it is needed and made again after it was lost; a lost one fails the calls that wait for answers, and
retrying is the callers' business.

An answer goes straight to its caller's function: producers have a call per message, and a future and a turn of the loop for each
would cost as much as all the rest.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TypeVar, cast

from google.protobuf.message import Message

from mqbridge.errors import ConnectionLost
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.dial import dial
from mqbridge.net.tasks import collect_error, spawn
from mqbridge.net.tls.tls import Tls
from mqbridge.tubemq.client.connection import Answer, Connection, OnAnswer
from mqbridge.tubemq.client.stats import CallCounters
from mqbridge.tubemq.wire.frame import join_frame
from mqbridge.tubemq.wire.rpc import parse, request_start

REQUEST_TIMEOUT_S = 10.0
"""How long a server may be silent: the Java clients' default. It also travels: a server drops a request that waited longer."""
CONNECT_TIMEOUT_S = 3.0

M = TypeVar("M", bound=Message)


class Session:
    """One server. `post` needs a connection that is up (`connected()`); `call` makes it."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        tls: Tls | None = None,
        connectivity: Connectivity | None = None,
        closed: bool = False,
    ) -> None:
        self._connectivity = connectivity or Connectivity(f"{host}:{port}")
        self.host, self.port = host, port
        self.address = f"{host}:{port}"
        self.local_host = ""
        """Our own address on this connection."""
        self._timeout_s, self._tls = timeout_s, tls
        self._timeout_ms = max(1, round(timeout_s * 1000))
        self._connection: Connection | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._serials = count(1)
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self.counters = CallCounters()

    @property
    def alive(self) -> bool:
        """Whether `post` may be called."""
        return self._connection is not None and self._connection.alive

    @property
    def is_writable(self) -> bool:
        """Whether more is to be posted: what is queued for a connection is bounded."""
        return self._connection is None or self._connection.is_writable

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call it once, when there is room again or the connection is lost; not to be asked while `is_writable`."""
        if self._connection is not None:
            self._connection.when_writable(callback)

    async def connected(self) -> None:
        """Make the connection if there is none; all who ask at once share one attempt and its error. Raises Unreachable."""
        if self.alive:
            return
        if self._dialling is None:
            self._dialling = spawn(self._dial(), f"tubemq dialling {self.address}", quiet=True)
            self._dialling.add_done_callback(self._dialled)
        await asyncio.shield(self._dialling)

    async def _dial(self) -> None:
        if self._closed:
            raise ConnectionLost(f"the session to {self.address} is closed")
        make = partial(Connection, self.address, self._timeout_s, self.counters, self._on_lost)
        link = Link(self._connectivity, self.host, self.port)
        made = await dial(self.host, self.port, make, tls=self._tls, timeout=CONNECT_TIMEOUT_S, link=link)
        connection = cast(Connection, made)
        if self._closed:
            await connection.close()
            raise ConnectionLost(f"the session to {self.address} was closed")
        self.local_host = connection.local_host
        self._connection = connection
        self.counters.connections += 1

    def _on_lost(self, connection: Connection) -> None:
        if connection is self._connection:
            self._connection = None

    def _dialled(self, task: "asyncio.Task[None]") -> None:
        self._dialling = None
        collect_error(task)

    def post(self, service: int, method: int, body: bytes, on_answer: OnAnswer) -> None:
        """Send a request now; `on_answer` gets the serialized answer or an exception, never within this call.

        Raises ConnectionLost when the connection is not up. `on_answer` must not raise.
        """
        connection = self._connection
        if connection is None:
            raise ConnectionLost(f"there is no connection to {self.address}")
        serial = next(self._serials) & 0xFFFFFFFF
        start = request_start(service, method, self._timeout_ms, len(body))
        connection.post(serial, join_frame(serial, (*start, body)), on_answer, method)
        self.counters.requests += 1

    async def call(self, service: int, method: int, body: Message, answer: type[M]) -> M:
        """Send a request and wait for its answer.

        Raises Unreachable, ConnectionLost, RequestTimeout, RemoteError when the server threw, RemoteProtocolError.
        """
        return parse(answer, await self.request(service, method, body.SerializeToString()))

    async def request(self, service: int, method: int, body: bytes) -> bytes:
        """`call` with serialized messages."""
        if not self.alive:
            await self.connected()
        future: asyncio.Future[bytes] = self._loop.create_future()
        self.post(service, method, body, partial(_settle, future))
        return await future

    async def drained(self) -> None:
        """Wait while the server takes our bytes more slowly than we make them; the caller brings the deadline."""
        if self._connection is not None:
            await self._connection.drained()

    async def reclaim(self, idle_s: float) -> None:
        """Close a connection that nothing was sent over for `idle_s` seconds; the next call makes another."""
        connection = self._connection
        if connection is not None and not connection.waiting and self._loop.time() - connection.used_at >= idle_s:
            self._connection = None
            self.counters.reclaimed += 1
            await connection.close()

    async def close(self) -> None:
        """Close the connection; calls that wait fail."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()


def _settle(future: "asyncio.Future[bytes]", answer: Answer) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
