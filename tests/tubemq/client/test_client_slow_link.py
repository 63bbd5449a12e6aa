"""Deadlines count silence: on a slow link every request arrives once; abandoned ones do not arrive later."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import RequestTimeout
from mqbridge.net.endpoint import Endpoint
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.connection import tcp_connection as module
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.held_partitions import HeldPartitions, StartOffset
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender
from mqbridge.tubemq.client.producer.routes import TopicRoute
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.frame import FrameMeter, encode_frame, split_frame
from mqbridge.tubemq.wire.pb.broker_pb2 import AuthorizedInfo, SendMessageRequestP2B
from mqbridge.tubemq.wire.string_formats import Broker, PartitionRef, TopicInfo
from tests.kit.conversation import until
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.client.slow_link import SlowLink, StoringBroker, small_socket

TIMEOUT_S = 1.0
PARTITIONS = 4


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT_CHECK_S", 0.02)


@pytest_asyncio.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


class StaticRoutes:
    """The routes of a sender, which never change."""

    client_id, host, broker_auth = "p1", "192.0.2.2", AuthorizedInfo(visitAuthorizedToken=7)

    def __init__(self, connections: ConnectionPool) -> None:
        self.masters, self.connections = self, connections

    async def refresh(self) -> None: ...


def pool_of(stack: AsyncExitStack, timeout_s: float = TIMEOUT_S) -> ConnectionPool:
    connections = ConnectionPool(timeout_s=timeout_s)
    stack.push_async_callback(connections.close)
    return connections


async def sender_to(port: int, connections: ConnectionPool, **settings: Any) -> PartitionSender:
    route = TopicRoute("demo")
    route.update(TopicInfo("demo", ((1, PARTITIONS, 1),), 1 << 20), {1: Broker(1, "127.0.0.1", port)})
    return PartitionSender(StaticRoutes(connections), connections, route, max_elapsed_s=None, **settings)  # type: ignore[arg-type]


async def link_to(broker: StoringBroker, bytes_per_s: int, stack: AsyncExitStack) -> SlowLink:
    await broker.open(stack)
    link = SlowLink(broker.port, bytes_per_s)
    await link.open(stack)
    return link


@pytest.mark.parametrize(("window", "ordered"), [(1, True), (1000, False)], ids=["ordered", "many in flight"])
async def test_messages_sent_over_a_slow_link_are_stored_once(stack: AsyncExitStack, window: int, ordered: bool) -> None:
    """Sending takes several times the request timeout, but no request is abandoned or repeated."""
    broker = StoringBroker()
    link = await link_to(broker, 500_000, stack)
    connections = pool_of(stack)
    sender = await sender_to(link.port, connections, max_in_flight=window, ordered=ordered)
    sent = [sender.send(f"1:{n % PARTITIONS}", b"%08d" % n + bytes(25_000 if ordered else 15_000)) for n in range(100)]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await asyncio.gather(*sent)
    assert broker.stored == {b"%08d" % n: 1 for n in range(100)}
    assert sender.counters.retried == 0
    assert [(one["late"], one["connections"]) for one in connections.snapshot().values()] == [(0, 1)]


async def test_one_large_message_over_a_slow_link_is_not_retried(stack: AsyncExitStack) -> None:
    """No response arrives meanwhile, and the last bytes leave our buffers long before they arrive at the Broker."""
    broker = StoringBroker()
    link = await link_to(broker, 64_000, stack)
    sender = await sender_to(link.port, pool_of(stack), max_in_flight=1, ordered=True)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        await sender.send("1:0", b"00000000" + bytes(256_000))
    assert broker.stored == {b"00000000": 1}
    assert sender.counters.retried == 0


@pytest.mark.parametrize(("count", "size", "rate"), [(6, 100_000, 200_000), (1, 200_000, 80_000)], ids=["many", "one large"])
async def test_reading_over_a_slow_link_repeats_no_get(stack: AsyncExitStack, count: int, size: int, rate: int) -> None:
    """The responses to concurrent gets, or one large response, take several times the request timeout."""
    broker = StoringBroker(pack_bytes=size)
    link = await link_to(broker, rate, stack)
    connections = pool_of(stack)
    member = MemberIdentity(Masters([("127.0.0.1", 1)], connections), "g", ["demo"], {})
    member.client_id = "c1"
    held = HeldPartitions(member, start=StartOffset.EARLIEST, heartbeat_s=0.2, budget=ReadBudget(64 * GET_BYTES), offsets=None)
    if count == 1:
        held.heartbeats.interval_s = 3600.0  # no heartbeats, so the response is the only traffic
    held.master_seen_at = asyncio.get_running_loop().time() + 1e6
    at = Broker(1, "127.0.0.1", link.port)
    partitions = [await held.acquire(PartitionRef(at, "demo", number)) for number in range(count)]
    held.start_tasks()
    packs = dict.fromkeys(range(count), 0)

    async def read(number: int) -> None:
        while True:
            await partitions[number].fetch()
            packs[number] += 1
            partitions[number].confirm()

    readers = [spawn(read(number), "test reading") for number in range(count)]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while sum(packs.values()) < 2 * count or 0 in packs.values():
            await asyncio.sleep(0.05)
    assert broker.counts[rpc.GET] - sum(packs.values()) <= count, "one get for each pack"
    assert [one["late"] for one in connections.snapshot().values()] == [0]
    assert sum(partition.counters.failures for partition in partitions) == 0
    await cancel(*readers, *held._tasks)


# --- limits and abandoned requests ------------------------------------------------------------------------------


class PausedServer:
    """A server that reads nothing until `listen` is called; `requests` are the complete requests that it then gets."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.port = 0
        self.is_paused = True
        self.lost = 0
        self.transports: list[Any] = []

    async def open(self, stack: AsyncExitStack) -> None:
        server = await asyncio.get_running_loop().create_server(self._accept, sock=small_socket())
        self.port = server.sockets[0].getsockname()[1]
        stack.callback(server.close)
        stack.callback(lambda: [transport.abort() for transport in self.transports])

    def listen(self) -> None:
        self.is_paused = False
        for transport in self.transports:
            transport.resume_reading()

    def _accept(self) -> Endpoint:
        outer = self

        class ReadingEndpoint(Endpoint):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                outer.transports.append(transport)
                if outer.is_paused:
                    transport.pause_reading()

        def on_frames(frames: list[bytes]) -> None:
            for serial, payload in map(split_frame, frames):
                request = rpc.decode_request(payload)
                self.requests.append(request.body)
                endpoint.send(encode_frame(serial, rpc.encode_response(request.method, request.body)))

        def on_lost(_: Exception) -> None:
            self.lost += 1

        endpoint = ReadingEndpoint(FrameMeter().measure, on_frames, on_lost)
        return endpoint


async def test_bytes_queued_for_a_connection_are_bounded(stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reads nothing: our queue and the kernel's buffers are limited, however much is submitted."""
    monkeypatch.setattr(module, "UNSENT_BYTES", 128 << 10)  # by default, the kernel would take megabytes
    server = PausedServer()
    await server.open(stack)
    connections = pool_of(stack, 60.0)
    sender = await sender_to(server.port, connections, max_in_flight=1000, ordered=False)
    size = 50_000
    for n in range(400):
        sender.submit(f"1:{n % PARTITIONS}", bytes(size), 0, None, None, done=lambda _: None)
    connection = connections.connection_to("127.0.0.1", server.port)
    await until(lambda: connection.alive and not connection.is_writable)
    posted = len(connection._tcp.pending) * size  # type: ignore[union-attr]
    assert posted <= module.QUEUE_BYTES + module.UNSENT_BYTES + 300_000 + size, "300,000 bytes are for the kernel of the server"
    assert sender.queued_bytes == 400 * size


@pytest.mark.parametrize("is_lost", [False, True], ids=["room again", "connection lost"])
async def test_a_partition_that_waits_for_a_writable_connection_continues(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """It has no request in flight whose response would wake it."""
    monkeypatch.setattr(module, "QUEUE_BYTES", 50_000)
    server = PausedServer()
    await server.open(stack)
    connections = pool_of(stack, 60.0)
    sender = await sender_to(server.port, connections, max_in_flight=1, ordered=True)
    connection = connections.connection_to("127.0.0.1", server.port)
    await connection.connect()
    for n in range(PARTITIONS):
        sender.submit(f"1:{n}", bytes(2_000_000), 0, None, None, done=lambda _: None)
        await asyncio.sleep(0.01)
    tcp = connection._tcp
    assert tcp is not None
    assert (len(tcp.pending), len(tcp._writable_callbacks), sender.queued_messages) == (1, PARTITIONS - 1, PARTITIONS)
    server.is_paused = False
    if is_lost:
        server.transports[0].abort()
    else:
        server.listen()
    await until(
        lambda: {SendMessageRequestP2B.FromString(body).partitionId for body in server.requests} == set(range(PARTITIONS))
    )
    await sender.close(0)


async def test_an_abandoned_request_does_not_arrive_later(stack: AsyncExitStack) -> None:
    """The kernel would deliver the buffered request even after the connection is closed."""
    server = PausedServer()
    await server.open(stack)
    connection = pool_of(stack, 0.3).connection_to("127.0.0.1", server.port)
    with pytest.raises(RequestTimeout):
        await connection.request(rpc.READ, rpc.GET, bytes(100_000))
    await until(lambda: not connection.alive)
    server.listen()
    await until(lambda: server.lost == 1)
    assert server.requests == []
    assert await connection.request(rpc.READ, rpc.GET, b"again") == b"again"
    assert server.requests == [b"again"]


async def test_a_dropped_request_times_out_although_other_responses_arrive(stack: AsyncExitStack) -> None:
    """A server drops a request that waited too long, and still responds to later ones."""

    class Dropping(StoringBroker):
        def answer(self, method: int, body: bytes) -> Any:
            if method == rpc.COMMIT:
                raise DroppedError
            return super().answer(method, body)

    class DroppedError(Exception): ...

    broker = Dropping()
    serve = broker._accept

    def accept() -> Endpoint:
        endpoint = serve()
        on_frames = endpoint._on_frames

        def each(frames: list[bytes]) -> None:
            for frame in frames:
                try:
                    on_frames([frame])
                except DroppedError:
                    continue

        endpoint._on_frames = each
        return endpoint

    broker._accept = accept  # type: ignore[method-assign]
    await broker.open(stack)
    connection = pool_of(stack, 0.5).connection_to("127.0.0.1", broker.port)
    dropped = asyncio.ensure_future(connection.request(rpc.READ, rpc.COMMIT, b""))
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not dropped.done():
            await connection.request(rpc.READ, rpc.PARTITION_HEARTBEAT, b"")
            await asyncio.sleep(0.01)
    with pytest.raises(RequestTimeout):
        await dropped
    assert connection.alive, "other requests may be in flight"
    assert connection.counters.connections == 1
