"""A port with limits: of connections, of the time for a handshake, and of what a peer may make the server hold."""

import asyncio
import contextlib
import socket
from typing import Self

import pytest

from mqbridge.errors import PeerSilent, RemoteProtocolError
from mqbridge.net.listen import ListeningPort, ListenLimits, ServedEndpoint
from tests.patience import PATIENCE_S


class Echo:
    """Frames of four bytes, which are sent back; `shake` completes the handshake, `fail` violates the protocol."""

    def __init__(self, lost: list[Exception]) -> None:
        self.lost = lost
        self.endpoint: ServedEndpoint | None = None
        self.frames: list[bytes] = []

    def measure(self, data: bytes | bytearray, at: int) -> int:
        if data[at : at + 1] == b"!":
            raise RemoteProtocolError("a frame is too long")
        return 4

    def on_connected(self, endpoint: ServedEndpoint) -> None:
        self.endpoint = endpoint

    def on_frames(self, frames: list[bytes]) -> None:
        assert self.endpoint is not None
        self.frames += frames
        for frame in frames:
            if frame == b"shak":
                self.endpoint.handshake_done()
            self.endpoint.try_send(frame)

    def on_lost(self, error: Exception) -> None:
        self.lost.append(error)


class Port:
    """A started port with Echo sessions."""

    def __init__(self, connections: int = 3, handshake_s: float = PATIENCE_S) -> None:
        self.sessions: list[Echo] = []
        self.lost: list[Exception] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.port = ListeningPort("127.0.0.1", 0, self._make, ListenLimits(connections, handshake_s), b"full")

    def _make(self) -> Echo:
        self.sessions.append(Echo(self.lost))
        return self.sessions[-1]

    async def __aenter__(self) -> Self:
        self.port.bind()
        await self.port.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.port.close(0.0)
        for writer in self.writers:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port.port)
        self.writers.append(writer)
        return reader, writer


async def read(reader: asyncio.StreamReader, count: int) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.readexactly(count)


async def read_end(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            return await reader.read()
    return b""


async def test_too_many_connections_are_refused_in_the_words_of_the_protocol() -> None:
    async with Port(connections=2) as port:
        first, second = await port.connect(), await port.connect()
        for reader, writer in (first, second):
            writer.write(b"ping")
            assert await read(reader, 4) == b"ping"
        reader, writer = await port.connect()
        writer.write(b"ping")
        assert await read_end(reader) in {b"full", b""}
        assert port.port.refused == 1
        first[1].close()
        async with asyncio.timeout(PATIENCE_S):
            while len(port.port.connections) == 2:
                await asyncio.sleep(0.01)
        reader, writer = await port.connect()
        writer.write(b"ping")
        assert await read(reader, 4) == b"ping"


async def test_a_handshake_has_a_time_limit() -> None:
    async with Port(handshake_s=0.1) as port:
        reader, writer = await port.connect()
        writer.write(b"shak")
        assert await read(reader, 4) == b"shak"
        silent, _ = await port.connect()
        assert await read_end(silent) == b""
        (error,) = port.lost
        assert isinstance(error, PeerSilent)
        writer.write(b"ping")
        assert await read(reader, 4) == b"ping"


async def test_a_violation_of_the_protocol_ends_its_connection_only() -> None:
    async with Port() as port:
        good, bad = await port.connect(), await port.connect()
        bad[1].write(b"!" * 100_000)
        assert await read_end(bad[0]) == b""
        good[1].write(b"ping")
        assert await read(good[0], 4) == b"ping"
        assert [str(error) for error in port.lost] == ["a frame is too long"]


async def test_nothing_is_read_while_reading_is_paused() -> None:
    async with Port() as port:
        reader, writer = await port.connect()
        writer.write(b"ping")
        assert await read(reader, 4) == b"ping"
        (session,) = port.sessions
        assert session.endpoint is not None
        session.endpoint.pause_reading("budget")
        session.endpoint.pause_reading("replies")
        writer.write(b"pong")
        await asyncio.sleep(0.05)
        session.endpoint.resume_reading("budget")
        session.endpoint.resume_reading("budget")
        await asyncio.sleep(0.05)
        assert session.frames == [b"ping"]
        session.endpoint.resume_reading("replies")
        assert await read(reader, 4) == b"pong"


async def test_closing_waits_for_clients_and_ends_those_that_stay() -> None:
    port = Port()
    async with port:
        reader, writer = await port.connect()
        writer.write(b"ping")
        await read(reader, 4)
        closing = asyncio.ensure_future(port.port.close(asyncio.get_running_loop().time() + 0.2))
        await asyncio.sleep(0.05)
        assert not closing.done()
        with pytest.raises(OSError, match=r"\w"):
            await port.connect()
        async with asyncio.timeout(PATIENCE_S):
            await closing
        assert await read_end(reader) == b""
        assert not port.port.connections
        (session,) = port.sessions
        assert session.endpoint is not None
        assert not session.endpoint.try_send(b"late")


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = ListeningPort("127.0.0.1", taken.getsockname()[1], lambda: Echo([]), ListenLimits(1, 1.0))
        with pytest.raises(OSError, match="in use"):
            port.bind()
        assert port.port == 0
