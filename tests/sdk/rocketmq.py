"""What the tests with RocketMQ's Java clients share: running them, a gateway's configuration, reading topics to their end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mqbridge.message import Message
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from tests.e2e.sides import Side
from tests.e2e.support import read
from tests.kit import java
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

POLL_S = 0.1
IDLE_S = 50
"""What ends a Java consumer to which nothing comes: one that pulls before its broker knows its subscription waits for 25 s."""

Line = dict[str, Any]

AT_ONCE = 3
"""Java programs that run at the same time. With more, a client waits seconds for a processor, and its requests time out."""
_running = ThreadPoolExecutor(AT_ONCE, "java")


async def run_java(name: str, /, **arguments: Any) -> list[Line]:
    """A program's lines without its summary."""
    loop = asyncio.get_running_loop()
    return (await loop.run_in_executor(_running, lambda: java.run(name, **arguments)))[:-1]


def body(line: Line) -> bytes:
    return base64.b64decode(line["body"])


def sequence(payload: bytes | None) -> int:
    """The number with which the bodies of the Java programs begin."""
    return int.from_bytes((payload or b"")[:8], "big")


async def until(
    condition: Callable[[], Any], what: Callable[[], object] = lambda: "", patience_s: float = SERVER_PATIENCE_S
) -> None:
    """Wait for a condition; `what` describes what was seen instead."""
    deadline = time.monotonic() + patience_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, what()
        await asyncio.sleep(POLL_S)


def config(source: Side, topic: str, group: str, *targets: tuple[Side, str], **delivery: Any) -> dict[str, Any]:
    """A gateway with one route, from a topic to several."""
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
    """All messages of a topic by partition."""
    found: list[list[Message]] = [[] for _ in range(partitions)]
    async for partition, messages in read(where.system, where.settings, topic, f"judge_{time.time_ns()}"):
        found[partition] += messages
    return found


@contextlib.asynccontextmanager
async def connected(rocketmq: RocketMQ) -> AsyncIterator[ClusterClient]:
    """A client of ours that queries the cluster's state."""
    client = ClusterClient(rocketmq.name_servers)
    try:
        await client.connect()
        yield client
    finally:
        await client.close()


async def make_group(rocketmq: RocketMQ, *, retry_queues: int = 1) -> str:
    """A new group, its retry topic made before its first member comes.

    Otherwise that member's heartbeat makes it, and a Java client sees it with its next look at the routes, up to 30 s later.
    """
    group = f"g_{time.time_ns()}"
    async with connected(rocketmq) as client:
        await client.groups.create(GroupConfig(group, retry_queues=retry_queues))
    await asyncio.to_thread(rocketmq.create_topic, f"%RETRY%{group}", retry_queues)
    return group
