"""Calls to one server over one connection, shared by all producers and consumers and pipelined by serial number.

The connection is made when it is needed and made again after it was lost; a lost one fails the calls that wait for answers, and
retrying is the callers' business.

An answer goes straight to its caller's function: producers have a call per message, and a future and a turn of the loop for each
would cost as much as all the rest.
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TypeVar

from google.protobuf.message import Message

from mqbridge.errors import ConnectionLost, PeerSilent, RequestTimeout, ServerRefused
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.dial import dial
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.stats import CallCounters
from mqbridge.tubemq.wire.frame import encode_frame, measure, split_frame
from mqbridge.tubemq.wire.rpc import METHOD_NAMES, decode_response, encode_request, parse

REQUEST_TIMEOUT_S = 10.0
"""The Java clients' default; it also travels, and a server drops a request that waited longer."""
CONNECT_TIMEOUT_S = 3.0
SWEEP_S = 0.25
"""How often deadlines are looked at, by one timer per connection."""

Answer = bytes | Exception
OnAnswer = Callable[[Answer], None]
Waiting = dict[int, tuple[OnAnswer, float, int]]
"""What becomes of an answer, its deadline and its method, by serial number."""
M = TypeVar("M", bound=Message)


class Session:
    """One server. `post` needs a connection that is up (`connected()`); `call` makes it."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        tls: ssl.SSLContext | None = None,
        connectivity: Connectivity | None = None,
    ) -> None:
        self._connectivity = connectivity or Connectivity(f"{host}:{port}")
        self.host, self.port = host, port
        self.address = f"{host}:{port}"
        self.local_host = ""
        """Our own address on this connection."""
        self._timeout_s, self._tls = timeout_s, tls
        self._timeout_ms = max(1, round(timeout_s * 1000))
        self._endpoint: Endpoint | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._serials = count(1)
        self._waiting: Waiting = {}
        """Of the connection that is up; a lost one fails its own."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._used_at = self._loop.time()
        self.counters = CallCounters()

    @property
    def alive(self) -> bool:
        """Whether `post` may be called."""
        return self._endpoint is not None and self._endpoint.alive

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
        waiting: Waiting = {}
        make = partial(_Connection, measure, partial(self._on_frames, waiting), partial(self._on_lost, waiting))
        link = Link(self._connectivity, self.host, self.port)
        endpoint = await dial(self.host, self.port, make, tls=self._tls, timeout=CONNECT_TIMEOUT_S, link=link)
        if self._closed:
            await endpoint.close()
            raise ConnectionLost(f"the session to {self.address} was closed")
        self.local_host = endpoint.local_host if isinstance(endpoint, _Connection) else ""
        self._endpoint, self._waiting = endpoint, waiting
        self._used_at = self._loop.time()
        self.counters.connections += 1

    def _dialled(self, task: "asyncio.Task[None]") -> None:
        self._dialling = None
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody may be left who does

    def post(self, service: int, method: int, body: bytes, on_answer: OnAnswer) -> None:
        """Send a request now; `on_answer` gets the serialized answer or an exception, never within this call.

        Raises ConnectionLost when the connection is not up. `on_answer` must not raise.
        """
        endpoint = self._endpoint
        if endpoint is None:
            raise ConnectionLost(f"there is no connection to {self.address}")
        serial = next(self._serials) & 0xFFFFFFFF
        endpoint.send(encode_frame(serial, encode_request(service, method, self._timeout_ms, body)))
        self._used_at = now = self._loop.time()
        self._waiting[serial] = (on_answer, now + self._timeout_s, method)
        self.counters.requests += 1
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)

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
        if self._endpoint is not None:
            await self._endpoint.drained()

    async def reclaim(self, idle_s: float) -> None:
        """Close a connection that nothing was sent over for `idle_s` seconds; the next call makes another."""
        endpoint = self._endpoint
        if endpoint is not None and not self._waiting and self._loop.time() - self._used_at >= idle_s:
            self._endpoint = None
            self.counters.reclaimed += 1
            await endpoint.close()

    async def close(self) -> None:
        """Close the connection; calls that wait fail."""
        self._closed = True
        if self._endpoint is not None:
            await self._endpoint.close()

    def _on_frames(self, waiting: Waiting, frames: list[bytes]) -> None:
        for frame in frames:
            serial, payload = split_frame(frame)
            entry = waiting.pop(serial, None)
            if entry is None:  # it came after its deadline
                continue
            self.counters.answers += 1
            try:
                answer: Answer = decode_response(payload)[1]
            except ServerRefused as error:
                answer = error
            except Exception as error:
                entry[0](error)
                raise
            entry[0](answer)

    def _on_lost(self, waiting: Waiting, error: Exception) -> None:
        if waiting is self._waiting:
            self._endpoint = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self.counters.lost += len(waiting)
        late = list(waiting.values())
        waiting.clear()
        for on_answer, _, method in late:
            on_answer(ConnectionLost(f"{METHOD_NAMES[method]} at {self.address} has no answer: {error}"))

    def _sweep(self) -> None:
        """Fail what is late. Deadlines come in the order of the requests: all have the same timeout."""
        self._timer = None
        now = self._loop.time()
        late = []
        for serial, (_, deadline, _) in self._waiting.items():
            if deadline > now:
                break
            late.append(serial)
        for serial in late:
            on_answer, _, method = self._waiting.pop(serial)
            self.counters.late += 1
            on_answer(RequestTimeout(f"{self.address} did not answer {METHOD_NAMES[method]} within {self._timeout_s:g} s"))
        if late and self._endpoint is not None and self._endpoint.received_at <= now - self._timeout_s:
            self._endpoint.abort(PeerSilent(f"{self.address} has been silent for {self._timeout_s:g} s"))
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)


class _Connection(Endpoint):
    """Also knows our own end's address, which clients report."""

    local_host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]


def _settle(future: "asyncio.Future[bytes]", answer: Answer) -> None:
    if future.done():
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
