"""The HTTP server, with real sockets."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mqbridge.net import http_server
from mqbridge.net.http_server import HttpServer
from tests.patience import PATIENCE_S

HOST = "127.0.0.1"


@pytest_asyncio.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = HttpServer(HOST, 0)
    server.bind()
    yield server
    await server.stop()
    server.unbind()


async def _hello(_: Request) -> Response:
    return PlainTextResponse("hello")


async def test_requests_are_served_until_the_server_stops(server: HttpServer) -> None:
    url = f"http://{HOST}:{server.port}/"
    server.start(Starlette(routes=[Route("/", _hello)]))
    async with httpx.AsyncClient() as client:
        assert (await client.get(url)).text == "hello"
        await server.stop()
        with pytest.raises(httpx.TransportError):
            await client.get(url)


async def test_an_offer_of_http_2_is_ignored_without_a_warning(server: HttpServer, caplog: pytest.LogCaptureFixture) -> None:
    server.start(Starlette(routes=[Route("/", _hello)]))
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAEAAEAA"}
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://{HOST}:{server.port}/", headers=offer)).text == "hello"
    assert not caplog.records


async def test_a_request_that_does_not_end_is_ended_when_the_server_stops(server: HttpServer) -> None:
    has_begun = asyncio.Event()

    async def hang(_: Request) -> Response:
        has_begun.set()
        await asyncio.Event().wait()
        return PlainTextResponse("never")

    server.start(Starlette(routes=[Route("/", hang)]))
    async with httpx.AsyncClient(timeout=60) as client:
        request = asyncio.ensure_future(client.get(f"http://{HOST}:{server.port}/"))
        await has_begun.wait()
        await server.stop()
        assert (await request).status_code == 500


async def test_a_port_in_use_is_refused(server: HttpServer) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpServer(HOST, server.port).bind()
    HttpServer(HOST, server.port).unbind()


@pytest.mark.parametrize(
    ("listen", "reached_at"), [("::", "[::1]"), ("::", "127.0.0.1"), ("::1", "[::1]"), ("localhost", "127.0.0.1")]
)
async def test_addresses_of_ipv6_are_listened_at(listen: str, reached_at: str) -> None:
    server = HttpServer(listen, 0)
    server.bind()
    server.start(Starlette(routes=[Route("/", _hello)]))
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://{reached_at}:{server.port}/")).text == "hello"
    await server.stop()
    server.unbind()


# --- limits -------------------------------------------------------------------------------------------------------------


async def _wait_for_end(reader: asyncio.StreamReader) -> None:
    """Wait until the server has closed the connection."""
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\nhalf",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n",
    ],
    ids=["nothing", "half of a header", "half of a body", "one request", "one request and a half"],
)
async def test_a_connection_that_waits_for_its_client_is_closed(
    server: HttpServer, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.2)
    server.start(Starlette(routes=[Route("/", _hello)]))
    reader, writer = await asyncio.open_connection(HOST, server.port)
    writer.write(sent)
    await _wait_for_end(reader)
    writer.close()


async def test_bytes_that_come_slowly_do_not_extend_the_time_limit(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.3)
    server.start(Starlette(routes=[Route("/", _hello)]))
    reader, writer = await asyncio.open_connection(HOST, server.port)
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    ended = asyncio.ensure_future(_wait_for_end(reader))
    with contextlib.suppress(ConnectionError):
        while not ended.done():
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.01)
    await ended
    writer.close()


async def test_a_client_that_does_not_read_its_response_is_closed(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "RESPONSE_TIMEOUT_S", 0.2)

    async def large(_: Request) -> Response:
        return PlainTextResponse("x" * (64 << 20))

    server.start(Starlette(routes=[Route("/", large)]))
    _, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(PATIENCE_S):
        while server.connections != 1:
            await asyncio.sleep(0.01)
        while server.connections:
            await asyncio.sleep(0.01)
    writer.close()


async def test_a_client_that_reads_none_of_several_responses_is_closed(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "RESPONSE_TIMEOUT_S", 0.1)
    served = 0

    async def large(_: Request) -> Response:
        nonlocal served
        served += 1
        return PlainTextResponse("x" * (8 << 20))

    server.start(Starlette(routes=[Route("/", large)]))
    _, writer = await asyncio.open_connection(HOST, server.port, limit=1024)
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
        async with asyncio.timeout(PATIENCE_S):
            while served < 2 or server.connections:
                await asyncio.sleep(0.01)
    finally:
        writer.transport.abort()


async def test_a_request_that_is_served_has_no_time_limit(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.2)

    async def slow(_: Request) -> Response:
        await asyncio.sleep(1)
        return PlainTextResponse("done")

    server.start(Starlette(routes=[Route("/", slow)]))
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(f"http://{HOST}:{server.port}/")).text == "done"


async def test_a_new_connection_replaces_the_one_that_has_waited_longest(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 5)
    server.start(Starlette(routes=[Route("/", _hello)]))
    opened = [await asyncio.open_connection(HOST, server.port) for _ in range(8)]
    for reader, _ in opened[:3]:
        await _wait_for_end(reader)
    async with httpx.AsyncClient() as client:
        assert (await client.get(f"http://{HOST}:{server.port}/")).text == "hello"
        assert server.connections == 5
    for _, writer in opened:
        writer.close()


async def test_a_large_header_is_refused(server: HttpServer) -> None:
    server.start(Starlette(routes=[Route("/", _hello)]))
    reader, writer = await asyncio.open_connection(HOST, server.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 100_000)
    assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
    writer.close()
