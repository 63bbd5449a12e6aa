"""Many connections to one listener: idle ones, and busy producers. They speak the protocol by our own client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import uvloop

from mqbridge.message import Message
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from mqbridge.pulsar.mapping.request import encode_alone
from mqbridge.pulsar.wire import client_commands
from tests.kit.process import HOST

WINDOW = 20
"""Messages in flight of a busy producer."""
SILENCE_S = 30.0


@contextlib.contextmanager
def idle(port: int, count: int) -> Iterator[None]:
    """Hold connections that have completed their handshake, and do nothing more."""
    connect = client_commands.connect("bench", "", b"", None)
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection((HOST, port), SILENCE_S)) for _ in range(count)]
        for each in sockets:
            each.sendall(connect)
        for each in sockets:
            assert each.recv(4096), "the listener refuses a connection"
        yield


def producers(port: int, count: int, messages: int, size: int) -> float:
    """Send messages one by one with producers on connections of their own; return the messages per second of all together."""

    async def produce(number: int, opened: asyncio.Barrier) -> None:
        client = ClusterClient(parse_service_url(f"pulsar://{HOST}:{port}", tls=False))
        producer = client.producer(f"persistent://public/default/busy-{number % 20}")
        entry = encode_alone(Message(bytes(size)), None, 0)
        await producer.send(entry.metadata, entry.payload, 1)
        await opened.wait()
        waiting: list[asyncio.Future[object]] = []
        for _ in range(messages // count):
            waiting.append(producer.send(entry.metadata, entry.payload, 1))
            if len(waiting) >= WINDOW:
                await asyncio.gather(*waiting)
                waiting = []
        await asyncio.gather(*waiting)
        await opened.wait()
        await producer.close()
        await client.close()

    async def run() -> float:
        opened = asyncio.Barrier(count + 1)
        tasks = [asyncio.create_task(produce(number, opened)) for number in range(count)]
        await opened.wait()
        began = time.monotonic()
        await opened.wait()
        rate = messages / (time.monotonic() - began)
        await asyncio.gather(*tasks)
        return rate

    return uvloop.run(run())
