"""Connection to a broker: handshake, keep-alive, requests with their responses, and pushed commands.

Pushed commands are those that the broker sends without a request. Producers, consumers and watchers of topic lists are
`PushHandler`s of a connection: each is registered under its id, receives the pushed commands for this id, and is called once when
the connection is lost. All request ids come from one counter, so the id alone identifies a request.
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
from mqbridge.net.window import RequestWindow
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.connection.dispatch import CLOSES, CONSUMER_PUSHES, PRODUCER_PUSHES, RESPONSES, is_for_producer
from mqbridge.pulsar.client.connection.entry_runs import EntryRun, group_runs
from mqbridge.pulsar.wire import client_commands, codes
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE, Frame, FrameMeter, parse_frame
from mqbridge.pulsar.wire.ids import NO_REQUEST
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandProducerSuccess

log = logging.getLogger(__name__)

CLIENT_VERSION = f"mqbridge-{__version__}"
KEEP_ALIVE_S = 30.0
"""Default interval between two pings, the same as that of brokers. A connection that receives nothing in this time is closed."""
HANDSHAKE_TIMEOUT_S = 10.0
"""Default deadline for CONNECTED after CONNECT."""
CHECK_INTERVAL_S = 0.2
"""Minimum time between the pings of `check_soon`, in seconds."""
MAX_SENDS_IN_FLIGHT = 500
"""Maximum number of entries in flight per connection. At 1000 (maxPendingPublishRequestsPerConnection) a broker stops reading the
socket, and then it also reads no pings and acknowledgements."""
MAX_BYTES_IN_FLIGHT = 32 << 20
"""Maximum bytes in flight per connection. It does not limit the throughput: even on a fast network, a broker has far fewer bytes
that it has not stored yet."""


class CredentialsRefused(Unreachable):
    """A cluster that accepted this client before now refuses its credentials; renewed credentials may help."""


class PushHandler(Protocol):
    """Interface of a producer, consumer or watcher, through which its connection passes on the broker's commands."""

    def on_push(self, frame: Frame) -> None:
        """Process a command; commands arrive in order. The connection removes the handler before it passes on a close."""

    def on_lost(self, error: Exception) -> None:
        """Process the loss of the connection; the connection makes no further calls of this handler."""


class ConsumerPushHandler(PushHandler, Protocol):
    """Interface of a consumer, through which its connection passes on the broker's commands and entries."""

    def on_run(self, run: EntryRun) -> None:
        """Process a run (entries that arrived together); calls of `on_run` and `on_push` are in the order of arrival."""


class Connection:
    """A connection to a broker, created by `open_connection`.

    `link` knows whether the cluster has ever accepted our credentials. If it has not, or without a `link`, refused credentials
    are a FATAL error.
    """

    def __init__(self, auth: Auth = NO_AUTH, keep_alive_s: float = KEEP_ALIVE_S, link: Link | None = None) -> None:
        self._auth, self._link = auth, link
        self._credentials = b""
        """The credentials that were sent last."""
        self._challenge_task: asyncio.Task[None] | None = None
        """Task that sends fresh credentials because the broker requested them."""
        self._keep_alive_s = keep_alive_s
        self._meter = FrameMeter()
        self.endpoint = Endpoint(self._meter.measure, self._on_frames, self._on_lost)
        self.max_message_size = DEFAULT_MAX_MESSAGE_SIZE
        """Maximum size of an entry's payload at this broker, in bytes; the default until CONNECTED arrives."""
        self.server_version = ""
        """Version of the broker as text; empty until CONNECTED arrives."""
        self.supports_topic_watches = False
        """True if the broker announced support for topic list watchers."""
        # Handlers by producer id, consumer id, and watcher id.
        self.producers: dict[int, PushHandler] = {}
        self.consumers: dict[int, ConsumerPushHandler] = {}
        self.watchers: dict[int, PushHandler] = {}
        self.window = RequestWindow(MAX_SENDS_IN_FLIGHT, MAX_BYTES_IN_FLIGHT)
        """Limits the entries in flight of all producers together."""
        self._request_ids = itertools.count(1)
        self._pending: Pending[int, BaseCommand] = Pending("the broker")
        self._exclusive_waits: dict[int, asyncio.Future[CommandProducerSuccess]] = {}
        """Request id of PRODUCER -> future, for producers that wait for exclusive access."""
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed by CONNECTED; failed if the connection ends before."""
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._pinged_at = 0.0
        """Loop time of the last ping of `_keep_alive`; 0 before the first one."""
        self.pings = self.pongs = 0
        """Number of pings that were sent, and of their responses. A broker processes commands in order: once there are n
        responses, it has received everything that was sent before ping n."""
        self._checked_at = 0.0
        """Loop time of the last ping of `check_soon`; 0 before the first one."""
        self._check_timer: asyncio.TimerHandle | None = None
        """Timer of the next ping of `check_soon`; None if there is none."""

    @property
    def alive(self) -> bool:
        """True while the connection is usable."""
        return self.endpoint.alive

    @property
    def principal(self) -> str | None:
        """This client's role at the broker; None if unknown."""
        return self._auth.principal

    # --- handshake and end ------------------------------------------------------------------------------------------

    async def handshake(self, credentials: bytes, proxy_to: str | None, timeout: float) -> None:
        """Send CONNECT and wait for CONNECTED, at most `timeout` seconds. Raises ClusterError.

        `proxy_to` is the `host:port` of the broker to which a proxy shall forward the connection; None without a proxy.
        """
        self._credentials = credentials
        self.endpoint.send(client_commands.connect(CLIENT_VERSION, self._auth.method, credentials, proxy_to))
        try:
            async with asyncio.timeout(timeout):
                await self._connected
        except TimeoutError as error:
            expired = RequestTimeout(f"{self.endpoint.peer} did not answer CONNECT within {timeout:g} s")
            self.endpoint.abort(expired)
            raise expired from error
        self._keep_alive_timer = asyncio.get_running_loop().call_later(self._keep_alive_s, self._keep_alive)

    async def close(self) -> None:
        """Write the queued data and close; then each handler's `on_lost` is called."""
        await self.endpoint.close()

    def _on_lost(self, error: Exception) -> None:
        """Fail all requests and waits, and notify and remove all handlers."""
        for timer in (self._keep_alive_timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        if self._challenge_task is not None:
            self._challenge_task.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # mark as retrieved: nobody may be waiting
        lost = (
            error
            if isinstance(error, ClusterError)
            else ConnectionLost(f"the connection to {self.endpoint.peer} was lost: {error}")
        )
        self._pending.fail_all(lost)
        for request_id in list(self._exclusive_waits):
            self.fail_exclusive_wait(request_id, lost)
        handlers = [*self.producers.values(), *self.consumers.values(), *self.watchers.values()]
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        for handler in handlers:
            handler.on_lost(lost)

    def _keep_alive(self) -> None:
        """Send a ping; abort the connection if nothing was received since the last ping."""
        if self._pinged_at and self.endpoint.received_at < self._pinged_at:
            self.endpoint.abort(PeerSilent(f"{self.endpoint.peer} has sent nothing for {self._keep_alive_s:g} s"))
            return
        if self.alive:
            self._ping()
            loop = asyncio.get_running_loop()
            self._pinged_at = loop.time()
            self._keep_alive_timer = loop.call_later(self._keep_alive_s, self._keep_alive)

    def _ping(self) -> None:
        self.endpoint.send(client_commands.PING)
        self.pings += 1

    def check_soon(self) -> int:
        """Send a ping now, or CHECK_INTERVAL_S after the last one; return its number.

        Once there are that many `pongs`, the broker has received everything that was sent before this call.
        """
        if self._check_timer is None:
            loop = asyncio.get_running_loop()
            due = self._checked_at + CHECK_INTERVAL_S
            if due > loop.time():
                self._check_timer = loop.call_at(due, self._check)
            else:
                self._check()
                return self.pings
        return self.pings + 1

    def _check(self) -> None:
        self._check_timer = None
        if self.alive:
            self._checked_at = asyncio.get_running_loop().time()
            self._ping()

    # --- requests ---------------------------------------------------------------------------------------------------

    def next_request_id(self) -> int:
        """Return an unused request id."""
        return next(self._request_ids)

    async def request(self, make_frame: Callable[[int], bytes], response_type: int, what: str, timeout: float) -> Any:
        """Send the frame that `make_frame` returns for a request id; return the body of the response.

        The response must be a command of `response_type`. `what` names the request in errors; `timeout` is in seconds. Raises
        ServerRefused, RequestTimeout, ConnectionLost.
        """
        request_id = self.next_request_id()
        future = self._pending.add(request_id, what, timeout)
        try:
            self.endpoint.send(make_frame(request_id))
        except ConnectionLost as error:  # raised by `await future`
            self._pending.reject(request_id, error)
        command = await future
        if command.type != response_type:
            violation = RemoteProtocolError(
                f"{self.endpoint.peer} answered the request for {what} with a command of type {command.type}, "
                f"expected {response_type}"
            )
            self.endpoint.abort(violation)
            raise ConnectionLost(str(violation))
        return RESPONSES[response_type](command)

    async def wait_exclusive_access(self, request_id: int) -> CommandProducerSuccess:
        """Wait, without a deadline, until a producer has exclusive access. Raises ClusterError.

        `request_id` is the id of the producer's PRODUCER request, whose response was "not ready".
        """
        try:
            return await self._exclusive_waits[request_id]
        finally:
            self._exclusive_waits.pop(request_id, None)

    # --- received commands ------------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        for frame_or_run in group_runs(frames):
            if isinstance(frame_or_run, bytes):
                self._on_frame(parse_frame(frame_or_run))
            elif (consumer := self.consumers.get(frame_or_run.consumer)) is not None:
                consumer.on_run(frame_or_run)

    def _on_frame(self, frame: Frame) -> None:
        command_type, command = frame.type, frame.command
        if command_type in PRODUCER_PUSHES:
            self._push(self.producers, PRODUCER_PUSHES[command_type](command), frame)
        elif command_type in CONSUMER_PUSHES:
            self._push(self.consumers, CONSUMER_PUSHES[command_type](command), frame)
        elif command_type in RESPONSES:
            is_pending = self._pending.resolve(RESPONSES[command_type](command).request_id, command)
            if command_type == BaseCommand.PRODUCER_SUCCESS:
                self._on_producer_success(command.producer_success, is_pending)
        else:
            self._on_control(command_type, frame)

    @staticmethod
    def _push(handlers: MutableMapping[int, Any], key: int, frame: Frame) -> None:
        """Pass a command to the handler with the id `key`, and remove the handler before a close command.

        A command for an unknown handler is ignored: the handler may just have been closed.
        """
        handler: PushHandler | None = handlers.pop(key, None) if frame.type in CLOSES else handlers.get(key)
        if handler is not None:
            handler.on_push(frame)

    def _on_producer_success(self, response: CommandProducerSuccess, is_pending: bool) -> None:
        """Process PRODUCER_SUCCESS; `is_pending` is True if a pending request has the same request id.

        A producer that must wait for exclusive access gets this command twice: first "not ready" as the response, later "ready".
        """
        future = self._exclusive_waits.get(response.request_id)
        if future is None:
            if is_pending and not response.producer_ready:
                self._exclusive_waits[response.request_id] = asyncio.get_running_loop().create_future()
        elif response.producer_ready and not future.done():
            future.set_result(response)

    def fail_exclusive_wait(self, request_id: int, error: ClusterError) -> None:
        """Fail the wait for exclusive access that this request began; do nothing if there is none."""
        future = self._exclusive_waits.get(request_id)
        if future is not None and not future.done():
            future.set_exception(error)
            future.exception()  # mark as retrieved: nobody may be waiting

    def _on_control(self, command_type: int, frame: Frame) -> None:
        """Process a command about the connection itself, a topic list or a migrated topic."""
        command = frame.command
        match command_type:
            case BaseCommand.PING:
                self.endpoint.reply(client_commands.PONG)
            case BaseCommand.PONG:
                self.pongs += 1
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
                if self._challenge_task is None or self._challenge_task.done():
                    self._challenge_task = spawn(self._answer_challenge(), f"fresh credentials for {self.endpoint.peer}")
            case _:
                log.warning("ignoring an unexpected command of type %d from broker %s", command_type, self.endpoint.peer)

    def _on_connected(self, command: BaseCommand) -> None:
        if self._connected.done():
            raise RemoteProtocolError(f"{self.endpoint.peer} sent CONNECTED twice")
        self.server_version = command.connected.server_version
        self.supports_topic_watches = command.connected.feature_flags.supports_topic_watchers
        if command.connected.max_message_size > 0:
            self.max_message_size = command.connected.max_message_size
            self._meter.allow(self.max_message_size)
        self._connected.set_result(None)

    def _on_error(self, command: BaseCommand) -> None:
        """Process ERROR: fail the request that it names, or abort the connection if it names none."""
        response = command.error
        if response.request_id != NO_REQUEST:
            error = codes.refusal_error(response.error, response.message, self.endpoint.peer)
            self._pending.reject(response.request_id, error)
            self.fail_exclusive_wait(response.request_id, error)
            return
        if response.error == codes.AUTHENTICATION:
            self.endpoint.abort(self._credentials_error(response.message))
        else:
            refusal = f"{self.endpoint.peer} refused the connection"
            self.endpoint.abort(codes.refusal_error(response.error, response.message, refusal))

    # --- credentials ------------------------------------------------------------------------------------------------

    async def _answer_challenge(self) -> None:
        """Respond to AUTH_CHALLENGE with fresh credentials, because those that the broker has are expired.

        This runs in a task, so that commands are received while the credentials are read.
        """
        try:
            self._credentials = await self._auth.credentials(fresh=True)
        except ClusterError as error:
            log.warning(
                "broker %s requests fresh credentials, but reading them failed; sending the previous credentials: %s",
                self.endpoint.peer,
                error,
            )
        if self.alive:
            self.endpoint.reply(client_commands.auth_response(CLIENT_VERSION, self._auth.method, self._credentials))

    def _credentials_error(self, message: str) -> ClusterError:
        """Return the error for refused credentials; `message` is the broker's reason.

        The error is temporary if the cluster accepted this client before, because renewed credentials may help then.
        """
        auth = self._auth
        problem = (
            f"{self.endpoint.peer} refuses {auth.description}: {auth.remedy} (method {auth.method}; the broker says: {message})"
        )
        if refusal_failure(self._link) is Failure.FATAL:
            return ServerRefused(problem, codes.AUTHENTICATION, Failure.FATAL)
        return CredentialsRefused(problem)
