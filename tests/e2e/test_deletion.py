"""Topics that are deleted at the source while a pattern takes them: the others go on, and nobody makes them anew."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.sides import Side, side
from tests.e2e.support import opened
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S
from tests.sdk.rocketmq import connected

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PARTITIONS = 2
COUNT = 10

Delete = Callable[[str], Awaitable[None]]


def settings(source: Side, pattern: str, folder: Path) -> dict[str, Any]:
    refresh = {} if source.system == "tubemq" else {"refresh": "1s"}
    return {
        "clusters": {
            "here": {"system": source.system, **source.settings, **refresh},
            "there": {"system": "log", "path": str(folder / "target.db")},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "here", "topic": pattern, "group": f"g_{time.time_ns()}", "refresh": "1s"},
                "to": {"cluster": "there", "topic": "all"},
            }
        ],
    }


async def send(source: Side, topic: str) -> None:
    async with opened(source.system, source.settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        assert not (await outbound.send(0, Share(Batch.of([Message(b"%d" % number) for number in range(COUNT)])))).failures
        await outbound.close()


async def make(source: Side, topic: str) -> None:
    async with opened(source.system, source.settings) as cluster:
        await cluster.create(topic, PARTITIONS)


async def topics(source: Side) -> list[str]:
    async with opened(source.system, source.settings) as cluster:
        return await cluster.topics()


async def reads(gateway: GatewayProcess, topic: str, *, wanted: bool) -> None:
    """Wait until partitions of the topic are read, or none is."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while any(f"/{topic}/" in lane for lane in (await asyncio.to_thread(gateway.route)).get("lanes", {})) is not wanted:
            assert gateway.process.poll() is None, gateway.log
            await asyncio.sleep(0.1)


async def follow(source: Side, delete: Delete, folder: Path) -> None:
    prefix = f"gone{time.time_ns()}"
    gone, kept = f"{prefix}-a", f"{prefix}-b"
    for topic in (gone, kept):
        await make(source, topic)
        await send(source, topic)
    with GatewayProcess(settings(source, f"~.*{prefix}-.*", folder), folder) as gateway:
        await asyncio.to_thread(gateway.wait_stored, 2 * COUNT)
        await delete(gone)
        await reads(gateway, gone, wanted=False)
        await send(source, kept)
        await asyncio.to_thread(gateway.wait_stored, 3 * COUNT)
        assert gone not in await topics(source), "the gateway made it anew"
        await make(source, gone)
        await reads(gateway, gone, wanted=True)
        await send(source, gone)
        await asyncio.to_thread(gateway.wait_stored, 4 * COUNT)
        assert (await asyncio.to_thread(gateway.route))["error"] is None
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


async def test_a_pulsar_topic_is_deleted(pulsar: Pulsar, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async def delete(topic: str) -> None:
        await asyncio.to_thread(pulsar.admin, "DELETE", f"persistent/public/default/{topic}/partitions?force=true")

    await follow(side("pulsar", request), delete, tmp_path)


async def test_a_rocketmq_topic_is_deleted(rocketmq: RocketMQ, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async def delete(topic: str) -> None:
        async with connected(rocketmq) as client:
            await client.admin.delete_topic(topic)

    await follow(side("rocketmq", request), delete, tmp_path)
