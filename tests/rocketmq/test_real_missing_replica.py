"""A real broker that demands a slave and has none stores messages, and says so; a route reports it, or holds them back."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqbridge import RocketMQClient
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.support import opened
from tests.kit.gateway import GatewayProcess
from tests.kit.rocketmq import RocketMQ

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture
def without_slave(rocketmq_old: RocketMQ) -> Iterator[RocketMQ]:
    """A broker 4.9, which demands a slave from every SYNC_MASTER."""
    rocketmq_old.configure({"brokerRole": "SYNC_MASTER"})
    yield rocketmq_old
    rocketmq_old.configure({"brokerRole": "ASYNC_MASTER"})


async def fill(path: Path, count: int) -> None:
    async with opened("log", {"path": str(path)}) as source:
        await source.create("orders", 1)
        outbound = await source.outbound(OutboundSpec("orders"))
        assert not (await outbound.send(0, Share(Batch.of([Message(b"%d" % n) for n in range(count)])))).failures
        await outbound.close()


def configuration(server: RocketMQ, path: Path, topic: str, **options: Any) -> dict[str, Any]:
    return {
        "clusters": {
            "source": {"system": "log", "path": str(path)},
            "target": {"system": "rocketmq", "name_servers": server.name_server},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "source", "topic": "orders", "group": "g"},
                "to": {"cluster": "target", "topic": topic, "options": options},
            }
        ],
    }


async def test_the_receipt_and_the_route_report_messages_without_replica(without_slave: RocketMQ, tmp_path: Path) -> None:
    topic, path = without_slave.take_topic(1), tmp_path / "source.db"
    async with RocketMQClient(f"rocketmq://{without_slave.name_server}") as client, client.producer(topic) as producer:
        assert (await producer.send(b"x")).status == "SLAVE_NOT_AVAILABLE"
    await fill(path, 20)
    with GatewayProcess(configuration(without_slave, path, topic), tmp_path) as gateway:
        await asyncio.to_thread(gateway.wait_stored, 20)
        text = (await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{gateway.port}/metrics")).text
    assert 'mqbridge_unreplicated_messages_total{cluster="target"} 20' in text
    assert gateway.log.count("stores messages without the flush or the replica") == 1


async def test_a_route_that_requires_the_replica_holds_messages_back_until_there_is_one(
    without_slave: RocketMQ, tmp_path: Path
) -> None:
    topic, path = without_slave.take_topic(1), tmp_path / "source.db"
    await fill(path, 20)
    config = configuration(without_slave, path, topic, require_replica=True)
    with GatewayProcess(config, tmp_path) as gateway:
        async with asyncio.timeout(60):
            while gateway.log.count("retrying in") < 1:
                await asyncio.sleep(0.1)
        assert gateway.route()["stored"] == 0
        without_slave.configure({"brokerRole": "ASYNC_MASTER"})
        await asyncio.to_thread(gateway.wait_stored, 20)
    assert without_slave.message_count(topic) > 20, "each attempt was stored"
