"""Topics that match a route's pattern are deleted: the route reads the other topics, and does not create the deleted ones."""

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


async def create(source: Side, topic: str) -> None:
    async with opened(source.system, source.settings) as cluster:
        await cluster.create(topic, PARTITIONS)


async def topics(source: Side) -> list[str]:
    async with opened(source.system, source.settings) as cluster:
        return await cluster.topics()


async def wait_for_lanes(gateway: GatewayProcess, topic: str, *, present: bool) -> None:
    """Wait until the gateway has lanes of the topic, or with `present=False` until it has none."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while any(f"/{topic}/" in lane for lane in (await asyncio.to_thread(gateway.route)).get("lanes", {})) is not present:
            assert gateway.process.poll() is None, gateway.log
            await asyncio.sleep(0.1)


async def check_deletion(source: Side, delete: Delete, folder: Path) -> None:
    """Delete one of two topics that a route reads, and create it again; both must be read."""
    prefix = f"gone{time.time_ns()}"
    deleted, kept = f"{prefix}-a", f"{prefix}-b"
    for topic in (deleted, kept):
        await create(source, topic)
        await send(source, topic)
    with GatewayProcess(settings(source, f"~.*{prefix}-.*", folder), folder) as gateway:
        await asyncio.to_thread(gateway.wait_stored, 2 * COUNT)
        await delete(deleted)
        await wait_for_lanes(gateway, deleted, present=False)
        await send(source, kept)
        await asyncio.to_thread(gateway.wait_stored, 3 * COUNT)
        assert deleted not in await topics(source), "the gateway created the topic"
        await create(source, deleted)
        await wait_for_lanes(gateway, deleted, present=True)
        await send(source, deleted)
        await asyncio.to_thread(gateway.wait_stored, 4 * COUNT)
        assert (await asyncio.to_thread(gateway.route))["error"] is None
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


async def test_a_deleted_pulsar_topic_is_dropped_and_read_again_when_created(
    pulsar: Pulsar, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def delete(topic: str) -> None:
        await asyncio.to_thread(pulsar.admin, "DELETE", f"persistent/public/default/{topic}/partitions?force=true")

    await check_deletion(side("pulsar", request), delete, tmp_path)


async def test_a_deleted_rocketmq_topic_is_dropped_and_read_again_when_created(
    rocketmq: RocketMQ, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async def delete(topic: str) -> None:
        async with connected(rocketmq) as client:
            await client.admin.delete_topic(topic)

    await check_deletion(side("rocketmq", request), delete, tmp_path)
