"""A TCP proxy in front of the real broker that closes a connection at the n-th frame, in either direction."""

import asyncio
import struct
from types import TracebackType
from typing import Self

LENGTH_BYTES = 4


class CuttingProxy:
    """Closes a connection instead of passing on its frame `cut_at` of the client, or with `answers` of the broker (0: never)."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self.cut_at, self.answers = 0, False
        self.frames = self.connections = 0
        self.cuts = 0
        """How often it was cut since the last plan."""
        self.away = False
        """While it is True, every connection is refused."""
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.close()
        self.drop()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def plan(self, cut_at: int, answers: bool) -> None:
        """Count anew."""
        self.frames, self.cuts, self.cut_at, self.answers = 0, 0, cut_at, answers

    def drop(self) -> None:
        """Take every connection away."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.away:
            writer.transport.abort()
            return
        self.connections += 1
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        pair = {writer, up_writer}
        self._writers |= pair
        try:
            await asyncio.gather(self._pass(reader, up_writer, False, pair), self._pass(up_reader, writer, True, pair))
        finally:
            self._writers -= pair
            for each in pair:
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: bool, pair: set) -> None:
        try:
            while True:
                length = await reader.readexactly(LENGTH_BYTES)
                frame = await reader.readexactly(struct.unpack(">I", length)[0])
                if answers is self.answers:
                    self.frames += 1
                    if self.frames == self.cut_at:
                        self.cuts += 1
                        break
                writer.write(length + frame)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        for each in pair:
            each.transport.abort()
