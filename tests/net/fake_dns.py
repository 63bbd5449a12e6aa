"""Host names of tests: a resolver with names of its own, and addresses that behave like broken ones.

All addresses are on this machine: Linux accepts connections to every 127.x.x.x.
"""

import asyncio
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpcore
import pytest

from mqbridge.net import dial

BACKLOG_FILLERS = 4


def install(monkeypatch: pytest.MonkeyPatch, names: Mapping[str, Sequence[str]]) -> None:
    """Let `getaddrinfo` return these addresses for these names, in this order; other names are resolved as before."""
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        return [entry for ip in names.get(name, [name]) for entry in real(ip, port, *arguments, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def make_unreachable(monkeypatch: pytest.MonkeyPatch, ports: Collection[int]) -> None:
    """Let mqbridge fail to connect to these ports, as if the servers were in another network."""
    resolve, connect_tcp = dial.resolve, httpcore.AnyIOBackend.connect_tcp

    async def resolve_reachable(host: str, port: int) -> list[str]:
        if port in ports:
            raise OSError(113, "No route to host")
        return await resolve(host, port)

    async def connect_reachable(self: httpcore.AnyIOBackend, host: str, port: int, *arguments: Any, **options: Any) -> Any:
        if port in ports:
            raise httpcore.ConnectError("No route to host")
        return await connect_tcp(self, host, port, *arguments, **options)

    monkeypatch.setattr(dial, "resolve", resolve_reachable)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_reachable)


@contextmanager
def dropping(ip: str, port: int) -> Iterator[None]:
    """Let this address drop the packets of new connections: a listener whose backlog is full."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, port))
        listener.listen(0)
        fillers = [socket.socket(family) for _ in range(BACKLOG_FILLERS)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((ip, port))
        try:
            yield
        finally:
            for filler in fillers:
                filler.close()


@contextmanager
def silent(ip: str, port: int) -> Iterator[socket.socket]:
    """Let this address accept connections and send nothing; yield the listener, whose `accept` was never called."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ip, port))
        listener.listen(16)
        yield listener


class Server:
    """A server that sends back what it receives; `accepted` counts its connections, `open` are those that have not ended."""

    def __init__(self) -> None:
        self.accepted = 0
        self.open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self.open.add(writer)
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        except OSError:
            pass
        finally:
            self.open.discard(writer)
            writer.close()
