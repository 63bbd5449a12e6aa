"""The target topic of a running route is deleted: no message is acknowledged into a topic that no consumer finds."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from mqbridge import PulsarClient
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.support import opened
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PARTITIONS = 4


def settings(pulsar: Pulsar, topic: str, folder: Path, target: dict[str, Any]) -> dict[str, Any]:
    return {
        "clusters": {
            "here": {"system": "log", "path": str(folder / "source.db")},
            "there": {"system": "pulsar", "service_url": pulsar.service_url, "admin_url": pulsar.admin_url},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "here", "topic": topic, "group": "g"},
                "to": {"cluster": "there", "unread": "may_be_deleted", **target},
            }
        ],
    }


@asynccontextmanager
async def source(folder: Path, topic: str) -> AsyncIterator[Cluster]:
    async with opened("log", {"path": str(folder / "source.db")}) as cluster:
        await cluster.create(topic, PARTITIONS)
        yield cluster


async def send(cluster: Cluster, topic: str, *payloads: bytes) -> None:
    """Send each payload to every partition."""
    outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
    for partition in range(PARTITIONS):
        receipt = await outbound.send(partition, Share(Batch.of([Message(payload) for payload in payloads])))
        assert not receipt.failures
    await outbound.close()


async def received(pulsar: Pulsar, topic: str, count: int) -> Counter[bytes]:
    """Return how often an ordinary consumer of the topic receives each payload of `count` messages."""
    async with PulsarClient(pulsar.service_url) as client, client.consumer(topic, group="reads", start="earliest") as consumer:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            return Counter([(await consumer.receive()).payload for _ in range(count)])


async def until_retrying(gateway: GatewayProcess) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while "cannot consume, retrying" not in gateway.log:
            assert gateway.process.poll() is None, gateway.log
            await asyncio.sleep(0.1)


def delete(pulsar: Pulsar, topic: str, *, partitioned: bool) -> None:
    pulsar.admin("DELETE", f"persistent/public/default/{topic}{'/partitions' if partitioned else ''}?force=true")


def stored(pulsar: Pulsar, topic: str) -> int:
    """Return the number of messages in the partitions that are there.

    A broker deletes the partitions before the partitioned topic: a producer that asks in between may register at one, which then
    stays, and must not write to it.
    """
    stats = [pulsar.admin("GET", f"persistent/public/default/{name}/stats") for name in listed(pulsar, topic) if name != topic]
    return sum(each["msgInCounter"] for each in stats)


def listed(pulsar: Pulsar, topic: str) -> list[str]:
    """Return the concrete topics and the partitioned topic of this name."""
    names = [*pulsar.admin("GET", "persistent/public/default"), *pulsar.admin("GET", "persistent/public/default/partitioned")]
    return sorted(name.rpartition("/")[2] for name in names if topic in name)


async def test_a_deleted_target_is_created_again_with_its_partitions(pulsar: Pulsar, tmp_path: Path) -> None:
    topic = f"made{time.time_ns()}"
    target = {"create": {"subscriptions": ["reads"]}}
    async with source(tmp_path, topic) as cluster:
        with GatewayProcess(settings(pulsar, topic, tmp_path, target), tmp_path) as gateway:
            await send(cluster, topic, b"before")
            await asyncio.to_thread(gateway.wait_stored, PARTITIONS)
            await asyncio.to_thread(delete, pulsar, topic, partitioned=True)
            await send(cluster, topic, b"after")
            await until_retrying(gateway)
            await asyncio.to_thread(gateway.wait_stored, 2 * PARTITIONS)
            assert await received(pulsar, topic, PARTITIONS) == {b"after": PARTITIONS}
            assert listed(pulsar, topic) == sorted([topic, *(f"{topic}-partition-{index}" for index in range(PARTITIONS))])
            assert "does not exist any more" in gateway.log or "TopicNotFound" in gateway.log, gateway.log
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


@pytest.mark.parametrize("partitions", [2, 0])
async def test_a_route_waits_for_a_deleted_target_and_uses_what_is_created_again(
    pulsar: Pulsar, tmp_path: Path, partitions: int
) -> None:
    """The new topic has fewer partitions, or is not partitioned. Every message sent after the deletion is in it."""
    topic = f"waits{time.time_ns()}"
    await asyncio.to_thread(pulsar.admin, "PUT", f"persistent/public/default/{topic}/partitions", PARTITIONS)
    async with source(tmp_path, topic) as cluster:
        with GatewayProcess(settings(pulsar, topic, tmp_path, {"create": False}), tmp_path) as gateway:
            await send(cluster, topic, b"before")
            await asyncio.to_thread(gateway.wait_stored, PARTITIONS)
            await asyncio.to_thread(delete, pulsar, topic, partitioned=True)
            await send(cluster, topic, b"after")
            await until_retrying(gateway)
            async with asyncio.timeout(SERVER_PATIENCE_S):
                while f"the topic there/{topic} does not exist and cannot be created" not in gateway.log:
                    await asyncio.sleep(0.1)
            assert await asyncio.to_thread(stored, pulsar, topic) == 0
            route = await asyncio.to_thread(gateway.route)
            assert (route["stored"], route["error"]) == (PARTITIONS, None)
            assert "retrying, because the topic of a target was deleted or changed" in route["retrying"]
            if partitions:
                await asyncio.to_thread(pulsar.admin, "PUT", f"persistent/public/default/{topic}/partitions", partitions)
            else:
                await asyncio.to_thread(pulsar.admin, "PUT", f"persistent/public/default/{topic}")
            await asyncio.to_thread(gateway.wait_stored, 2 * PARTITIONS)
            assert await received(pulsar, topic, PARTITIONS) == {b"after": PARTITIONS}
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


async def test_an_unpartitioned_target_is_not_created_by_a_reconnecting_producer(pulsar: Pulsar, tmp_path: Path) -> None:
    topic = f"single{time.time_ns()}"
    await asyncio.to_thread(pulsar.admin, "PUT", f"persistent/public/default/{topic}")
    async with source(tmp_path, topic) as cluster:
        with GatewayProcess(settings(pulsar, topic, tmp_path, {"create": False}), tmp_path) as gateway:
            await send(cluster, topic, b"before")
            await asyncio.to_thread(gateway.wait_stored, PARTITIONS)
            await asyncio.to_thread(delete, pulsar, topic, partitioned=False)
            await send(cluster, topic, b"after")
            await until_retrying(gateway)
            assert listed(pulsar, topic) == []
            await asyncio.to_thread(pulsar.admin, "PUT", f"persistent/public/default/{topic}")
            await asyncio.to_thread(gateway.wait_stored, 2 * PARTITIONS)
            assert await received(pulsar, topic, PARTITIONS) == {b"after": PARTITIONS}
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
