"""Calls over a real socket: pipelining, late and lost responses, a server that comes back."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ConnectionLost, Failure, RequestTimeout, Unreachable
from mqbridge.net.endpoint import Endpoint
from mqbridge.tubemq.client.connection import server_connection as module
from mqbridge.tubemq.client.connection import tcp_connection as connection_module
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.connection.counters import difference, total
from mqbridge.tubemq.client.connection.server_connection import ServerConnection
from mqbridge.tubemq.wire.frame import FrameMeter, encode_frame, split_frame
from mqbridge.tubemq.wire.rpc import GET, READ, RemoteError, decode_request, encode_error, encode_response
from tests.patience import PATIENCE_S


class Server:
    """A server that responds to each request with the result of `answer`, or not at all if that is None."""

    def __init__(self) -> None:
        self.answer: Callable[[bytes], bytes | None] = lambda body: encode_response(GET, body)
        self.requests: list[Any] = []
        self.connections: list[Endpoint] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.abort(ConnectionLost("closed by the test"))
        await asyncio.sleep(0)

    def _accept(self) -> Endpoint:
        def on_frames(frames: list[bytes]) -> None:
            for serial, payload in map(split_frame, frames):
                self.requests.append(decode_request(payload))
                if (answer := self.answer(self.requests[-1].body)) is not None:
                    endpoint.send(encode_frame(serial, answer))

        endpoint = Endpoint(FrameMeter().measure, on_frames, lambda _: None)
        self.connections.append(endpoint)
        return endpoint


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    await server.open()
    yield server
    await server.close()


@pytest_asyncio.fixture
async def connection(server: Server) -> AsyncIterator[ServerConnection]:
    connections = ConnectionPool(timeout_s=5.0)
    yield connections.connection_to("127.0.0.1", server.port)
    await connections.close()


async def test_concurrent_calls_share_a_connection(server: Server, connection: ServerConnection) -> None:
    bodies = [b"%d" % number * 3000 for number in range(50)]
    assert await asyncio.gather(*(connection.request(READ, GET, body) for body in bodies)) == bodies
    assert len(server.connections) == 1
    assert {(r.service, r.method, r.timeout_ms) for r in server.requests} == {(READ, GET, 5000)}
    assert connection.local_host == "127.0.0.1"


async def test_an_exception_of_the_server_is_raised(server: Server, connection: ServerConnection) -> None:
    server.answer = lambda _: encode_error("java.lang.Exception", "broken")
    with pytest.raises(RemoteError, match="broken"):
        await connection.request(READ, GET, b"x")
    server.answer = lambda body: encode_response(GET, body)
    assert await connection.request(READ, GET, b"x") == b"x"


async def test_a_lost_connection_fails_pending_calls_and_the_next_call_reconnects(
    server: Server, connection: ServerConnection
) -> None:
    server.answer = lambda _: None
    waiting = [asyncio.ensure_future(connection.request(READ, GET, b"x")) for _ in range(3)]
    while len(server.requests) < 3:
        await asyncio.sleep(0.001)
    await server.close()
    for future in waiting:
        with pytest.raises(ConnectionLost, match=r"get at 127\.0\.0\.1"):
            await future
    with pytest.raises(Unreachable):
        await connection.request(READ, GET, b"x")
    server.answer = lambda body: encode_response(GET, body)
    await server.open()
    assert await connection.request(READ, GET, b"again") == b"again"


async def test_a_connection_to_a_silent_server_is_replaced_and_a_late_response_ignored(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "TIMEOUT_CHECK_S", 0.01)
    connections = ConnectionPool(timeout_s=1.5)
    connection = connections.connection_to("127.0.0.1", server.port)
    server.answer = lambda _: None
    with pytest.raises(RequestTimeout, match="did not answer get"):
        await connection.request(READ, GET, b"x")
    server.answer = lambda body: encode_response(GET, body)
    assert await connection.request(READ, GET, b"y") == b"y"
    assert len(server.connections) == 2, "after a timeout without any response, the connection is replaced"
    server.connections[-1].send(encode_frame(1, encode_response(GET, b"late")))
    assert await connection.request(READ, GET, b"z") == b"z"
    await connections.close()


async def test_further_requests_do_not_delay_the_timeout_of_a_silent_server(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel of a stopped server accepts requests, so only responses are a sign of life."""
    monkeypatch.setattr(connection_module, "TIMEOUT_CHECK_S", 0.01)
    connections = ConnectionPool(timeout_s=1.5)
    connection = connections.connection_to("127.0.0.1", server.port)
    assert await connection.request(READ, GET, b"x") == b"x"
    server.answer = lambda _: None
    first = asyncio.ensure_future(connection.request(READ, GET, b"first"))
    for _ in range(200):
        if first.done():
            break
        heartbeat = asyncio.ensure_future(connection.request(READ, GET, b"heartbeat"))
        heartbeat.add_done_callback(lambda future: future.cancelled() or future.exception())
        await asyncio.sleep(0.05)
    assert first.done(), "200 requests took several times the timeout"
    with pytest.raises(RequestTimeout, match="did not answer get"):
        await first
    await connections.close()


async def test_an_invalid_response_ends_the_connection(server: Server, connection: ServerConnection) -> None:
    server.answer = lambda _: b"\x01"
    with pytest.raises(Exception, match="exceeds the payload"):
        await connection.request(READ, GET, b"x")
    server.answer = lambda body: encode_response(GET, body)
    assert await connection.request(READ, GET, b"y") == b"y"
    assert len(server.connections) == 2


async def test_post_needs_a_connection(connection: ServerConnection) -> None:
    with pytest.raises(ConnectionLost):
        connection.post(READ, GET, b"x", lambda _: None)
    assert not connection.alive


async def test_an_idle_connection_is_closed_and_the_next_call_reconnects(server: Server) -> None:
    connections = ConnectionPool(idle_s=0.05)
    connection = connections.connection_to("127.0.0.1", server.port)
    assert await connection.request(READ, GET, b"x") == b"x"
    async with asyncio.timeout(PATIENCE_S):
        while connection.alive:
            await asyncio.sleep(0.005)
    assert connection.counters.snapshot() | {"reclaimed": 1} == connection.counters.snapshot()
    assert await connection.request(READ, GET, b"y") == b"y"
    assert len(server.connections) == 2
    await connections.close()


async def test_a_connection_with_a_pending_call_is_not_idle(server: Server) -> None:
    connections = ConnectionPool(idle_s=0.02)
    connection = connections.connection_to("127.0.0.1", server.port)
    server.answer = lambda _: None
    waiting = asyncio.ensure_future(connection.request(READ, GET, b"x"))
    await asyncio.sleep(0.1)
    assert connection.alive
    assert not waiting.done()
    await connections.close()
    with pytest.raises(ConnectionLost):
        await waiting


async def test_partitions_share_a_connection_or_have_one_each(server: Server) -> None:
    for shared, count in ((True, 1), (False, 3)):
        connections = ConnectionPool(shared=shared)
        connections_by_name = [connections.connection_to("127.0.0.1", server.port, name) for name in ("1:0", "1:1", "1:0", "")]
        await asyncio.gather(*(connection.request(READ, GET, b"x") for connection in connections_by_name))
        assert len(connections.snapshot()) == count
        assert sum(counters["connections"] for counters in connections.snapshot().values()) == count
        assert sum(counters["answers"] for counters in connections.snapshot().values()) == 4
        await connections.close()


async def test_concurrent_connects_share_one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each partition of an unreachable Broker would wait for the timeouts of all partitions before it."""
    dials = 0

    async def dial(*_: Any, **__: Any) -> Endpoint:
        nonlocal dials
        dials += 1
        await asyncio.sleep(0.01)
        raise Unreachable("nobody there")

    monkeypatch.setattr(module, "dial", dial)
    connection = ConnectionPool().connection_to("127.0.0.1", 1)
    results = await asyncio.gather(*(connection.connect() for _ in range(100)), return_exceptions=True)
    assert [type(result) for result in results] == [Unreachable] * 100
    assert dials == 1
    with pytest.raises(Unreachable):
        await connection.connect()
    assert dials == 2


async def test_a_connection_requested_after_closing_never_connects(server: Server) -> None:
    """A retry during closing must not open a connection, as no one would close it."""
    connections = ConnectionPool()
    await connections.close()
    connection = connections.connection_to("127.0.0.1", server.port)
    with pytest.raises(ConnectionLost, match="is closed"):
        await connection.request(READ, GET, b"x")
    assert not server.connections
    assert {one for one in asyncio.all_tasks() if "tubemq" in one.get_name()} == set()


async def test_a_request_after_the_end_says_why_the_connection_ended(server: Server) -> None:
    """A connection may end between the handshake and the first request: the server may reject our certificate."""
    connections = ConnectionPool()
    connection = connections.connection_to("127.0.0.1", server.port)
    await connection.connect()
    assert connection._tcp is not None
    connection._tcp.abort(ConnectionLost("the server demands a certificate", Failure.FATAL))
    await connection._tcp.close()
    with pytest.raises(ConnectionLost, match="the server demands a certificate") as caught:
        connection.post(READ, GET, b"x", lambda _: None)
    assert caught.value.failure is Failure.FATAL
    await connections.close()


async def test_closing_a_connection_ends_its_dial(server: Server) -> None:
    connections = ConnectionPool()
    connection = connections.connection_to("127.0.0.1", server.port)
    connecting = asyncio.ensure_future(connection.connect())
    await asyncio.sleep(0)
    await connection.close()
    with pytest.raises(ConnectionLost):
        await connecting
    assert not connection.alive
    await connections.close()


async def test_requests_and_lost_ones_are_counted(
    server: Server, connection: ServerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await connection.request(READ, GET, b"x")
    server.answer = lambda _: None
    waiting = asyncio.ensure_future(connection.request(READ, GET, b"x"))
    await asyncio.sleep(0.02)
    before = connection.counters.snapshot()
    await server.close()
    with pytest.raises(ConnectionLost):
        await waiting
    assert {name: count for name, count in difference(connection.counters.snapshot(), before).items() if count} == {"lost": 1}
    assert total([before, before])["requests"] == 2 * before["requests"] == 4
