"""The connection of a client.

    HANDSHAKE  nothing but CONNECT (and PING) is accepted
    READY      requests are served
    CLOSED     lost, or closed by us; its producers and consumers are gone

        CONNECT           HANDSHAKE -> READY
        (violation, end)  HANDSHAKE, READY -> CLOSED

Requests are answered as they are done, in any order: each answer names its request. The sends of a producer are answered in their
order. While too much waits to be stored, or too many requests run, nothing more is read from the client.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from functools import partial
from typing import Any, NamedTuple

from mqbridge import __version__, native
from mqbridge.errors import PeerSilent, ProtocolError, RequestRefused
from mqbridge.net.listen import ServedEndpoint
from mqbridge.net.tasks import spawn
from mqbridge.pulsar.server.broker import REQUEST_TIMEOUT_S, Broker
from mqbridge.pulsar.server.consumer import ServedConsumer, ServedConsumerState
from mqbridge.pulsar.server.producer import ServedProducer, ServedProducerState
from mqbridge.pulsar.server.refusals import CodedRefusal, code_of, text_of
from mqbridge.pulsar.server.send_runs import SendCutter, SendRun
from mqbridge.pulsar.server.subscription import ServedSubscription
from mqbridge.pulsar.server.support import TOPIC_WATCHERS, TRANSACTIONS
from mqbridge.pulsar.wire import codes, ids, server_commands
from mqbridge.pulsar.wire.client_commands import PING, PONG
from mqbridge.pulsar.wire.frame import Frame, FrameMeter, parse_frame
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandAck

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 30.0
"""Time after which a client that sends nothing is asked whether it lives, and after which it must have answered: a broker's."""
PROBE_S = 5.0
"""Time in which a client must answer if another one wants its name."""
MAX_PENDING_SENDS = 1000
"""Maximum number of sends of a connection that are not answered; then nothing more is read from it. A broker's limit."""
MAX_PENDING_REQUESTS = 1000
"""Maximum number of requests of a connection that are served at the same time; then nothing more is read from it."""
MAX_HANDLERS = 10_000
"""Maximum number of producers, and of consumers, of a connection."""
PROBE_CHECK_S = 0.05
"""Pause between two checks whether a client has answered."""
MAX_TEXT_CHARS = 200
"""Maximum length of the client's version that is kept."""
CLOSED_MEMORY = 1000
"""Number of producers that we have closed and of which sends may still come, which are ignored; and of consumers in `_left`."""
LATE_ACK_S = 1.0
"""Time in which acknowledgements of a consumer count that its client has closed: the client for Java writes those that its timer
has collected beside what it closes with, and sometimes after it. A broker ignores them, and delivers the messages again."""
TRANSACTION_COMMANDS: dict[int, str] = {
    BaseCommand.TC_CLIENT_CONNECT_REQUEST: "tcClientConnectRequest",
    BaseCommand.NEW_TXN: "newTxn",
    BaseCommand.ADD_PARTITION_TO_TXN: "addPartitionToTxn",
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN: "addSubscriptionToTxn",
    BaseCommand.END_TXN: "endTxn",
}
"""The commands of transactions, with the name of their field."""
_GATHERED = frozenset({BaseCommand.SEND, BaseCommand.FLOW, BaseCommand.ACK})
"""Commands whose work is done once for many of them, see `ServedConnection._finish_gathered`."""
SERVER_VERSION = f"mqbridge {__version__}"


class LeftConsumer(NamedTuple):
    """A consumer that its client has closed at this loop time; `generations` are those of its feeds then."""

    consumer: ServedConsumer
    subscription: ServedSubscription
    generations: tuple[int, int]
    at: float


class ConnectionState(Enum):
    """The state of a connection, see the module."""

    HANDSHAKE = "handshake"
    READY = "ready"
    CLOSED = "closed"


class ConsumerMissing(CodedRefusal):
    """A request names a consumer that is not open."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem, codes.METADATA)


class ServedConnection:
    """See the module; the session of a `ListeningPort`."""

    def __init__(self, broker: Broker, on_change: "Callable[[ServedConnection, bool], None]") -> None:
        """`on_change` is called with True when the connection is made, and with False when it has ended."""
        self.state = ConnectionState.HANDSHAKE
        self.peer = "?"
        self.client_version = ""
        self.principal: str | None = None
        """Who the client is; None: nobody is asked yet."""
        self._meter = FrameMeter()
        self.measure = self._meter.measure
        self.pending_sends = 0
        self.producers: dict[int, ServedProducer] = {}
        self.consumers: dict[int, tuple[ServedConsumer, ServedSubscription | None]] = {}
        """Consumers by their id, with their subscription once it is open."""
        self._broker, self._on_change = broker, on_change
        self._endpoint: ServedEndpoint
        self._left: dict[int, LeftConsumer] = {}
        """Consumers that the client has closed, the oldest first, for LATE_ACK_S and a while longer."""
        self._closed_producers: dict[int, None] = {}
        """Ids of producers that we have closed, the oldest first."""
        self._sending: dict[ServedProducer, None] = {}
        """Producers that have to be flushed."""
        self._dispatching: dict[ServedSubscription, None] = {}
        """Subscriptions that may have something to deliver."""
        self._requests = 0
        self._keep_alive: asyncio.TimerHandle | None = None
        self._pinged_at: float | None = None
        """Loop time of a PING that nothing was received after yet."""
        self._is_waiting_to_write = False
        self._delivered_bytes = 0
        """Bytes that the client had read at the last tick."""
        self._probe: asyncio.Task[bool] | None = None
        """The task that finds out if the client answers, while there is one."""
        self._handlers: dict[int, Callable[[BaseCommand], None]] = self._make_handlers()

    # --- the session ----------------------------------------------------------------------------------------------------

    def on_connected(self, endpoint: ServedEndpoint) -> None:
        """Begin; the port limits the time of the handshake."""
        self._endpoint, self.peer = endpoint, endpoint.peer
        if native.compiled is not None:
            endpoint.on_bytes = partial(self._on_bytes, SendCutter(self._meter))
        self._on_change(self, True)

    def _on_bytes(self, cutter: SendCutter, data: bytes) -> None:
        """Cut what was received with the compiled module."""
        if frames := cutter.feed(data, self._broker.max_message_bytes):
            self.on_frames(frames)

    def on_frames(self, frames: Sequence[bytes | SendRun]) -> None:
        """Handle frames, and runs of frames. A violation of the protocol closes the connection."""
        try:
            for each in frames:
                if isinstance(each, bytes):
                    self._handle(each)
                elif self.state is ConnectionState.READY and self._gathers(each.producer):
                    self._on_run(each)
                else:
                    for data in each.frames:
                        self._handle(data)
        finally:
            self._finish_gathered()
        self._limit_reading()

    def _handle(self, data: bytes) -> None:
        if self.state is not ConnectionState.CLOSED:
            self._on_frame(parse_frame(data))

    def _gathers(self, producer_id: int) -> bool:
        """Return True if a producer stores the entries of runs; otherwise their frames are handled one by one."""
        producer = self.producers.get(producer_id)
        return producer is not None and producer.gathers

    def _on_run(self, run: SendRun) -> None:
        producer = self.producers[run.producer]
        self._sending[producer] = None
        try:
            producer.gather(run)
        except Exception:  # a bug: what was answered is not known, so the client begins anew
            log.exception("a run of sends of %s failed unexpectedly", self.peer)
            self.fail(codes.UNKNOWN, "the command failed unexpectedly")

    def _on_frame(self, frame: Frame) -> None:
        try:
            if frame.type == BaseCommand.SEND and self.state is ConnectionState.READY:
                self._on_send(frame)
            else:
                if frame.type not in _GATHERED:
                    self._finish_gathered()
                self._on_command(frame)
        except ProtocolError:
            raise
        except Exception:  # a bug: what was answered is not known, so the client begins anew
            log.exception("command %d of %s failed unexpectedly", frame.type, self.peer)
            self.fail(codes.UNKNOWN, "the command failed unexpectedly")

    def _finish_gathered(self) -> None:
        """Store what SEND has brought, and deliver what FLOW and ACK permit: once for many frames that came together."""
        if self._sending:
            sending, self._sending = self._sending, {}
            for producer in sending:
                producer.flush()
        if self._dispatching:
            dispatching, self._dispatching = self._dispatching, {}
            for subscription in dispatching:
                subscription.dispatch()

    def on_lost(self, error: Exception) -> None:
        """End all producers and consumers."""
        self.state = ConnectionState.CLOSED
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        self._on_change(self, False)
        log.debug("client %s is gone: %s", self.peer, error)
        producers, consumers = list(self.producers.values()), list(self.consumers.values())
        self.producers.clear()
        self.consumers.clear()
        for producer in producers:
            self._settle(self._broker.drop_producer, producer)
        for consumer, subscription in consumers:
            self._settle(self._broker.remove_consumer, consumer, subscription)

    def _settle(self, end: Callable[..., None], *arguments: object) -> None:
        """End a producer or a consumer; an error does not keep the others."""
        try:
            end(*arguments)
        except Exception:
            log.exception("a producer or a consumer of %s did not end as it should", self.peer)

    def fail(self, code: int, problem: str) -> None:
        """Close the connection because of an error of the client, which is told."""
        self.send(server_commands.error(ids.NO_REQUEST, code, problem))
        self.state = ConnectionState.CLOSED
        log.info("closing the connection of %s: %s", self.peer, problem[:MAX_TEXT_CHARS])
        spawn(self._endpoint.close(), f"close of {self.peer}")

    async def close(self) -> None:
        """Close the connection once what was sent is written."""
        await self._endpoint.close()

    # --- sending (see `ClientLink`) --------------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """False while the client does not read what was sent; the consumers are served again when it does."""
        endpoint = self._endpoint
        if not endpoint.alive:
            return False
        if endpoint.is_writable:
            return True
        if not self._is_waiting_to_write:
            self._is_waiting_to_write = True
            spawn(self._wait_writable(), f"writing to {self.peer}")
        return False

    async def _wait_writable(self) -> None:
        try:
            await self._endpoint.wait_for_room()  # until the connection ends, at the latest: keep-alive sees to that
        finally:
            self._is_waiting_to_write = False
        self._endpoint.resume_reading("unread")
        for _, subscription in list(self.consumers.values()):
            if subscription is not None:
                subscription.dispatch()

    def send(self, *pieces: bytes) -> None:
        """Send frames; does nothing if the connection has ended."""
        self._endpoint.try_send(*pieces)

    def reply(self, *pieces: bytes) -> None:
        """Send the answer to a request; a client that reads no answers loses its connection."""
        if self._endpoint.alive:
            self._endpoint.reply(*pieces)

    # --- keep-alive -------------------------------------------------------------------------------------------------------

    def _start_keep_alive(self) -> None:
        self._keep_alive = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._tick)

    def _tick(self) -> None:
        """Ask a client that has sent nothing whether it lives, and close the connection of one that has not answered.

        A client that we do not read because it reads nothing itself has to read something from tick to tick.
        """
        endpoint = self._endpoint
        if self.state is ConnectionState.CLOSED or not endpoint.alive:
            return
        if self._pinged_at is not None and endpoint.received_at < self._pinged_at and not endpoint.is_reading_paused:
            endpoint.abort(PeerSilent(f"{self.peer} has not answered PING within {KEEP_ALIVE_S:g} s"))
            return
        delivered, before = endpoint.delivered_bytes, self._delivered_bytes
        if not endpoint.is_writable and delivered == before:
            endpoint.abort(PeerSilent(f"{self.peer} has read nothing within {KEEP_ALIVE_S:g} s"))
            return
        self._delivered_bytes = delivered
        self._pinged_at = asyncio.get_running_loop().time()
        self.send(PING)
        self._start_keep_alive()

    async def is_alive(self) -> bool:
        """Find out if the client still answers; if not, close its connection. All who ask at the same time get one answer."""
        if not self._endpoint.alive:
            return False
        if self._probe is None or self._probe.done():
            self._probe = spawn(self._answers(), f"probe of {self.peer}")
        return await asyncio.shield(self._probe)

    async def _answers(self) -> bool:
        endpoint, loop = self._endpoint, asyncio.get_running_loop()
        asked_at = loop.time()
        self.send(PING)
        while endpoint.alive and endpoint.received_at <= asked_at and loop.time() < asked_at + PROBE_S:
            if endpoint.is_reading_paused:  # by us: it cannot answer
                return True
            await asyncio.sleep(PROBE_CHECK_S)
        if endpoint.alive and endpoint.received_at <= asked_at:
            endpoint.abort(PeerSilent(f"{self.peer} has not answered PING within {PROBE_S:g} s, and its place is wanted"))
        return endpoint.alive

    # --- reading ----------------------------------------------------------------------------------------------------------

    def _limit_reading(self) -> None:
        """Stop reading while too much waits; reading goes on when it has become less."""
        if self.state is ConnectionState.CLOSED:
            return
        if self._broker.services.in_flight.is_full:
            self._endpoint.pause_reading("bytes in flight")
            self._broker.services.in_flight.wait(self._on_room)
        if self.pending_sends >= MAX_PENDING_SENDS:
            self._endpoint.pause_reading("sends")
        if self._requests >= MAX_PENDING_REQUESTS:
            self._endpoint.pause_reading("requests")
        if self._endpoint.alive and not self.is_writable:  # what it sends is answered, and the answers would wait here
            self._endpoint.pause_reading("unread")

    def _on_room(self) -> None:
        self._endpoint.resume_reading("bytes in flight")

    def on_answered(self) -> None:
        """Read on if fewer sends are waiting now; called after each answer of a producer."""
        if self._endpoint.is_reading_paused and self.pending_sends < MAX_PENDING_SENDS // 2:
            self._endpoint.resume_reading("sends")

    # --- commands ---------------------------------------------------------------------------------------------------------

    def _make_handlers(self) -> dict[int, Callable[[BaseCommand], None]]:
        return {
            BaseCommand.PONG: lambda _: None,
            BaseCommand.AUTH_RESPONSE: lambda _: None,
            BaseCommand.PARTITIONED_METADATA: self._on_partition_metadata,
            BaseCommand.LOOKUP: self._on_lookup,
            BaseCommand.GET_TOPICS_OF_NAMESPACE: self._on_topics_of_namespace,
            BaseCommand.GET_SCHEMA: self._on_get_schema,
            BaseCommand.GET_OR_CREATE_SCHEMA: self._on_get_or_create_schema,
            BaseCommand.PRODUCER: self._on_producer,
            BaseCommand.CLOSE_PRODUCER: self._on_close_producer,
            BaseCommand.SUBSCRIBE: self._on_subscribe,
            BaseCommand.FLOW: self._on_flow,
            BaseCommand.ACK: self._on_ack,
            BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES: self._on_redeliver,
            BaseCommand.CLOSE_CONSUMER: self._on_close_consumer,
            BaseCommand.UNSUBSCRIBE: self._on_unsubscribe,
            BaseCommand.SEEK: self._on_seek,
            BaseCommand.GET_LAST_MESSAGE_ID: self._on_last_message_id,
            BaseCommand.CONSUMER_STATS: self._on_consumer_stats,
            BaseCommand.WATCH_TOPIC_LIST: self._on_topic_watcher,
            BaseCommand.WATCH_TOPIC_LIST_CLOSE: self._on_topic_watcher,
            **{number: partial(self._on_transaction, name) for number, name in TRANSACTION_COMMANDS.items()},
        }

    def _on_command(self, frame: Frame) -> None:
        if frame.type == BaseCommand.PING:
            self.reply(PONG)
            return
        if self.state is ConnectionState.HANDSHAKE:
            self._on_handshake(frame)
            return
        handler = self._handlers.get(frame.type)
        if handler is None:
            self.fail(codes.NOT_ALLOWED, f"command {frame.type} is not one that a client sends after CONNECT")
            return
        handler(frame.command)

    def _on_handshake(self, frame: Frame) -> None:
        if frame.type != BaseCommand.CONNECT:
            self.fail(codes.NOT_ALLOWED, "the first command of a connection has to be CONNECT")
            return
        command = frame.command.connect
        self.client_version = command.client_version[:MAX_TEXT_CHARS]
        self.state = ConnectionState.READY
        self._endpoint.handshake_done()
        self.reply(server_commands.connected(SERVER_VERSION, command.protocol_version, self._broker.max_message_bytes))
        self._start_keep_alive()
        log.debug("client %s: %s, protocol version %d", self.peer, self.client_version, command.protocol_version)

    def _on_topic_watcher(self, command: BaseCommand) -> None:
        request = command.watchTopicList if command.HasField("watchTopicList") else command.watchTopicListClose
        self.reply(server_commands.error(request.request_id, codes.NOT_ALLOWED, TOPIC_WATCHERS))

    def _on_transaction(self, field: str, command: BaseCommand) -> None:
        request = getattr(command, field)  # not by the type of the command: one that has two of them counts by its first
        self.reply(server_commands.error(request.request_id, codes.NOT_ALLOWED, TRANSACTIONS))

    def _serve(
        self,
        request: Coroutine[Any, Any, None],
        request_id: int,
        encode_error: Callable[[int, int, str], bytes] = server_commands.error,
        busy: int = codes.CONSUMER_BUSY,
    ) -> None:
        """Serve a request in a task; an error is the answer. `busy` is the code of what another client has."""
        self._requests += 1
        spawn(self._served(request, request_id, encode_error, busy), f"request of {self.peer}")

    async def _served(
        self, request: Coroutine[Any, Any, None], request_id: int, encode_error: Callable[[int, int, str], bytes], busy: int
    ) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await request
        except Exception as error:  # the client gets every error; a bug is logged, too
            code = code_of(error, busy)
            if code is None:
                log.exception("a request of %s failed unexpectedly", self.peer)
                code = codes.UNKNOWN
            else:
                log.info("a request of %s was refused: %s", self.peer, text_of(error))
            self._broker.refused_requests += 1
            self.reply(encode_error(request_id, code, text_of(error)))
        finally:
            self._end_request()

    def _end_request(self) -> None:
        """Count one request less that is being served."""
        self._requests -= 1
        if self._requests < max(1, MAX_PENDING_REQUESTS // 2):
            self._endpoint.resume_reading("requests")

    # --- topics and schemas ---------------------------------------------------------------------------------------------

    def _on_partition_metadata(self, command: BaseCommand) -> None:
        request = command.partitionMetadata

        async def serve() -> None:
            create = request.metadata_auto_creation_enabled
            partitions = await self._broker.partition_count(request.topic, create=create)
            self.reply(server_commands.partition_metadata(request.request_id, partitions))

        self._serve(serve(), request.request_id, server_commands.partition_metadata_error)

    def _on_lookup(self, command: BaseCommand) -> None:
        request = command.lookupTopic

        async def serve() -> None:
            self._broker.check_serves(request.topic)
            self.reply(server_commands.lookup(request.request_id, self.service_url))

        self._serve(serve(), request.request_id, server_commands.lookup_error)

    @property
    def service_url(self) -> str:
        """The URL at which this client finds the listener: the configured one, or the address that it has used."""
        return f"pulsar://{self._broker.services.advertise or self._endpoint.local_address}"

    def _on_topics_of_namespace(self, command: BaseCommand) -> None:
        request = command.getTopicsOfNamespace

        async def serve() -> None:
            found = await self._broker.list_namespace(
                request.namespace, request.topics_pattern if request.HasField("topics_pattern") else None
            )
            is_changed = not request.topics_hash or request.topics_hash != found.hash
            self.reply(
                server_commands.topics_of_namespace(
                    request.request_id,
                    found.names if is_changed else (),
                    found.hash,
                    is_filtered=found.is_filtered,
                    is_changed=is_changed,
                )
            )

        self._serve(serve(), request.request_id)

    def _on_get_schema(self, command: BaseCommand) -> None:
        request = command.getSchema

        async def serve() -> None:
            version = request.schema_version if request.HasField("schema_version") else None
            found = await self._broker.find_schema(request.topic, version)
            self.reply(server_commands.schema(request.request_id, found.schema.to_wire(), found.version))

        self._serve(serve(), request.request_id, server_commands.schema_error)

    def _on_get_or_create_schema(self, command: BaseCommand) -> None:
        request = command.getOrCreateSchema

        async def serve() -> None:
            version = await self._broker.register_schema(request.topic, request.schema)
            self.reply(server_commands.registered_schema(request.request_id, version))

        self._serve(serve(), request.request_id, server_commands.registered_schema_error)

    # --- producers ------------------------------------------------------------------------------------------------------

    def _on_producer(self, command: BaseCommand) -> None:
        request = command.producer
        existing = self.producers.get(request.producer_id)
        if existing is not None and existing.epoch >= request.epoch:
            if existing.state is ServedProducerState.OPEN:
                self.reply(self._producer_success(request.request_id, existing, existing.schema_version, is_ready=True))
            else:
                self.reply(server_commands.error(request.request_id, codes.SERVICE_NOT_READY, "the producer is being opened"))
            return
        if existing is not None:
            self._forget_producer(existing)
            self._broker.drop_producer(existing)
        if len(self.producers) >= MAX_HANDLERS:
            self.reply(server_commands.error(request.request_id, codes.NOT_ALLOWED, "the connection has too many producers"))
            return
        producer = self._broker.make_producer(self, request)
        producer.drop = partial(self.drop_producer, producer)
        self.producers[request.producer_id] = producer
        self._closed_producers.pop(request.producer_id, None)

        async def serve() -> None:
            try:
                opened = await self._broker.open_producer(producer, request, on_waiting)
            except BaseException:
                self._forget_producer(producer)
                raise
            if producer.state is ServedProducerState.OPEN:
                producer.schema_version = opened
                self.reply(self._producer_success(request.request_id, producer, opened, is_ready=True))

        def on_waiting() -> None:
            """Answer that it waits; then it does not count as a request: it may wait without a limit."""
            self.reply(self._producer_success(request.request_id, producer, b"", is_ready=False))
            counted.clear()
            self._end_request()

        counted = [True]
        self._requests += 1
        spawn(self._served_producer(serve(), request.request_id, counted), f"producer of {self.peer}")

    async def _served_producer(self, request: Coroutine[Any, Any, None], request_id: int, counted: list[bool]) -> None:
        """Serve the opening of a producer, which limits its own steps; it counts as a request while `counted` is not empty."""
        try:
            await request
        except Exception as error:  # the client gets every error; a bug is logged, too
            code = code_of(error, codes.PRODUCER_BUSY)
            if code is None:
                log.exception("a producer of %s could not be opened", self.peer)
                code = codes.UNKNOWN
            else:
                log.info("a producer of %s was refused: %s", self.peer, text_of(error))
            self._broker.refused_requests += 1
            self.reply(server_commands.error(request_id, code, text_of(error)))
        finally:
            if counted:
                self._end_request()

    def _producer_success(self, request_id: int, producer: ServedProducer, schema_version: bytes, *, is_ready: bool) -> bytes:
        last = -1 if producer.publisher is None or producer.publisher.last_sequence is None else producer.publisher.last_sequence
        return server_commands.producer_success(
            request_id, producer.name, last, schema_version, topic_epoch=producer.topic_epoch, is_ready=is_ready
        )

    def _on_send(self, frame: Frame) -> None:
        command = frame.command.send
        producer = self.producers.get(command.producer_id)
        if producer is not None:
            self._sending[producer] = None
            producer.send(command, frame.data, frame.entry_offset, self._broker.max_message_bytes)
        elif command.producer_id not in self._closed_producers:
            self.fail(codes.NOT_ALLOWED, f"SEND for producer {command.producer_id}, which is not open")

    def _on_close_producer(self, command: BaseCommand) -> None:
        request = command.close_producer
        producer = self.producers.pop(request.producer_id, None)

        async def serve() -> None:
            if producer is not None:
                await self._broker.close_producer(producer)
            self.reply(server_commands.success(request.request_id))

        self._serve(serve(), request.request_id)

    def drop_producer(self, producer: ServedProducer) -> None:
        """Close a producer, whose client opens it again: sends that are on their way are ignored."""
        if self.producers.get(producer.id) is producer:
            del self.producers[producer.id]
            self._closed_producers[producer.id] = None
            if len(self._closed_producers) > CLOSED_MEMORY:
                del self._closed_producers[next(iter(self._closed_producers))]
            producer.send_away()
        self._broker.drop_producer(producer)

    def _forget_producer(self, producer: ServedProducer) -> None:
        if self.producers.get(producer.id) is producer:
            del self.producers[producer.id]

    # --- consumers ------------------------------------------------------------------------------------------------------

    def _on_subscribe(self, command: BaseCommand) -> None:
        request = command.subscribe
        if request.consumer_id in self.consumers:
            consumer, _ = self.consumers[request.consumer_id]
            if consumer.state is ServedConsumerState.OPEN:
                self.reply(server_commands.success(request.request_id))
                return
            if consumer.state is ServedConsumerState.OPENING:
                self.reply(server_commands.error(request.request_id, codes.SERVICE_NOT_READY, "the consumer is being opened"))
                return
            self._broker.remove_consumer(*self.consumers.pop(request.consumer_id))  # it was sent away
        if len(self.consumers) >= MAX_HANDLERS:
            self.reply(server_commands.error(request.request_id, codes.NOT_ALLOWED, "the connection has too many consumers"))
            return
        try:
            consumer = self._broker.make_consumer(self, request)
        except RequestRefused as error:
            self._broker.refused_requests += 1
            code = code_of(error, codes.CONSUMER_BUSY) or codes.UNKNOWN
            self.reply(server_commands.error(request.request_id, code, text_of(error)))
            return
        self.consumers[request.consumer_id] = consumer, None

        async def serve() -> None:
            try:
                subscription = await self._broker.subscribe(consumer, request)
            except BaseException:
                self._forget_consumer(consumer)
                raise
            if consumer.state is ServedConsumerState.CLOSED:
                self._broker.remove_consumer(consumer, subscription)
                return
            self.consumers[request.consumer_id] = consumer, subscription
            self.reply(server_commands.success(request.request_id))
            subscription.announce(consumer)

        self._serve(serve(), request.request_id)

    def _forget_consumer(self, consumer: ServedConsumer) -> None:
        if consumer.id in self.consumers and self.consumers[consumer.id][0] is consumer:
            del self.consumers[consumer.id]

    def _open_consumer(self, consumer_id: int) -> tuple[ServedConsumer, ServedSubscription] | None:
        """Return an open consumer with its subscription."""
        consumer, subscription = self.consumers.get(consumer_id, (None, None))
        if consumer is None or subscription is None or consumer.state is not ServedConsumerState.OPEN:
            return None
        return consumer, subscription

    def _on_flow(self, command: BaseCommand) -> None:
        request = command.flow
        if request.messagePermits == 0:
            self.fail(codes.NOT_ALLOWED, "FLOW with 0 permits")
        elif (found := self._open_consumer(request.consumer_id)) is not None:
            consumer, subscription = found
            subscription.grant(consumer, request.messagePermits)
            self._dispatching[subscription] = None

    def _on_ack(self, command: BaseCommand) -> None:
        request = command.ack
        found = self._open_consumer(request.consumer_id)
        if found is None:
            self._on_late_ack(request)
            return
        consumer, subscription = found
        has_request = request.HasField("request_id")
        if request.txnid_least_bits or request.txnid_most_bits:
            if has_request:
                self.reply(server_commands.ack_response(consumer.id, request.request_id, codes.NOT_ALLOWED, TRANSACTIONS))
            return
        if request.ack_type == CommandAck.Cumulative:
            if len(request.message_id) == 1:
                subscription.acknowledge_to(request.message_id[0], consumer)
        else:
            subscription.acknowledge(request.message_id)
        self._dispatching[subscription] = None
        if has_request:
            self._serve(
                self._answer_ack(consumer, subscription, request.request_id),
                request.request_id,
                lambda request_id, code, text: server_commands.ack_response(consumer.id, request_id, code, text),
            )

    def _on_late_ack(self, request: CommandAck) -> None:
        """Let the acknowledgements of a consumer count that was closed just now, while nobody else has the messages."""
        if request.txnid_least_bits or request.txnid_most_bits:
            return  # it would count only with its transaction, and there are none
        left = self._left.get(request.consumer_id)
        if left is None or left.at < asyncio.get_running_loop().time() - LATE_ACK_S:
            return
        if left.generations != left.subscription.feeds.generations:
            return  # the messages may have come anew since
        if request.ack_type != CommandAck.Cumulative:
            left.subscription.acknowledge_queued(request.message_id)
        elif len(request.message_id) == 1 and not left.subscription.feed.is_any_out:
            left.subscription.acknowledge_to(request.message_id[0], left.consumer)

    async def _answer_ack(self, consumer: ServedConsumer, subscription: ServedSubscription, request_id: int) -> None:
        await subscription.feeds.recorded()
        self.reply(server_commands.ack_response(consumer.id, request_id))

    def _on_redeliver(self, command: BaseCommand) -> None:
        request = command.redeliverUnacknowledgedMessages
        if (found := self._open_consumer(request.consumer_id)) is not None:
            consumer, subscription = found
            epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
            subscription.redeliver(consumer, request.message_ids, epoch)

    def _on_close_consumer(self, command: BaseCommand) -> None:
        request = command.close_consumer
        if request.consumer_id in self.consumers:
            consumer, subscription = self.consumers.pop(request.consumer_id)
            self._broker.remove_consumer(consumer, subscription)
            if subscription is not None:
                self._remember_left(consumer, subscription)
        self.reply(server_commands.success(request.request_id))

    def _remember_left(self, consumer: ServedConsumer, subscription: ServedSubscription) -> None:
        """Remember a consumer that its client has closed, and forget those of more than LATE_ACK_S ago."""
        now = asyncio.get_running_loop().time()
        while self._left and next(iter(self._left.values())).at < now - LATE_ACK_S:
            del self._left[next(iter(self._left))]
        self._left.pop(consumer.id, None)
        if len(self._left) < CLOSED_MEMORY:
            self._left[consumer.id] = LeftConsumer(consumer, subscription, subscription.feeds.generations, now)

    def _on_unsubscribe(self, command: BaseCommand) -> None:
        request = command.unsubscribe

        async def serve() -> None:
            consumer, subscription = self._existing(request.consumer_id)
            await self._broker.unsubscribe(consumer, subscription, force=request.force)
            self._forget_consumer(consumer)
            self.reply(server_commands.success(request.request_id))

        self._serve(serve(), request.request_id, busy=codes.METADATA)

    def _existing(self, consumer_id: int) -> tuple[ServedConsumer, ServedSubscription]:
        """Return an open consumer. Raises ConsumerMissing."""
        if (found := self._open_consumer(consumer_id)) is None:
            raise ConsumerMissing(f"consumer {consumer_id} is not open")
        return found

    def _on_seek(self, command: BaseCommand) -> None:
        request = command.seek

        async def serve() -> None:
            _, subscription = self._existing(request.consumer_id)
            await self._broker.seek(subscription, request)
            self.reply(server_commands.success(request.request_id))

        self._serve(serve(), request.request_id)

    def _on_last_message_id(self, command: BaseCommand) -> None:
        request = command.getLastMessageId

        async def serve() -> None:
            _, subscription = self._existing(request.consumer_id)
            last = await self._broker.last_message_id(subscription)
            self.reply(
                server_commands.last_message_id(
                    request.request_id, last.entry, last.batch_index, subscription.partition, last.mark_deleted
                )
            )

        self._serve(serve(), request.request_id)

    def _on_consumer_stats(self, command: BaseCommand) -> None:
        request = command.consumerStats

        async def serve() -> None:
            consumer, subscription = self._existing(request.consumer_id)
            self.reply(server_commands.consumer_stats(self._broker.stats_of(request.request_id, consumer, subscription)))

        self._serve(serve(), request.request_id)
