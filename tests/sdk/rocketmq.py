"""Helpers of the tests with RocketMQ's Java clients: run a client, configure a gateway, read a whole topic."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mqbridge.message import Message
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from tests.e2e.sides import Side
from tests.e2e.support import read
from tests.kit import java
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

Clients = pytest.mark.parametrize(
    "client", [java.ROCKETMQ_CLIENTS[0], pytest.param(java.ROCKETMQ_CLIENTS[1], marks=pytest.mark.thorough)]
)
"""The releases of the Java client with which a test runs."""

POLL_S = 0.1
IDLE_S = 50
"""A Java consumer ends when it has received nothing for this long. If it pulls before its broker knows the subscription, it
waits for 25 s, so this must be longer."""

Line = dict[str, Any]

MAX_RUNNING = 3
"""Maximum number of Java programs that run at once. With more, clients wait seconds for the processor, and requests time out."""
_executor = ThreadPoolExecutor(MAX_RUNNING, "java")


async def run_java(name: str, /, **arguments: Any) -> list[Line]:
    """Run a Java program; return the lines that it prints, without the summary at the end."""
    loop = asyncio.get_running_loop()
    return (await loop.run_in_executor(_executor, lambda: java.run(name, **arguments)))[:-1]


def body(line: Line) -> bytes:
    return base64.b64decode(line["body"])


def sequence(payload: bytes | None) -> int:
    """Return the number with which a message body of the Java programs begins."""
    return int.from_bytes((payload or b"")[:8], "big")


async def until(
    condition: Callable[[], Any], describe: Callable[[], object] = lambda: "", patience_s: float = SERVER_PATIENCE_S
) -> None:
    """Wait until a condition is true; `describe` returns the text of the error after `patience_s` seconds."""
    deadline = time.monotonic() + patience_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, describe()
        await asyncio.sleep(POLL_S)


def config(source: Side, topic: str, group: str, *targets: tuple[Side, str], **delivery: Any) -> dict[str, Any]:
    """Return a gateway configuration with one route, from a topic to one or several targets."""
    sides = {side.system: side for side in (source, *(side for side, _ in targets))}
    return {
        "clusters": {name: {"system": name, **side.settings} for name, side in sides.items()},
        "routes": [
            {
                "name": "r",
                "from": {"cluster": source.system, "topic": topic, "group": group},
                "to": [{"cluster": side.system, "topic": name} for side, name in targets],
                "delivery": delivery,
            }
        ],
    }


async def everything(where: Side, topic: str, partitions: int) -> list[list[Message]]:
    """Return all messages of a topic by partition, in their order."""
    found: list[list[Message]] = [[] for _ in range(partitions)]
    async for partition, messages in read(where.system, where.settings, topic, f"judge_{time.time_ns()}"):
        found[partition] += messages
    return found


@contextlib.asynccontextmanager
async def connected(rocketmq: RocketMQ) -> AsyncIterator[ClusterClient]:
    """Connect one of our clients, to query the state of the cluster."""
    client = ClusterClient(rocketmq.name_servers)
    try:
        await client.connect()
        yield client
    finally:
        await client.close()


async def make_group(rocketmq: RocketMQ, *, retry_queues: int = 1) -> str:
    """Create a group and its retry topic before its first member joins; return the name of the group.

    Otherwise the first heartbeat of a member would create the retry topic, and a Java client would notice it only with its next
    route query, up to 30 s later.
    """
    group = f"g_{time.time_ns()}"
    async with connected(rocketmq) as client:
        await client.groups.create(GroupConfig(group, retry_queues=retry_queues))
    await asyncio.to_thread(rocketmq.create_topic, f"%RETRY%{group}", retry_queues)
    return group
