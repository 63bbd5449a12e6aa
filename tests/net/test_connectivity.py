"""When a cluster counts as unreachable, depending on its connections: with real sockets, and step by step."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from mqbridge.errors import ConnectionLost, PeerSilent, Unreachable
from mqbridge.gateway import clusters
from mqbridge.net import connectivity as module
from mqbridge.net.connectivity import Connectivity, Link
from mqbridge.net.dial import dial
from mqbridge.net.endpoint import Endpoint
from mqbridge.pulsar.client.connection import lookup
from mqbridge.rocketmq.client.consumer import pull_loop
from mqbridge.rocketmq.client.producer import send_outage
from mqbridge.routes import route
from mqbridge.tubemq.client.producer import broker_reconnector
from tests.gateway.world import until

A, B = ("10.0.0.1", 1), ("10.0.0.2", 2)


class Server:
    """A server that accepts connections, and sends a frame over each if `greets`."""

    def __init__(self) -> None:
        self.greets = True
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        if self.greets:
            writer.write(b"\0\0\0\1x")

    async def cut(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self.cut()
        await self._server.wait_closed()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    connectivity = Server()
    await connectivity.start()
    yield connectivity
    with contextlib.suppress(AssertionError):
        await connectivity.stop()


class Client:
    """A client that makes one connection after the other to a server."""

    def __init__(self, port: int) -> None:
        self.connectivity = Connectivity("c", [("127.0.0.1", port)])
        self.received = asyncio.Event()
        self.lost = asyncio.Event()
        self._port = port

    async def connect(self) -> Endpoint:
        self.received.clear()
        self.lost.clear()

        def make() -> Endpoint:
            return Endpoint(lambda _, __: 5, lambda _: self.received.set(), lambda _: self.lost.set())

        return await dial("127.0.0.1", self._port, make, link=Link(self.connectivity, "127.0.0.1", self._port))


def logged_levels(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the levels of the log lines about outages."""
    return [record.levelname for record in caplog.records if record.name == module.__name__]


async def test_an_outage_is_logged_once_and_so_is_its_end(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Client(server.port)
    await client.connect()
    await client.received.wait()
    await server.stop()
    await client.lost.wait()
    assert client.connectivity.unreachable_s is None  # lost, but no reconnect has failed yet
    for _ in range(5):
        with pytest.raises(Unreachable):
            await client.connect()
    assert logged_levels(caplog) == ["WARNING"]
    assert client.connectivity.unreachable_s is not None
    assert str(server.port) in (client.connectivity.reason or "")
    assert (client.connectivity.failures, client.connectivity.reconnects) == (5, 0)
    await server.start()
    endpoint = await client.connect()
    await client.received.wait()
    assert logged_levels(caplog) == ["WARNING", "INFO"]
    assert (client.connectivity.unreachable_s, client.connectivity.reason, client.connectivity.reconnects) == (None, None, 1)
    await endpoint.close()
    client.connectivity.close()


async def test_reconnects_are_no_outage(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client = Client(server.port)
    for _ in range(5):
        await client.connect()
        await client.received.wait()
        await server.cut()
        await client.lost.wait()
    assert logged_levels(caplog) == []
    assert (client.connectivity.failures, client.connectivity.reconnects) == (0, 4)


async def test_a_server_that_accepts_but_stays_silent_is_missing_until_it_responds(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A stopped process, whose kernel accepts connections, and a load balancer without servers behave like this."""
    caplog.set_level(logging.INFO)
    server.greets = False
    client = Client(server.port)
    for _ in range(3):
        await client.connect()
        await until(lambda: bool(server.writers))
        await server.cut()
        await client.lost.wait()
    assert logged_levels(caplog) == ["WARNING"]
    endpoint = await client.connect()
    assert client.connectivity.unreachable_s is not None
    await until(lambda: bool(server.writers))
    server.writers[-1].write(b"\0\0\0\1x")
    await client.received.wait()
    assert logged_levels(caplog) == ["WARNING", "INFO"]
    endpoint.abort(PeerSilent("it has sent nothing"))
    await client.lost.wait()
    assert logged_levels(caplog) == ["WARNING", "INFO", "WARNING"]
    client.connectivity.close()


async def test_connections_that_the_client_closes_are_not_failures(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    server.greets = False
    client = Client(server.port)
    await (await client.connect()).close()
    await client.lost.wait()
    (await client.connect()).abort(ConnectionLost("nobody needs it"), intended=True)
    await client.lost.wait()
    assert (logged_levels(caplog), client.connectivity.failures) == ([], 0)
    client.connectivity.close()
    client.connectivity.record_failure("somewhere", Unreachable("late"))
    assert logged_levels(caplog) == []


async def test_one_bootstrap_server_is_enough_but_every_other_server_is_needed() -> None:
    connectivity = Connectivity("c", [A, B])
    a, b = (Link(connectivity, *address) for address in (A, B))
    a.record_failure(Unreachable("a is down"))
    assert connectivity.unreachable_s is None
    b.record_failure(Unreachable("b is down"))
    assert connectivity.reason == "a is down; b is down"
    a.record_received()
    assert connectivity.unreachable_s is None
    broker = Link(connectivity, "10.0.0.3", 3)
    broker.record_failure(Unreachable("the broker is down"))
    assert connectivity.reason == "the broker is down"
    broker.record_received()
    assert connectivity.unreachable_s is None
    connectivity.close()


async def test_a_server_that_is_not_tried_any_more_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic moved to another broker, and the old one is never tried again."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "FORGET_S", 0.02)
    connectivity = Connectivity("c", [A])
    Link(connectivity, *A).record_received()
    Link(connectivity, *B).record_failure(Unreachable("b is down"))
    assert connectivity.unreachable_s is not None
    await until(lambda: connectivity.unreachable_s is None)
    assert logged_levels(caplog) == ["WARNING", "INFO"]
    assert "no longer needs" in caplog.text


async def test_the_next_client_forgets_servers_missing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next client may never try the server, so nothing else would end the outage."""
    monkeypatch.setattr(module, "FORGET_S", 0.02)
    connectivity = Connectivity("c", [A])
    Link(connectivity, *B).record_failure(Unreachable("b is down"))
    connectivity.close()
    connectivity.open()
    Link(connectivity, *A).record_received()
    await until(lambda: connectivity.unreachable_s is None)
    connectivity.close()


async def test_parallel_connections_are_no_reconnects() -> None:
    connectivity = Connectivity("c")
    links = [Link(connectivity, *A) for _ in range(3)]
    for link in links:
        link.record_received()
    assert connectivity.reconnects == 0
    for link in links:
        link.record_end(ConnectionLost("cut"), intended=False, silent=False)
    Link(connectivity, *A).record_received()
    assert (connectivity.reconnects, connectivity.unreachable_s) == (1, None)


def test_no_retry_pause_exceeds_the_one_in_the_warning() -> None:
    longest = (
        clusters.MAX_CONNECT_PAUSE_S,
        route.MAX_REJOIN_PAUSE_S,
        lookup.MAX_DELAY_S,
        broker_reconnector.MAX_RETRY_S,
        pull_loop.MAX_RETRY_PAUSE_S,
        send_outage.MAX_RETRY_S,
    )
    assert max(longest) <= module.MAX_PAUSE_S
