"""A proxy between one client process and its servers that can cut, hold, delay, slow down or refuse connections.

A `Network` has one `Link` per server address. `tests/kit/redirected.py` runs the client process and redirects all its connections
to the links, including those to addresses that it learns from servers. So each client process has network faults of its own.

Bytes that a client has written reach the server even after the client has closed the connection, which produces late requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from mqbridge.net.tasks import cancel, spawn

Address = tuple[str, int]
CHUNK_BYTES = 64 << 10
READ_AHEAD_BYTES = 4 << 20
"""Bytes that a held connection accepts before the sender blocks, like the buffers of a real network."""


class Link:
    """Forwards connections to one server. The attributes can be changed at any time and apply to all connections."""

    def __init__(self, server: Address) -> None:
        self.server = server
        self.port = 0
        self.away = False
        """True: new connections are refused."""
        self.delay_s = 0.0
        """Delay of every byte, in each direction."""
        self.bytes_per_s: float | None = None
        """Maximum speed of each direction of each connection; None means unlimited."""
        self.passes = asyncio.Event()
        """While it is cleared, no bytes arrive in either direction; connections stay open."""
        self.passes.set()
        self.connections: set[Connection] = set()

    def cut(self) -> int:
        """Reset every connection, losing the bytes in transit; return the number of connections."""
        found = list(self.connections)
        for connection in found:
            connection.abort()
        return len(found)

    def stick(self) -> list[Connection]:
        """Hold all bytes of the existing connections until `Connection.unstick`; return these connections."""
        found = list(self.connections)
        for connection in found:
            connection.passes.clear()
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection of the client."""
        try:
            if self.away:
                raise ConnectionRefusedError
            up_reader, up_writer = await asyncio.open_connection(*self.server)
        except OSError:
            _reset(writer)
            await _closed(writer)
            return
        connection = Connection(self, writer, up_writer)
        self.connections.add(connection)
        try:
            await connection.run((reader, up_writer), (up_reader, writer))
        finally:
            await asyncio.gather(_closed(writer), _closed(up_writer))
            self.connections.discard(connection)


class Connection:
    """One connection through a link: two directions, each a queue between a reader and a writer."""

    def __init__(self, link: Link, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._link, self._client, self._writers = link, client, (client, server)
        self.passes = asyncio.Event()
        self.passes.set()

    def unstick(self) -> None:
        """Forward the held bytes."""
        self.passes.set()

    def abort(self) -> None:
        """Reset both sides."""
        for writer in self._writers:
            _reset(writer)
        self.unstick()

    async def run(self, *directions: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        """Forward bytes until both directions have ended."""
        await asyncio.gather(*(self._pass(*direction) for direction in directions))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(READ_AHEAD_BYTES // CHUNK_BYTES)
        taking = spawn(self._take(reader, queue), "proxy reads")
        try:
            while (item := await queue.get())[1]:
                await self._deliver(*item, writer)
            writer.write_eof()
        except OSError:
            if writer is not self._client:  # if the client has closed the connection, its requests still reach the server
                self.abort()
        finally:
            await cancel(taking)

    async def _take(self, reader: asyncio.StreamReader, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        now = asyncio.get_running_loop().time
        chunk = b"?"
        while chunk:
            chunk = b""
            with contextlib.suppress(OSError):  # a reset ends this direction; earlier bytes are still forwarded
                chunk = await reader.read(CHUNK_BYTES)
            await queue.put((now(), chunk))

    async def _deliver(self, came: float, chunk: bytes, writer: asyncio.StreamWriter) -> None:
        """Write a chunk after the delay, at the speed of the link, and not while bytes are held."""
        link, now = self._link, asyncio.get_running_loop().time
        await asyncio.sleep(max(0.0, came + link.delay_s - now()))
        while chunk:
            speed = link.bytes_per_s
            piece, chunk = (chunk, b"") if speed is None else (chunk[: max(1, int(speed / 10))], chunk[max(1, int(speed / 10)) :])
            if speed is not None:
                await asyncio.sleep(len(piece) / speed)
            await link.passes.wait()
            await self.passes.wait()
            writer.write(piece)
            await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection with RST, discarding bytes that are not written yet."""
    if (sock := writer.get_extra_info("socket")) is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection after all bytes are written."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class Network:
    """The links of one client process, by the server's address."""

    def __init__(self, servers: Iterable[Address]) -> None:
        self.links = {server: Link(server) for server in servers}
        self._listening: list[asyncio.Server] = []

    @property
    def redirections(self) -> str:
        """JSON for `tests/kit/redirected.py`: the local port for each server address."""
        return json.dumps({f"{host}:{port}": link.port for (host, port), link in self.links.items()})

    def heal(self) -> None:
        """Remove all faults."""
        for link in self.links.values():
            link.away, link.delay_s, link.bytes_per_s = False, 0.0, None
            link.passes.set()
            for connection in link.connections:
                connection.unstick()

    def cut(self) -> int:
        """Reset every connection; return the number of connections."""
        return sum(link.cut() for link in self.links.values())

    async def __aenter__(self) -> Self:
        for link in self.links.values():
            server = await asyncio.start_server(link.serve, "127.0.0.1", 0, limit=CHUNK_BYTES)
            link.port = server.sockets[0].getsockname()[1]
            self._listening.append(server)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for server in self._listening:
            server.close()
        self.heal()
        self.cut()
        for server in self._listening:
            await server.wait_closed()
        while any(link.connections for link in self.links.values()):
            await asyncio.sleep(0)
