"""The HTTP server, with real sockets."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from mqbridge.net.http_server import HttpServer

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
