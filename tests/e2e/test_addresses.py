"""Clusters whose servers advertise addresses that cannot be reached from here: with `addresses` everything works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mqbridge import PulsarClient, RocketMQClient, TubeMQClient
from mqbridge.errors import ClusterError
from mqbridge.net.addresses import split_address
from tests.e2e.support import opened
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tcp_proxy import Network
from tests.kit.tubemq import TubeMQ
from tests.net.fake_dns import make_unreachable
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster

HOST = "127.0.0.1"
POLL_S = 0.5


@asynccontextmanager
async def behind_nat(monkeypatch: pytest.MonkeyPatch, ports: Collection[int]) -> AsyncIterator[Mapping[str, str]]:
    """Forward other ports to these, which cannot be reached any more; yield the map."""
    async with Network((HOST, port) for port in ports) as network:
        make_unreachable(monkeypatch, ports)
        yield {f"{HOST}:{port}": f"{HOST}:{link.port}" for (_, port), link in network.links.items()}


async def send_and_receive(client: Any, topic: str) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S), client:
        async with client.producer(topic) as producer:
            await producer.send(b"hello", key="k")
        async with client.consumer(topic, group="g-behind-nat") as consumer:
            async for message in consumer:
                assert message.payload == b"hello"
                consumer.acknowledge(message)
                break


async def check(system: str, make_client: Callable[..., Any], url: str, config: dict[str, Any], topic: str, entries: Any) -> None:
    await send_and_receive(make_client(url, addresses=entries), topic)
    async with opened(system, config | {"addresses": entries}) as cluster:
        assert await cluster.describe(topic) is not None
        assert any(bounds.next != bounds.first for bounds in (await cluster.bounds(topic)).values())
        async with asyncio.timeout(SERVER_PATIENCE_S):  # a Broker of TubeMQ lists a group some seconds later
            while "g-behind-nat" not in await cluster.operations.groups(topic):
                await asyncio.sleep(POLL_S)


async def test_pulsar(monkeypatch: pytest.MonkeyPatch, pulsar: Pulsar) -> None:
    topic = pulsar.take_topic(2)
    ports = [split_address(url.rpartition("/")[2], 0)[1] for url in (pulsar.service_url, pulsar.admin_url)]
    config = {"service_url": pulsar.service_url, "admin_url": pulsar.admin_url}
    async with behind_nat(monkeypatch, ports) as entries:
        await check("pulsar", PulsarClient, pulsar.service_url, config, topic, entries)
        with pytest.raises(ClusterError, match=f"{HOST}:{ports[0]} cannot be reached: No route to host$"):
            await PulsarClient(pulsar.service_url).connect()


async def test_rocketmq(monkeypatch: pytest.MonkeyPatch, rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(2)
    url = f"rocketmq://{','.join(rocketmq.name_servers)}"
    async with RocketMQClient(url) as client:
        brokers = (await client.admin.masters()).values()
    ports = [split_address(address, 0)[1] for address in (*rocketmq.name_servers, *brokers)]
    config = {"name_servers": list(rocketmq.name_servers)}
    async with behind_nat(monkeypatch, ports) as entries:
        await check("rocketmq", RocketMQClient, url, config, topic, entries)


async def test_tubemq(monkeypatch: pytest.MonkeyPatch, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(2)
    config = {"masters": tubemq.masters, "admin_url": tubemq.admin_url, "heartbeat": "2s"}
    async with opened("tubemq", config) as cluster:
        node, *_ = await cluster._admin.brokers()
    web = split_address(node.url.split("/")[2], 0)[1]
    master_web = split_address(tubemq.admin_url.split("/")[2], 0)[1]
    masters = [split_address(address, 0)[1] for address in tubemq.masters.split(",")]
    async with behind_nat(monkeypatch, [*masters, master_web, web, tubemq.broker_port]) as entries:
        await check("tubemq", TubeMQClient, f"tubemq://{tubemq.masters}", config, topic, entries)
