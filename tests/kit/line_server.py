"""A tiny server of a listener, for tests of what is around servers: a protocol of lines.

`hello` completes the handshake, `topic NAME` finds or creates a topic and answers its name in the cluster and its number of
partitions, `say` counts as a message; any other line is answered by `no`.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mqbridge.adapter.inbound import Sharing
from mqbridge.errors import ClusterError, ConnectionLost, MqbridgeError
from mqbridge.listener.server import ServedSystem, ServerCounts, Services
from mqbridge.net.listen import ServedEndpoint
from mqbridge.net.tasks import cancel, spawn


class LineSession:
    """One connection."""

    def __init__(self, server: "LineServer") -> None:
        self._server = server
        self._endpoint: ServedEndpoint | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def measure(self, data: bytes | bytearray, at: int) -> int:
        end = data.find(b"\n", at)
        return len(data) - at + 1 if end < 0 else end - at + 1

    def on_connected(self, endpoint: ServedEndpoint) -> None:
        self._endpoint = endpoint
        self._server.sessions.add(self)

    def on_frames(self, frames: list[bytes]) -> None:
        for frame in frames:
            task = spawn(self._answer(frame.decode().split()), "answer", log_errors=False)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def on_lost(self, error: Exception) -> None:
        self._server.sessions.discard(self)

    async def _answer(self, words: list[str]) -> None:
        assert self._endpoint is not None
        answer = "no"
        if words[0] == "hello":
            self._endpoint.handshake_done()
            answer = "welcome"
        elif words[0] == "topic":
            try:
                topic = await self._server.services.topics.find_or_create(words[1])
                answer = f"{topic.backing} {topic.count}"
            except MqbridgeError as error:
                answer = f"error {error}"
        elif words[0] == "say":
            self._server.received += 1
            answer = "said"
        with suppress(ConnectionLost):
            self._endpoint.send(answer.encode() + b"\n")

    async def end(self) -> None:
        assert self._endpoint is not None
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        with suppress(ConnectionLost):
            self._endpoint.send(b"bye\n")
        await self._endpoint.close()
        await cancel(*self._tasks)


class LineServer:
    """The server. `start_errors` is what its next starts raise."""

    refusal = b"full\n"
    start_errors: list[ClusterError] = []  # noqa: RUF012 - shared on purpose: servers are made by the gateway

    def __init__(self, services: Services) -> None:
        self.services = services
        self.sessions: set[LineSession] = set()
        self.received = 0

    @property
    def counts(self) -> ServerCounts:
        return ServerCounts(producers=len(self.sessions), received_messages=self.received)

    @property
    def web(self) -> Any:
        return Starlette(routes=[Route("/", lambda _: PlainTextResponse("lines"))])

    def make_session(self) -> LineSession:
        return LineSession(self)

    async def start(self) -> None:
        if self.start_errors:
            raise self.start_errors.pop(0)

    async def drain(self, deadline: float) -> None:
        await asyncio.gather(*(session.end() for session in list(self.sessions)))

    async def close(self, deadline: float) -> None:
        """Do nothing more."""

    def describe(self) -> Mapping[str, Any]:
        return {"sessions": len(self.sessions)}


LINES = ServedSystem(
    system="lines",
    port=7650,
    web_port=7080,
    unit_format="pulsar.entry",
    default_topics="lines/{topic}",
    answers_in_order=True,
    make=LineServer,
    sharing=frozenset(Sharing),
    numbers_messages=True,
    parks_messages=True,
)
SERVERS = {"lines": LINES}


class LineClient:
    """A client of the protocol."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, address: str) -> "LineClient":
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def ask(self, line: str) -> str:
        """Send a line, and return the answer; empty if the connection is closed."""
        self._writer.write(line.encode() + b"\n")
        return await self.line()

    async def line(self) -> str:
        """Return the next line."""
        return (await self._reader.readline()).decode().strip()

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
