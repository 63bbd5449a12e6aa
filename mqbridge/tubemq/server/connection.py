"""The connection of a client. It sends requests from the first byte on, and they are answered as they are done, in any order.

    OPEN    requests are served
    CLOSED  lost, or closed by us

        (violation, silence, end)  OPEN -> CLOSED

Clients open one connection for all that they do with the Master and the Broker, which share a port here. What a client has at the
server belongs to its id, not to its connection: it goes on at another one. A request that is served when the connection ends is
done nevertheless, but a get hands out nothing to a client that is gone.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from enum import Enum
from typing import Any

from google.protobuf.message import Message

from mqbridge.errors import PeerSilent, ProtocolError, RemoteProtocolError, RequestRefused
from mqbridge.listener.limits import InFlightBytes
from mqbridge.net.listen import ServedEndpoint
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.server.refusals import code_of, text_of
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.frame import FrameMeter, encode_frame, split_frame
from mqbridge.tubemq.wire.pb import broker_pb2, master_pb2
from mqbridge.tubemq.wire.rpc import Request

log = logging.getLogger(__name__)

IDLE_S = 120.0
"""Time after which a client that sends nothing is disconnected: clients send heartbeats every 13 s."""
MAX_REQUESTS = 10_000
"""Maximum number of requests of a connection that are served at the same time; then nothing more is read from it."""
DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 10.0, 60.0
"""Time for the answer to a request that names none, and the longest one: clients wait 10 s by default."""

Served = bytes | Coroutine[Any, Any, bytes | None] | None
Handler = Callable[["ServedConnection", int, Request], Served]
"""Serves a request, with its serial number: returns the response, a coroutine that does, or None if it is answered later."""

RESPONSES: dict[int, type[Message]] = {
    rpc.PRODUCER_REGISTER: master_pb2.RegisterResponseM2P,
    rpc.PRODUCER_HEARTBEAT: master_pb2.HeartResponseM2P,
    rpc.PRODUCER_CLOSE: master_pb2.CloseResponseM2P,
    rpc.CONSUMER_REGISTER: master_pb2.RegisterResponseM2C,
    rpc.CONSUMER_HEARTBEAT: master_pb2.HeartResponseM2C,
    rpc.CONSUMER_CLOSE: master_pb2.CloseResponseM2C,
    rpc.SEND: broker_pb2.SendMessageResponseB2P,
    rpc.PARTITION_REGISTER: broker_pb2.RegisterResponseB2C,
    rpc.PARTITION_HEARTBEAT: broker_pb2.HeartBeatResponseB2C,
    rpc.GET: broker_pb2.GetMessageResponseB2C,
    rpc.COMMIT: broker_pb2.CommitOffsetResponseB2C,
    rpc.BALANCED_REGISTER: master_pb2.RegisterResponseM2CV2,
    rpc.BALANCED_HEARTBEAT: master_pb2.HeartResponseM2CV2,
    rpc.PARTITION_META: master_pb2.GetPartMetaResponseM2C,
}
"""The response to each method."""
_FAILED: dict[int, dict[str, Any]] = {
    rpc.PRODUCER_REGISTER: {"brokerCheckSum": -1},
    rpc.PRODUCER_HEARTBEAT: {"brokerCheckSum": -1},
    rpc.GET: {"currOffset": -1, "currDataDlt": -1},
}
"""Fields of failed responses, which clients require or a Broker sets."""


class ConnectionState(Enum):
    """The state of a connection, see the module."""

    OPEN = "open"
    CLOSED = "closed"


def failure(method: int, code: int, text: str, **fields: Any) -> bytes:
    """Return the serialized response to a request that failed."""
    response = RESPONSES[method]
    values = {"errCode": code, "errMsg": text, **_FAILED.get(method, {}), **fields}
    if "success" in response.DESCRIPTOR.fields_by_name:
        values["success"] = False
    return response(**values).SerializeToString()


def success(method: int, **fields: Any) -> bytes:
    """Return the serialized response to a request that was done."""
    response = RESPONSES[method]
    if "success" in response.DESCRIPTOR.fields_by_name:
        fields["success"] = True
    return response(**({"errCode": codes.SUCCESS, "errMsg": "OK!"} | fields)).SerializeToString()


class ServedConnection:
    """See the module; the session of a `ListeningPort`."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        on_change: "Callable[[ServedConnection, bool], None]",
        in_flight: InFlightBytes,
        advertise: str | None = None,
    ) -> None:
        """`handlers` serve requests, by their method.

        `on_change` is called with True when the connection is made, and with False when it has ended. While `in_flight` is full,
        nothing is read. `advertise` is the address that clients are told, if it is not the one that they have used.
        """
        self.state = ConnectionState.OPEN
        self.peer = "?"
        self.address = "?"
        """The address at which clients find the Broker, `host:port`."""
        self.refused_requests = 0
        self.measure = FrameMeter().measure
        self._handlers, self._on_change = handlers, on_change
        self._in_flight, self._advertise = in_flight, advertise
        self._endpoint: ServedEndpoint
        self._requests = 0
        """Number of requests that are not answered."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._idle: asyncio.TimerHandle | None = None
        self._is_waiting_to_write = False

    # --- the session ----------------------------------------------------------------------------------------------------

    def on_connected(self, endpoint: ServedEndpoint) -> None:
        """Begin; the port limits the time until the first request."""
        self._endpoint, self.peer, self.address = endpoint, endpoint.peer, self._advertise or endpoint.local_address
        self._watch_idle()
        self._on_change(self, True)

    def on_frames(self, received: list[bytes]) -> None:
        """Serve requests. A violation of the framing closes the connection."""
        self._endpoint.handshake_done()
        try:
            for frame in received:
                if self.state is ConnectionState.OPEN:
                    self._on_request(*split_frame(frame))
        finally:
            self._limit_reading()

    def on_lost(self, error: Exception) -> None:
        """End; what the client has at the server stays for a while."""
        self.state = ConnectionState.CLOSED
        if self._idle is not None:
            self._idle.cancel()
        log.debug("client %s is gone: %s", self.peer, error)
        self._on_change(self, False)

    async def close(self) -> None:
        """Close the connection once what was sent is written, and end its requests."""
        await self._endpoint.close()
        await cancel(*self._tasks)

    def _watch_idle(self) -> None:
        self._idle = asyncio.get_running_loop().call_later(IDLE_S / 4, self._check_idle)

    def _check_idle(self) -> None:
        endpoint, now = self._endpoint, asyncio.get_running_loop().time()
        if now - endpoint.received_at >= IDLE_S and not endpoint.is_reading_paused:
            endpoint.abort(PeerSilent(f"{self.peer} has sent nothing within {IDLE_S:g} s"))
        elif not endpoint.is_writable and now - endpoint.received_at >= IDLE_S:
            endpoint.abort(PeerSilent(f"{self.peer} has read nothing within {IDLE_S:g} s"))
        else:
            self._watch_idle()

    # --- requests -------------------------------------------------------------------------------------------------------

    def _on_request(self, serial: int, payload: bytes) -> None:
        try:
            request = rpc.decode_request(payload)
        except RemoteProtocolError as error:
            self._reply_error(serial, "com.google.protobuf.InvalidProtocolBufferException", str(error), rpc.PROTOCOL_VERSION)
            return
        handler = self._handlers.get(request.method)
        if handler is None:
            text = f"IPC server handle request error :Unsupported method ID :{request.method}"
            self._reply_error(serial, "java.lang.Exception", text, request.version)
            return
        try:
            served = handler(self, serial, request)
        except Exception as error:  # noqa: BLE001 - the client gets every error; a bug is logged, too
            self.refuse(serial, request, error)
            return
        if isinstance(served, bytes):
            self.answer(serial, request, served)
        elif served is not None:
            self._spawn(serial, request, served)

    def _reply_error(self, serial: int, name: str, text: str, version: int) -> None:
        """Answer a request that cannot be read."""
        self.refused_requests += 1
        self._send(serial, rpc.encode_error(name, text, version, fatal=True))

    def _spawn(self, serial: int, request: Request, served: Coroutine[Any, Any, bytes | None]) -> None:
        self.begin()
        task = spawn(self._serve(serial, request, served), f"{rpc.METHOD_NAMES[request.method]} of {self.peer}")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._on_served(task, served))

    def _on_served(self, task: "asyncio.Task[None]", served: Coroutine[Any, Any, bytes | None]) -> None:
        served.close()  # a task that is cancelled before its first step has not begun it
        self._tasks.discard(task)
        self.end()

    async def _serve(self, serial: int, request: Request, served: Coroutine[Any, Any, bytes | None]) -> None:
        try:
            async with asyncio.timeout(timeout_s(request)):
                response = await served
        except TimeoutError:
            log.info("%s of %s was not done in time, and is not answered", rpc.METHOD_NAMES[request.method], self.peer)
        except Exception as error:  # noqa: BLE001 - as above
            self.refuse(serial, request, error)
        else:
            if response is not None:
                self.answer(serial, request, response)

    def refuse(self, serial: int, request: Request, error: Exception) -> None:
        """Answer that a request has failed."""
        name, code = rpc.METHOD_NAMES[request.method], code_of(error)
        if code is None:
            log.error("%s of %s failed unexpectedly", name, self.peer, exc_info=error)
            code = codes.INTERNAL_ERROR
        elif isinstance(error, RequestRefused):
            log.debug("%s of %s was refused: %s", name, self.peer, error)
        else:
            log.info("%s of %s failed: %s", name, self.peer, text_of(error))
        self.refused_requests += 1
        self.answer(serial, request, failure(request.method, code, text_of(error)))

    def answer(self, serial: int, request: Request, response: bytes) -> None:
        """Send the response to a request. A client that reads no responses loses its connection."""
        self._send(serial, rpc.encode_response(request.method, response, request.version or rpc.PROTOCOL_VERSION))

    def _send(self, serial: int, payload: bytes) -> None:
        if not self._endpoint.alive:
            return
        try:
            self._endpoint.reply(encode_frame(serial, payload))
        except ProtocolError as error:
            log.warning("a response to %s cannot be sent: %s", self.peer, error)

    # --- limits ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Count a request that is not answered."""
        self._requests += 1

    def end(self) -> None:
        """Count it no longer."""
        self._requests -= 1
        if self._requests < MAX_REQUESTS // 2:
            self._endpoint.resume_reading("requests")

    @property
    def alive(self) -> bool:
        """False when the connection has ended."""
        return self.state is ConnectionState.OPEN and self._endpoint.alive

    async def wait_for_room(self) -> None:
        """Wait until the client has read what was sent, or its connection has ended."""
        await self._endpoint.wait_for_room()

    def _limit_reading(self) -> None:
        if self._requests >= MAX_REQUESTS:
            self._endpoint.pause_reading("requests")
        if self._in_flight.is_full and self.alive:
            self._endpoint.pause_reading("bytes in flight")
            self._in_flight.wait(self._on_stored)
        if self._endpoint.alive and not self._endpoint.is_writable and not self._is_waiting_to_write:
            self._endpoint.pause_reading("unread")  # what it sends is answered, and the answers would wait here
            self._is_waiting_to_write = True
            spawn(self._read_on(), f"writing to {self.peer}")

    def _on_stored(self) -> None:
        self._endpoint.resume_reading("bytes in flight")

    async def _read_on(self) -> None:
        await self._endpoint.wait_for_room()
        self._is_waiting_to_write = False
        self._endpoint.resume_reading("unread")


def timeout_s(request: Request) -> float:
    """Return how long the client waits for the response: after that, none is sent, as by a real server."""
    return min(request.timeout_ms / 1000, MAX_TIMEOUT_S) if request.timeout_ms > 0 else DEFAULT_TIMEOUT_S
