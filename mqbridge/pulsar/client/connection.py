"""One connection to a broker: the handshake, keep-alive, requests and their answers, and what the broker pushes.

Producers and consumers are `Session`s of a connection: registered under their id they get what concerns them, and they hear once
that the connection is gone. Request ids come from one counter, so that an answer needs no other key.
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
from mqbridge.net.dial import lasting
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.pending import Pending
from mqbridge.net.tasks import spawn
from mqbridge.net.window import SendWindow
from mqbridge.pulsar.client.auth import NO_AUTH, Auth
from mqbridge.pulsar.client.dispatch import CLOSES, CONSUMER_PUSHES, PRODUCER_PUSHES, RESPONSES, is_for_producer
from mqbridge.pulsar.client.runs import Run, runs_in
from mqbridge.pulsar.wire import codes, commands
from mqbridge.pulsar.wire.frame import DEFAULT_MAX_MESSAGE_SIZE, Frame, FrameMeter, parse_frame
from mqbridge.pulsar.wire.ids import NO_REQUEST
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandProducerSuccess

log = logging.getLogger(__name__)

CLIENT_VERSION = f"mqbridge-{__version__}"
KEEP_ALIVE_S = 30.0
HANDSHAKE_TIMEOUT_S = 10.0
MAX_SENDS_IN_FLIGHT = 500
"""Per connection. At 1000 a broker stops reading the socket, and with it the pings and acknowledgements of everybody on it."""
MAX_BYTES_IN_FLIGHT = 32 << 20
"""Per connection; what a broker on a fast network has on the way to disk is far less."""


class CredentialsRefused(Unreachable):
    """By a cluster that has let us in before."""


class Session(Protocol):
    """A producer or consumer as its connection sees it."""

    def on_push(self, frame: Frame) -> None:
        """Something for this session, in the order of arrival; after a close by the broker it is no longer registered."""

    def on_lost(self, error: Exception) -> None:
        """The connection is gone; nothing more will come."""


class ConsumerSession(Session, Protocol):
    """A consumer as its connection sees it."""

    def on_run(self, run: Run) -> None:
        """Entries, in the order of arrival with what is pushed."""


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
        """Whether the broker announced that it can watch the list of topics."""
        self.producers: dict[int, Session] = {}
        self.consumers: dict[int, ConsumerSession] = {}
        self.watchers: dict[int, Session] = {}
        self.window = SendWindow(MAX_SENDS_IN_FLIGHT, MAX_BYTES_IN_FLIGHT)
        self._request_ids = itertools.count(1)
        self._pending: Pending[int, BaseCommand] = Pending("the broker")
        self._queued: dict[int, asyncio.Future[CommandProducerSuccess]] = {}
        """Producers that wait for exclusive access, by the request that they were answered."""
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tick: asyncio.TimerHandle | None = None
        self._pinged_at = 0.0

    @property
    def alive(self) -> bool:
        """Whether it can be used."""
        return self.endpoint.alive

    @property
    def principal(self) -> str | None:
        """Who we are to the broker, where that is known."""
        return self._auth.principal

    # --- handshake and end ------------------------------------------------------------------------------------------

    async def handshake(self, credentials: bytes, proxy_to: str | None, timeout: float) -> None:
        """CONNECT. Raises ClusterError."""
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
        """Write what is queued and close; sessions hear that the connection is lost."""
        await self.endpoint.close()

    def _on_lost(self, error: Exception) -> None:
        if self._tick is not None:
            self._tick.cancel()
        if self._challenged is not None:
            self._challenged.cancel()
        if not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # whoever waited may have gone
        lost = error if isinstance(error, ClusterError) else ConnectionLost(f"the connection to {self.endpoint.peer}: {error}")
        self._pending.fail_all(lost)
        for request_id in list(self._queued):
            self.stop_queueing(request_id, lost)
        sessions = [*self.producers.values(), *self.consumers.values(), *self.watchers.values()]
        self.producers.clear()
        self.consumers.clear()
        self.watchers.clear()
        for session in sessions:
            session.on_lost(lost)

    def _keep_alive(self) -> None:
        """At every tick: a ping that nothing has followed since the last one means that the peer is gone."""
        if self._pinged_at and self.endpoint.received_at < self._pinged_at:
            self.endpoint.abort(PeerSilent(f"{self.endpoint.peer} has said nothing for {self._keep_alive_s:g} s"))
            return
        if self.alive:
            self.endpoint.send(commands.PING)
            loop = asyncio.get_running_loop()
            self._pinged_at = loop.time()
            self._tick = loop.call_later(self._keep_alive_s, self._keep_alive)

    # --- requests ---------------------------------------------------------------------------------------------------

    def next_request_id(self) -> int:
        """A request id that no other request of this connection has."""
        return next(self._request_ids)

    async def request(self, make: Callable[[int], bytes], expect: int, what: str, timeout: float) -> Any:
        """Send what `make` gives for a request id; the body of the answer, which must be of type `expect`.

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
            wrong = RemoteProtocolError(f"{self.endpoint.peer} answered {what} by a command of type {command.type}")
            self.endpoint.abort(wrong)
            raise ConnectionLost(str(wrong))
        return RESPONSES[expect](command)

    async def exclusive_access(self, request_id: int) -> CommandProducerSuccess:
        """Wait, without a deadline, until a producer that was answered "not ready" is; raises ClusterError."""
        try:
            return await self._queued[request_id]
        finally:
            self._queued.pop(request_id, None)

    # --- what arrives -----------------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        for found in runs_in(frames):
            if isinstance(found, bytes):
                self._on_frame(parse_frame(found))
            elif (consumer := self.consumers.get(found.consumer)) is not None:
                consumer.on_run(found)

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
    def _push(sessions: MutableMapping[int, Any], key: int, frame: Frame) -> None:
        """A session that was closed a moment ago may still be spoken to; that is not an error."""
        session: Session | None = sessions.pop(key, None) if frame.type in CLOSES else sessions.get(key)
        if session is not None:
            session.on_push(frame)

    def _on_producer_success(self, said: CommandProducerSuccess, awaited: bool) -> None:
        """The first of two, where the producer has to wait, or the second: by then nobody waits for an answer."""
        queued = self._queued.get(said.request_id)
        if queued is None:
            if awaited and not said.producer_ready:
                self._queued[said.request_id] = asyncio.get_running_loop().create_future()
        elif said.producer_ready and not queued.done():
            queued.set_result(said)

    def stop_queueing(self, request_id: int, error: ClusterError) -> None:
        """Whoever waits for exclusive access by this request gets the error instead."""
        queued = self._queued.get(request_id)
        if queued is not None and not queued.done():
            queued.set_exception(error)
            queued.exception()  # whoever waited may have gone

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
                log.warning("%s sent a command of type %d, which is not expected here: ignored", self.endpoint.peer, kind)

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
        said = command.error
        if said.request_id != NO_REQUEST:
            error = codes.refused(said.error, said.message, self.endpoint.peer)
            self._pending.reject(said.request_id, error)
            self.stop_queueing(said.request_id, error)
            return
        if said.error == codes.AUTHENTICATION:
            self.endpoint.abort(self._refused_credentials(said.message))
        else:
            self.endpoint.abort(codes.refused(said.error, said.message, f"{self.endpoint.peer} refused the connection"))

    # --- credentials ------------------------------------------------------------------------------------------------

    async def _answer_challenge(self) -> None:
        """The broker wants fresh credentials, because those that it has have expired. Reading goes on meanwhile."""
        try:
            self._credentials = await self._auth.credentials(fresh=True)
        except ClusterError as error:
            log.warning("%s wants fresh credentials, and gets the last ones: %s", self.endpoint.peer, error)
        if self.alive:
            self.endpoint.send(commands.auth_response(CLIENT_VERSION, self._auth.method, self._credentials))

    def _refused_credentials(self, message: str) -> ClusterError:
        """Once the cluster has let us in, this passes when the credentials are renewed, as an outage does."""
        auth = self._auth
        problem = f"{self.endpoint.peer} refuses {auth.shown}: {auth.advice} (method {auth.method}; it says: {message})"
        if lasting(self._link) is Failure.FATAL:
            return ServerRefused(problem, codes.AUTHENTICATION, Failure.FATAL)
        return CredentialsRefused(problem)
