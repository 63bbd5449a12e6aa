"""The connection of a client. It sends requests from the first byte on, and they are answered as they are done, in any order.

    OPEN    requests are served
    CLOSED  lost, or closed by us; what the client had here is gone

        (violation, silence, end)  OPEN -> CLOSED

A request is done even if its client is gone before: it may have been sent one way. Only pulls end with their connection.

The listener sends requests of its own to clients, most of which are not answered. While too much waits to be stored, or too many
requests run, nothing more is read from the client.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any

from mqbridge.errors import ConnectionLost, PeerSilent, ProtocolError, RequestRefused
from mqbridge.listener.limits import InFlightBytes
from mqbridge.net.listen import ServedEndpoint
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.server.refusals import CodedRefusal, status_of, text_of
from mqbridge.rocketmq.wire import command as frames
from mqbridge.rocketmq.wire.codes import Code, Status, request_name
from mqbridge.rocketmq.wire.command import ONEWAY, Command
from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.ids import parse_host

log = logging.getLogger(__name__)

IDLE_S = 120.0
"""Time after which a client that sends nothing is disconnected: that of a broker. Clients send heartbeats every 30 s."""
ANSWER_S = 2.5
"""Time after which a request that is not done is answered as busy: clients wait 3 s, and then close the connection of all."""
MAX_REQUESTS = 32_768
"""Maximum number of requests of a connection that are served at the same time: each queue of a client has one that waits."""
MAX_FORWARDED = 100
"""Maximum number of requests to a client that are not answered."""
WAITING_FOR_MESSAGES = frozenset({Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE})
"""Requests that end with the connection of their client."""
LANGUAGES_WITHOUT_MOVE = frozenset({"CPP", "PYTHON"})
"""Languages whose clients keep what they have when a pull is answered with PULL_OFFSET_MOVED."""
NOTHING_THERE = frozenset({Status.QUERY_NOT_FOUND, Status.CONSUMER_NOT_ONLINE})
"""Response codes that say that there is nothing yet, as each new group is told: such a request does not count as refused."""

Answer = Command | None
Served = Answer | Coroutine[Any, Any, Answer]
Handler = Callable[["ServedConnection", Command], Served]
"""Serves a request: returns the answer, a coroutine that does, or None if it answers later by itself or there is no answer."""


class ConnectionState(Enum):
    """The state of a connection, see the module."""

    OPEN = "open"
    CLOSED = "closed"


class ServedConnection:
    """See the module; the session of a `ListeningPort`."""

    measure = staticmethod(frames.measure)

    def __init__(
        self,
        handlers: dict[int, Handler],
        patient: frozenset[int],
        on_change: "Callable[[ServedConnection, bool], None]",
        in_flight: InFlightBytes,
        advertise: str | None = None,
    ) -> None:
        """`handlers` serve requests, by their code; those in `patient` limit their time themselves.

        `on_change` is called with True when the connection is made, and with False when it has ended. While `in_flight` is full,
        nothing is read; it counts the bodies of requests that are served by tasks, too. `advertise` is the address that clients
        are told, if it is not the one that they have used.
        """
        self.state = ConnectionState.OPEN
        self.peer = "?"
        self.language = frames.OTHER
        """Language of the client, from its requests."""
        self.version = 0
        """Version number that the client announces."""
        self.address = "?"
        """The address at which clients find the broker, `host:port`."""
        self.host = host_of("0.0.0.0:0")
        """The same as records store it."""
        self.refused_requests = 0
        self._handlers, self._patient = handlers, patient
        self._on_change, self._in_flight, self._advertise = on_change, in_flight, advertise
        self._endpoint: ServedEndpoint
        self._requests = 0
        self._tasks: dict[asyncio.Task[None], int] = {}
        """Tasks that serve requests, with the codes of these."""
        self._idle: asyncio.TimerHandle | None = None
        self._opaque = itertools.count(1)
        self._forwarded: dict[int, asyncio.Future[Command]] = {}
        """Requests to the client that are not answered, by their number."""
        self._is_waiting_to_write = False
        self.delivering = asyncio.Lock()
        """Held by the pull that waits for room, and then reads what it delivers."""

    # --- the session ----------------------------------------------------------------------------------------------------

    def on_connected(self, endpoint: ServedEndpoint) -> None:
        """Begin; the port limits the time until the first request."""
        self._endpoint, self.peer, self.address = endpoint, endpoint.peer, self._advertise or endpoint.local_address
        self.host = host_of(self.address)
        self._watch_idle()
        self._on_change(self, True)

    def on_frames(self, received: list[bytes]) -> None:
        """Serve requests. A violation of the protocol closes the connection."""
        self._endpoint.handshake_done()
        try:
            for data in received:
                if self.state is ConnectionState.OPEN:
                    self._on_command(frames.decode(data))
        finally:
            self._limit_reading()

    def on_lost(self, error: Exception) -> None:
        """End everything that the client had here."""
        self.state = ConnectionState.CLOSED
        if self._idle is not None:
            self._idle.cancel()
        for task in [task for task, code in self._tasks.items() if code in WAITING_FOR_MESSAGES]:
            task.cancel()
        for future in self._forwarded.values():
            if not future.done():
                future.set_exception(ConnectionLost(f"client {self.peer} is gone"))
                future.exception()
        self._forwarded.clear()
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

    def _on_command(self, command: Command) -> None:
        if command.is_response:
            waiting = self._forwarded.pop(command.opaque, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(command)
            return
        self.language, self.version = command.language, command.version
        handler = self._handlers.get(command.code)
        if handler is None:
            self._refuse(command, CodedRefusal(f"request {command.code} is not supported", Status.REQUEST_CODE_NOT_SUPPORTED))
            return
        try:
            served = handler(self, command)
        except Exception as error:  # noqa: BLE001 - the client gets every error; a bug is logged, too
            self._refuse(command, error)
            return
        if isinstance(served, Command):
            self.answer(command, served)
        elif served is not None:
            self._spawn(command, served)

    def _spawn(self, request: Command, served: Coroutine[Any, Any, Answer]) -> None:
        self._requests += 1
        size = len(request.body)
        self._in_flight.add(size)
        task = spawn(self._serve(request, served), f"{request_name(request.code)} of {self.peer}")
        self._tasks[task] = request.code
        task.add_done_callback(lambda task: self._on_served(task, served, size))

    def _on_served(self, task: "asyncio.Task[None]", served: Coroutine[Any, Any, Answer], size: int) -> None:
        served.close()  # a task that is cancelled before its first step has not begun it
        del self._tasks[task]
        self._in_flight.release(size)
        self._requests -= 1
        if self._requests < MAX_REQUESTS // 2:
            self._endpoint.resume_reading("requests")

    async def _serve(self, request: Command, served: Coroutine[Any, Any, Answer]) -> None:
        try:
            async with asyncio.timeout(None if request.code in self._patient else ANSWER_S):
                answer = await served
        except TimeoutError:
            self._refuse(request, CodedRefusal(f"the cluster has not answered within {ANSWER_S:g} s", Status.SYSTEM_BUSY))
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse(request, error)
        else:
            if answer is not None:
                self.answer(request, answer)

    def _refuse(self, request: Command, error: Exception) -> None:
        status = status_of(error)
        if status is None:
            log.error("%s of %s failed unexpectedly", request_name(request.code), self.peer, exc_info=error)
            status = Status.SYSTEM_ERROR
        elif isinstance(error, RequestRefused):
            log.debug("%s of %s was refused: %s", request_name(request.code), self.peer, error)
        else:
            log.info("%s of %s failed: %s", request_name(request.code), self.peer, text_of(error))
        if status not in NOTHING_THERE:
            self.refused_requests += 1
        self.answer(request, request.answer(status, remark=text_of(error)))

    def answer(self, request: Command, answer: Command) -> None:
        """Send the answer to a request, unless the client wants none. One that reads no answers loses its connection."""
        if request.is_oneway or not self._endpoint.alive:
            return
        try:
            head = frames.encode_without_body(answer, binary=request.binary)
        except ProtocolError as error:  # of a text that does not fit: the client must not wait
            log.warning("an answer to %s cannot be sent: %s", self.peer, error)
            answer = request.answer(Status.SYSTEM_ERROR, remark=text_of(error))
            head = frames.encode_without_body(answer, binary=request.binary)
        if answer.body:
            self._endpoint.reply(head, answer.body)
        else:
            self._endpoint.reply(head)

    def deliver(self, request: Command, answer: Command) -> None:
        """Send an answer with messages, unless the client wants none; the caller has waited until there is room."""
        if request.is_oneway:
            return
        head = frames.encode_without_body(answer, binary=request.binary)
        self._endpoint.try_send(head, answer.body) if answer.body else self._endpoint.try_send(head)

    # --- our own requests -----------------------------------------------------------------------------------------------

    def notify(self, code: int, header: Header, body: bytes = b"") -> None:
        """Send a request that is not answered."""
        command = Command(code, header.encode(), body, opaque=next(self._opaque) & 0x7FFFFFFF, flag=ONEWAY)
        self._endpoint.try_send(frames.encode(command))

    async def ask(self, code: int, header: Header, body: bytes = b"", timeout_s: float = ANSWER_S) -> Command:
        """Send a request, and return the answer. Raises RequestRefused, ConnectionLost, TimeoutError."""
        if len(self._forwarded) >= MAX_FORWARDED:
            raise CodedRefusal(f"client {self.peer} does not answer", Status.SYSTEM_BUSY)
        opaque = next(self._opaque) & 0x7FFFFFFF
        waiting = self._forwarded[opaque] = asyncio.get_running_loop().create_future()
        try:
            self._endpoint.send(frames.encode(Command(code, header.encode(), body, opaque=opaque)))
            async with asyncio.timeout(timeout_s):
                answer: Command = await waiting
                return answer
        finally:
            self._forwarded.pop(opaque, None)

    # --- limits ---------------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """False while the client does not read what was sent."""
        return self._endpoint.alive and self._endpoint.has_room

    async def wait_for_room(self) -> None:
        """Wait until the client has read what was sent, or its connection has ended."""
        await self._endpoint.wait_for_room()

    @property
    def alive(self) -> bool:
        """False when the connection has ended."""
        return self.state is ConnectionState.OPEN and self._endpoint.alive

    def pause_reading(self, reason: str) -> None:
        """Read nothing more until `resume_reading` with the same reason."""
        self._endpoint.pause_reading(reason)

    def resume_reading(self, reason: str) -> None:
        """End one reason of `pause_reading`."""
        self._endpoint.resume_reading(reason)

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


def host_of(address: str) -> bytes:
    """Return an address as records store it."""
    try:
        return parse_host(address)
    except ProtocolError:
        return parse_host("0.0.0.0:0")
