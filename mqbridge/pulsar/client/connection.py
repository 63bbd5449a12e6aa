"""One connection to a broker: handshake, keep-alive, requests with their responses, and pushed commands.

Producers and consumers are `PushHandler`s of a connection: registered under their id, they receive the commands for that id and
one call when the connection is lost. All request ids come from one counter, so a response needs no other key.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from mqbridge import __version__
from mqbridge.errors import (
    ClusterError,
    ConnectionLost,
    Failure,
    PeerSilent,
    RemoteProtocolError,
    RequestTimeout,
    ServerRefused,
    Unreachable,
)
from mqbridge.net.connectivity import Link
from mqbridge.net.dial import refusal_failure
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.pending import Pending
from mqbridge.net.tasks import spawn
from mqbridge.net.window import SendWindow
from mqbridge.pulsar.client.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.dispatch import CLOSES, CONSUMER_PUSHES, PRODUCER_PUSHES, RESPONSES, is_for_producer
from mqbridge.pulsar.client.entry_runs import EntryRun, group_runs
from mqbridge.pulsar.wire import codes, commands
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE, Frame, FrameMeter, parse_frame
from mqbridge.pulsar.wire.ids import NO_REQUEST
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandProducerSuccess

log = logging.getLogger(__name__)

CLIENT_VERSION = f"mqbridge-{__version__}"
KEEP_ALIVE_S = 30.0
HANDSHAKE_TIMEOUT_S = 10.0
MAX_SENDS_IN_FLIGHT = 500
"""Per connection. At 1000 a broker stops reading the socket, including all pings and acknowledgements on it."""
MAX_BYTES_IN_FLIGHT = 32 << 20
"""Per connection; a broker on a fast network has far fewer bytes on the way to disk."""


class CredentialsRefused(Unreachable):
    """Credentials refused by a cluster that accepted them before."""


class PushHandler(Protocol):
    """Receiver of the commands that a connection gets for one producer, consumer or watcher."""

    def on_push(self, frame: Frame) -> None:
        """Process a command, in the order of arrival; after a close by the broker the handler is no longer registered."""

    def on_lost(self, error: Exception) -> None:
        """Note the loss of the connection; no further call follows."""


class ConsumerPushHandler(PushHandler, Protocol):
    """Receiver of a consumer's commands and entries."""

    def on_run(self, run: EntryRun) -> None:
        """Process a run of entries, in the order of arrival together with `on_push`."""


class Connection:
    """A connection after its handshake; made by `open_connection`."""

    def __init__(self, auth: Auth = NO_AUTH, keep_alive_s: float = KEEP_ALIVE_S, link: Link | None = None) -> None:
        self._auth, self._link = auth, link
        self._credentials = b""
        self._challenged: asyncio.Task[None] | None = None
        self._keep_alive_s = keep_alive_s
        self._meter = FrameMeter()
        self.endpoint = Endpoint(self._meter.measure, self._on_frames, self._on_lost)
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        self.server_version = ""
        self.watches_topics = False
        """True if the broker announced support for topic list watchers."""
        self.producers: dict[int, PushHandler] = {}
        self.consumers: dict[int, ConsumerPushHandler] = {}
        self.watchers: dict[int, PushHandler] = {}
        self.window = SendWindow(MAX_SENDS_IN_FLIGHT, MAX_BYTES_IN_FLIGHT)
        self._request_ids = itertools.count(1)
        self._pending: Pending[int, BaseCommand] = Pending("the broker")
        self._queued: dict[int, asyncio.Future[CommandProducerSuccess]] = {}
        """Request id -> future of producers that wait for exclusive access."""
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tick: asyncio.TimerHandle | None = None
        self._pinged_at = 0.0

    @property
    def alive(self) -> bool:
        """True while the connection is usable."""
        return self.endpoint.alive

    @property
    def principal(self) -> str | None:
        """Our role at the broker, if known."""
        return self._auth.principal

    # --- handshake and end ------------------------------------------------------------------------------------------

    async def handshake(self, credentials: bytes, proxy_to: str | None, timeout: float) -> None:
        """Send CONNECT and wait for CONNECTED. Raises ClusterError."""
        self._credentials = credentials
        self.endpoint.send(commands.connect(CLIENT_VERSION, self._auth.method, credentials, proxy_to))
        try:
            async with asyncio.timeout(timeout):
                await self._connected
        except TimeoutError as error:
            late = RequestTimeout(f"{self.endpoint.peer} did not answer CONNECT within {timeout:g} s")
            self.endpoint.abort(late)
            raise late from error
        self._tick = asyncio.get_running_loop().call_later(self._keep_alive_s, self._keep_alive)

    async def close(self) -> None:
        """Write queued data and close; handlers get `on_lost`."""
        await self.endpoint.close()

    def _on_lost(self, error: Exception) -> None:
        if self._tick is not None:
            self._tick.cancel()
        if self._challenged is not None:
            self._challenged.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # mark as retrieved: nobody may be waiting
        lost = error if isinstance(error, ClusterError) else ConnectionLost(f"the connection to {self.endpoint.peer}: {error}")
        self._pending.fail_all(lost)
        for request_id in list(self._queued):
            self.stop_queueing(request_id, lost)
        handlers = [*self.producers.values(), *self.consumers.values(), *self.watchers.values()]
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        for handler in handlers:
            handler.on_lost(lost)

    def _keep_alive(self) -> None:
        """Send a ping; abort if nothing was received since the last one."""
        if self._pinged_at and self.endpoint.received_at < self._pinged_at:
            self.endpoint.abort(PeerSilent(f"{self.endpoint.peer} has sent nothing for {self._keep_alive_s:g} s"))
            return
        if self.alive:
            self.endpoint.send(commands.PING)
            loop = asyncio.get_running_loop()
            self._pinged_at = loop.time()
            self._tick = loop.call_later(self._keep_alive_s, self._keep_alive)

    # --- requests ---------------------------------------------------------------------------------------------------

    def next_request_id(self) -> int:
        """Return an unused request id."""
        return next(self._request_ids)

    async def request(self, make: Callable[[int], bytes], expect: int, what: str, timeout: float) -> Any:
        """Send the frame that `make` returns for a request id; return the body of the response, which must be of type `expect`.

        Raises ServerRefused, RequestTimeout, ConnectionLost.
        """
        request_id = self.next_request_id()
        future = self._pending.add(request_id, what, timeout)
        try:
            self.endpoint.send(make(request_id))
        except ConnectionLost as error:
            self._pending.reject(request_id, error)
        command = await future
        if command.type != expect:
            wrong = RemoteProtocolError(f"{self.endpoint.peer} answered {what} with a command of type {command.type}")
            self.endpoint.abort(wrong)
            raise ConnectionLost(str(wrong))
        return RESPONSES[expect](command)

    async def exclusive_access(self, request_id: int) -> CommandProducerSuccess:
        """Wait, without a deadline, until a producer that was "not ready" is ready. Raises ClusterError."""
        try:
            return await self._queued[request_id]
        finally:
            self._queued.pop(request_id, None)

    # --- received commands ------------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        for item in group_runs(frames):
            if isinstance(item, bytes):
                self._on_frame(parse_frame(item))
            elif (consumer := self.consumers.get(item.consumer)) is not None:
                consumer.on_run(item)

    def _on_frame(self, frame: Frame) -> None:
        kind, command = frame.type, frame.command
        if kind in PRODUCER_PUSHES:
            self._push(self.producers, PRODUCER_PUSHES[kind](command), frame)
        elif kind in CONSUMER_PUSHES:
            self._push(self.consumers, CONSUMER_PUSHES[kind](command), frame)
        elif kind in RESPONSES:
            awaited = self._pending.resolve(RESPONSES[kind](command).request_id, command)
            if kind == BaseCommand.PRODUCER_SUCCESS:
                self._on_producer_success(command.producer_success, awaited)
        else:
            self._on_control(kind, frame)

    @staticmethod
    def _push(handlers: MutableMapping[int, Any], key: int, frame: Frame) -> None:
        """Pass a command to its handler. A command for a handler that was just closed is not an error."""
        handler: PushHandler | None = handlers.pop(key, None) if frame.type in CLOSES else handlers.get(key)
        if handler is not None:
            handler.on_push(frame)

    def _on_producer_success(self, response: CommandProducerSuccess, awaited: bool) -> None:
        """Process PRODUCER_SUCCESS. A producer that must wait gets two; the second one is not the response of a request."""
        queued = self._queued.get(response.request_id)
        if queued is None:
            if awaited and not response.producer_ready:
                self._queued[response.request_id] = asyncio.get_running_loop().create_future()
        elif response.producer_ready and not queued.done():
            queued.set_result(response)

    def stop_queueing(self, request_id: int, error: ClusterError) -> None:
        """Fail the wait for exclusive access of this request."""
        queued = self._queued.get(request_id)
        if queued is not None and not queued.done():
            queued.set_exception(error)
            queued.exception()  # mark as retrieved: nobody may be waiting

    def _on_control(self, kind: int, frame: Frame) -> None:
        command = frame.command
        match kind:
            case BaseCommand.PING:
                self.endpoint.send(commands.PONG)
            case BaseCommand.PONG:
                pass
            case BaseCommand.CONNECTED:
                self._on_connected(command)
            case BaseCommand.ERROR:
                self._on_error(command)
            case BaseCommand.WATCH_TOPIC_UPDATE:
                self._push(self.watchers, command.watchTopicUpdate.watcher_id, frame)
            case BaseCommand.TOPIC_MIGRATED:
                migrated = command.topicMigrated
                self._push(self.producers if is_for_producer(migrated) else self.consumers, migrated.resource_id, frame)
            case BaseCommand.AUTH_CHALLENGE:
                if self._challenged is None or self._challenged.done():
                    self._challenged = spawn(self._answer_challenge(), f"fresh credentials for {self.endpoint.peer}")
            case _:
                log.warning("%s sent an unexpected command of type %d: ignored", self.endpoint.peer, kind)

    def _on_connected(self, command: BaseCommand) -> None:
        if self._connected.done():
            raise RemoteProtocolError(f"{self.endpoint.peer} sent CONNECTED twice")
        self.server_version = command.connected.server_version
        self.watches_topics = command.connected.feature_flags.supports_topic_watchers
        if command.connected.max_message_size > 0:
            self.max_message_size = command.connected.max_message_size
            self._meter.allow(self.max_message_size)
        self._connected.set_result(None)

    def _on_error(self, command: BaseCommand) -> None:
        response = command.error
        if response.request_id != NO_REQUEST:
            error = codes.refused(response.error, response.message, self.endpoint.peer)
            self._pending.reject(response.request_id, error)
            self.stop_queueing(response.request_id, error)
            return
        if response.error == codes.AUTHENTICATION:
            self.endpoint.abort(self._refused_credentials(response.message))
        else:
            refusal = f"{self.endpoint.peer} refused the connection"
            self.endpoint.abort(codes.refused(response.error, response.message, refusal))

    # --- credentials ------------------------------------------------------------------------------------------------

    async def _answer_challenge(self) -> None:
        """Send fresh credentials, because the broker's have expired. Reading continues meanwhile."""
        try:
            self._credentials = await self._auth.credentials(fresh=True)
        except ClusterError as error:
            log.warning("%s requests fresh credentials, sending the last ones: %s", self.endpoint.peer, error)
        if self.alive:
            self.endpoint.send(commands.auth_response(CLIENT_VERSION, self._auth.method, self._credentials))

    def _refused_credentials(self, message: str) -> ClusterError:
        """Return the error: temporary if the cluster accepted us before, since renewed credentials will help."""
        auth = self._auth
        problem = f"{self.endpoint.peer} refuses {auth.shown}: {auth.advice} (method {auth.method}; it says: {message})"
        if refusal_failure(self._link) is Failure.FATAL:
            return ServerRefused(problem, codes.AUTHENTICATION, Failure.FATAL)
        return CredentialsRefused(problem)
