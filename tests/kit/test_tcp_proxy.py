"""The faults of the TCP proxy, between clients and an echo server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.kit.tcp_proxy import Link, Network
from tests.patience import PATIENCE_S


async def close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class Echo:
    """An echo server and its clients, which connect through `link`. `heard` has the received bytes of all connections."""

    def __init__(self) -> None:
        self.heard = b""
        self.serving = 0
        self.clients: list[asyncio.StreamWriter] = []
        self.link: Link

    async def connect_and_send(self, text: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.link.port)
        self.clients.append(writer)
        writer.write(text)
        return reader, writer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving += 1
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                self.heard += chunk
                writer.write(chunk)
                await writer.drain()
        await close(writer)
        self.serving -= 1


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[tuple[Echo, Link]]:
    served = Echo()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    address = ("127.0.0.1", server.sockets[0].getsockname()[1])
    try:
        async with Network([address]) as network:
            served.link = network.links[address]
            yield served, served.link
            for client in served.clients:
                await close(client)
    finally:
        server.close()
        await server.wait_closed()
        async with asyncio.timeout(PATIENCE_S):
            while served.serving:
                await asyncio.sleep(0)


async def until_heard(served: Echo, text: bytes) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while served.heard != text:
            await asyncio.sleep(0.01)


async def test_bytes_and_ends_of_both_directions_are_forwarded() -> None:
    async with echo() as (served, _):
        reader, writer = await served.connect_and_send(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.write_eof()
        assert await reader.read() == b""
        assert served.heard == b"hello"


async def test_a_cut_resets_every_connection() -> None:
    async with echo() as (served, link):
        reader, _writer = await served.connect_and_send(b"hello")
        await reader.readexactly(5)
        assert link.cut() == 1
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_an_unreachable_server_accepts_no_connections() -> None:
    async with echo() as (served, link):
        link.away = True
        reader, _writer = await served.connect_and_send(b"lost")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        link.away = False
        reader, _writer = await served.connect_and_send(b"back")
        assert await reader.readexactly(4) == b"back"
        assert served.heard == b"back"


async def test_bytes_of_a_closed_connection_arrive_after_those_of_a_later_one() -> None:
    async with echo() as (served, link):
        reader, writer = await served.connect_and_send(b"first.")
        await reader.readexactly(6)
        stuck = link.stick()
        writer.write(b"late.")
        await writer.drain()
        writer.transport.abort()
        reader, _writer = await served.connect_and_send(b"again.")
        assert await reader.readexactly(6) == b"again."
        for connection in stuck:
            connection.unstick()
        await until_heard(served, b"first.again.late.")


async def test_bytes_of_a_closed_connection_arrive_although_responses_cannot_be_delivered() -> None:
    async with echo() as (served, link):
        link.delay_s = 0.2
        _reader, writer = await served.connect_and_send(b"first.")
        await until_heard(served, b"first.")  # the response is delayed by the link
        stuck = link.stick()
        link.delay_s = 0.0
        for _ in range(20):
            writer.write(b"late.")
            await asyncio.sleep(0.02)  # so that each is a chunk of its own, and the response is due
        writer.transport.abort()
        for connection in stuck:
            connection.unstick()
        await until_heard(served, b"first." + 20 * b"late.")


async def test_a_held_link_also_holds_new_connections_and_loses_nothing() -> None:
    async with echo() as (served, link):
        link.passes.clear()
        reader, _writer = await served.connect_and_send(b"held")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.2)
        assert served.heard == b""
        link.passes.set()
        assert await asyncio.wait_for(reader.readexactly(4), PATIENCE_S) == b"held"


async def test_slow_and_delayed_links_deliver_everything() -> None:
    async with echo() as (served, link):
        link.bytes_per_s, link.delay_s = 20_000, 0.05
        text = bytes(range(250)) * 20
        reader, _writer = await served.connect_and_send(text)
        assert await asyncio.wait_for(reader.readexactly(len(text)), PATIENCE_S) == text
