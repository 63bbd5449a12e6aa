"""The server for Pulsar clients: frames before and after the handshake. A connection ends, and leaves nothing behind.

python -m tests.fuzz --only servers --seconds 600
"""

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from mqbridge.errors import ProtocolError
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener
from mqbridge.listener.server import load_servers
from mqbridge.net.endpoint import MAX_UNREAD_REPLY_BYTES
from mqbridge.pulsar.server.broker import Broker
from mqbridge.pulsar.server.connection import ServedConnection
from mqbridge.pulsar.wire import client_commands, ids
from mqbridge.pulsar.wire.frame import FrameMeter, encode_command, parse_frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandSubscribe
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import delete_broker
from mqbridge.wire.cutter import FrameCutter, Measure
from tests.fuzz.pulsar import COMMANDS
from tests.fuzz.target import Target, halves
from tests.pulsar.server.serving import TOPIC, batch_frame, entry_frame, listener_settings

INPUTS_PER_LISTENER = 200
"""After so many inputs there is a new listener over an empty cluster: what clients store is not a leak."""
MAX_ROUNDS = 3000
"""Rounds of the event loop in which everything has to end."""


class MemoryEndpoint:
    """A connection without a socket: what is sent is read at once."""

    peer, local_address = "client:1", "127.0.0.1:6650"
    is_writable, has_room, is_reading_paused = True, True, False
    queued_bytes = 0

    def __init__(self, measure: Measure, read: Callable[[bytes], object]) -> None:
        """`read` gets each frame that is sent."""
        self.alive = True
        self.sent_bytes = 0
        self.on_bytes: Callable[[bytes], None] | None = None
        self._measure, self._read = measure, read

    @property
    def received_at(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def delivered_bytes(self) -> int:
        return self.sent_bytes

    def try_send(self, *pieces: bytes) -> bool:
        data = b"".join(pieces)
        self.sent_bytes += len(data)
        cutter = FrameCutter(self._measure)
        for one in cutter.feed(data):
            self._read(one)
        assert not cutter.buffered
        return self.alive

    def send(self, *pieces: bytes) -> None:
        self.try_send(*pieces)

    def reply(self, *pieces: bytes) -> None:
        self.try_send(*pieces)

    def handshake_done(self) -> None: ...

    def pause_reading(self, reason: str) -> None: ...

    def resume_reading(self, reason: str) -> None: ...

    async def wait_for_room(self) -> None: ...

    async def close(self) -> None:
        self.alive = False

    def abort(self, error: Exception) -> None:
        self.alive = False


class InlineExecutor(ThreadPoolExecutor):
    """Runs what is for threads at once, because virtual time does not wait for threads."""

    def submit(self, run: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(run(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - as of a thread
            done.set_exception(error)
        return done


class Errors(logging.Handler):
    """Collects what is logged as an error: bugs that a connection survives."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(self.format(record))


Prepare = Callable[[Listener], Awaitable[None]]


class Bench:
    """An event loop with a listener, which is made anew from time to time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, prepare: Prepare | None = None, **settings: Any) -> None:
        """`settings` are those of the listener; `prepare` is called with each new one."""
        self._loop, self._prepare, self._settings = loop, prepare, settings
        self._folder = tempfile.TemporaryDirectory(prefix="fuzz-server")
        self._inputs = 0
        self._end: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._errors = Errors()
        for name in ("mqbridge", "asyncio"):
            logging.getLogger(name).addHandler(self._errors)
        self.listener: Listener

    def __call__(self, use: Callable[[Listener], Awaitable[None]]) -> None:
        """Use the listener; raise AssertionError for anything that is logged as an error."""
        self._loop.run_until_complete(self._use(use))
        if self._errors.records:
            found, self._errors.records = self._errors.records, []
            raise AssertionError(found[0])

    async def _use(self, use: Callable[[Listener], Awaitable[None]]) -> None:
        if self._inputs % INPUTS_PER_LISTENER == 0:
            if self._end is not None:
                await self._end()
            await self._begin()
        self._inputs += 1
        await use(self.listener)

    async def _begin(self) -> None:
        name = f"fuzz-{id(self)}"
        cluster = MemoryCluster("store", MemoryConfig(broker=name))
        await cluster.connect()
        path = Path(self._folder.name) / f"{self._inputs}.db"
        store = GroupStore(path)
        settings = listener_settings(**self._settings)
        self.listener = Listener(settings, load_servers()[settings.system], cluster, cluster, store, "me")
        if self._prepare is not None:
            await self._prepare(self.listener)

        async def end() -> None:
            await self.listener.server.close(0.0)
            await self.listener.parking.close(0.0)
            await self.listener.publishers.close_all(0.0)
            await self.listener.groups.close(0.0)
            await store.close()
            await cluster.close()
            delete_broker(name)
            path.unlink(missing_ok=True)

        self._end = end


bench: Bench | None = None


def serve(data: bytes) -> None:
    """Serve a connection that sends these bytes; the first one tells whether it has made its handshake."""
    global bench  # noqa: PLW0603 - one event loop for all inputs, made when the first one comes
    bench = Bench(asyncio.new_event_loop(), deduplicate=True) if bench is None else bench
    bench(lambda listener: _serve(listener, data))


async def _serve(listener: Listener, data: bytes) -> None:
    server: Any = listener.server
    broker: Broker = server.broker
    session: ServedConnection = server.make_session()
    endpoint: Any = MemoryEndpoint(FrameMeter(MAX_UNREAD_REPLY_BYTES).measure, parse_frame)
    session.on_connected(endpoint)
    if data[:1] != b"\0":
        session.on_frames([client_commands.connect("fuzz", "none", b"", None)])
    receive = endpoint.on_bytes or partial(cut_and_receive, session, FrameCutter(session.measure))
    error: Exception = ConnectionError("the end of the input")
    try:
        for piece in halves(data[1:]):
            receive(piece)
            await asyncio.sleep(0)
            if not endpoint.alive:
                break
    except ProtocolError as violation:
        error = violation
    endpoint.alive = False
    session.on_lost(error)
    for rounds in range(MAX_ROUNDS):
        is_answered = not session.pending_sends or listener.in_flight.used  # what is stored is answered a moment later
        if is_answered and not (session._requests or broker._owned or broker.subscriptions or broker.readers):
            break
        await asyncio.sleep(0 if rounds < 100 else 0.001)
    assert not session._requests, "a request never ends"
    producers = [*session.producers, *broker._owned, *broker.producers]
    assert not producers, "a producer stays"
    subscriptions = [*session.consumers, *broker.subscriptions, *broker.readers, *broker._partition_of, *broker._locks]
    assert not subscriptions, "a subscription stays"
    assert not server._connections
    assert session.pending_sends == 0 or listener.in_flight.used


def cut_and_receive(session: ServedConnection, cutter: FrameCutter, data: bytes) -> None:
    """Cut what a connection has received, where the compiled module does not do it."""
    if frames := cutter.feed(data):
        session.on_frames(frames)


def subscribe(request: int, consumer: int, kind: Any = CommandSubscribe.Shared, **fields: Any) -> bytes:
    return client_commands.subscribe(
        request, CommandSubscribe(topic=TOPIC, subscription="s", subType=kind, consumer_id=consumer, **fields)
    )


PRODUCER = client_commands.producer(1, pb.CommandProducer(topic=TOPIC, producer_id=1, producer_name="n"))
MESSAGES = batch_frame([b"1", b"2", b"3"]) + entry_frame(b"x", 3) + entry_frame(b"y", 4, deliver_at_time=5)
SEEDS = [
    b"\0" + client_commands.PING + client_commands.connect("x", "token", b"t", None),
    b"\1" + PRODUCER + MESSAGES + client_commands.close_producer(2, 1),
    b"\1" + PRODUCER + MESSAGES + subscribe(3, 1) + client_commands.flow(1, 100) + client_commands.redeliver(1, [], None),
    b"\1"
    + subscribe(3, 1, CommandSubscribe.Key_Shared)
    + client_commands.seek(4, 1, to=(1, 0))
    + client_commands.unsubscribe(5, 1),
    b"\1" + subscribe(3, 1, CommandSubscribe.Exclusive, durable=False) + client_commands.get_last_message_id(4, 1),
    b"\1"
    + subscribe(3, 1)
    + client_commands.ack(1, False, [ids.message_id(1, 0, [5])], 7)
    + client_commands.consumer_stats(8, 1),
    b"\1" + subscribe(3, 1, CommandSubscribe.Failover) + client_commands.ack(1, True, [ids.message_id(1, 2)], 7),
    b"\1" + client_commands.partition_metadata(1, TOPIC, True) + client_commands.lookup(2, TOPIC, False),
    b"\1"
    + encode_command(
        BaseCommand(
            type=BaseCommand.GET_TOPICS_OF_NAMESPACE,
            getTopicsOfNamespace=pb.CommandGetTopicsOfNamespace(
                request_id=1, namespace="public/default", topics_pattern="public/.*"
            ),
        )
    ),
    *(b"\1" + command for command in COMMANDS if parse_frame(command).type not in {BaseCommand.SEND, BaseCommand.MESSAGE}),
]

TARGETS = {"servers-pulsar": Target(serve, SEEDS, ())}
