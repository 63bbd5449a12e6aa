"""Compacted topics of a real broker: whatever is acknowledged can be read, and a message without a key is refused."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from mqbridge import RocketMQClient
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import Failure, MappingError
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.producer.topic_rules import requires_keys
from mqbridge.rocketmq.mapping.compacted import NO_KEY
from mqbridge.rocketmq.wire.codes import Code
from tests.e2e.support import opened
from tests.kit.gateway import GatewayProcess
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

_numbers = itertools.count(1)


@pytest.fixture
def topic(rocketmq: RocketMQ) -> str:
    return rocketmq.create_topic(f"compacted-{next(_numbers)}", 1, attributes="+cleanup.policy=COMPACTION")


async def read(server: RocketMQ, topic: str, count: int) -> list[Any]:
    """Return the first messages of a topic. Compacted topics show a message to consumers some time after it is stored."""
    async with (
        RocketMQClient(f"rocketmq://{server.name_server}") as client,
        client.reader(topic) as reader,
        asyncio.timeout(SERVER_PATIENCE_S),
    ):
        return [await reader.receive() for _ in range(count)]


async def test_a_route_to_a_compacted_topic_stores_readable_messages_and_sets_those_without_a_key_aside(
    rocketmq: RocketMQ, topic: str, tmp_path: Path
) -> None:
    path = str(tmp_path / "source.db")
    async with opened("log", {"path": path}) as source:
        for name in ("orders", "dead"):
            await source.create(name, 1)
        outbound = await source.outbound(OutboundSpec("orders", stamp_origin=False))
        messages = [Message(b"%d" % n, key=None if n % 10 == 5 else f"customer-{n}") for n in range(50)]
        assert not (await outbound.send(0, Share(Batch.of(messages)))).failures
        await outbound.close()
    config = {
        "clusters": {
            "source": {"system": "log", "path": path},
            "target": {"system": "rocketmq", "name_servers": rocketmq.name_server},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "source", "topic": "orders", "group": "g"},
                "to": {"cluster": "target", "topic": topic},
                "delivery": {"dead_letter": {"cluster": "source", "topic": "dead"}},
            }
        ],
    }
    with GatewayProcess(config, tmp_path, "--until-idle", "1") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    copies = await read(rocketmq, topic, 45)
    assert [(copy.payload, copy.key) for copy in copies] == [
        (message.payload, message.key) for message in messages if message.key is not None
    ]
    async with opened("log", {"path": path}) as source:
        assert (await source.bounds("dead"))["0"].next == (5,)
    assert NO_KEY in gateway.log


async def test_the_librarys_messages_in_a_compacted_topic_can_be_read(rocketmq: RocketMQ, topic: str) -> None:
    async with RocketMQClient(f"rocketmq://{rocketmq.name_server}") as client, client.producer(topic) as producer:
        await asyncio.gather(*(producer.send(b"%d" % n, key=f"k{n}") for n in range(10)))
        await producer.send(b"10", keys=["index"])
        await producer.send(b"11", key="delayed", delay_level=1)
        with pytest.raises(MappingError, match="the topic is compacted"):
            await producer.send(b"no key")
        with pytest.raises(MappingError, match="the topic is compacted"):
            await producer.send(b"no key", delay_level=1)
    copies = await read(rocketmq, topic, 12)
    assert sorted(int(copy.payload) for copy in copies) == list(range(12))


async def test_the_policy_is_found_without_the_permission_to_query_the_topic(
    rocketmq: RocketMQ, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ClusterClient([rocketmq.name_server])
    await client.connect()
    ordinary, request = rocketmq.take_topic(1), client.request

    async def request_without_get(address: str, code: int, *args: Any, **options: Any) -> Any:
        if code == Code.GET_TOPIC_CONFIG:
            raise AccessRefused("no Get", Failure.FATAL, of_credentials=False)
        return await request(address, code, *args, **options)

    monkeypatch.setattr(client, "request", request_without_get)
    try:
        routes = {name: await client.admin.route(name) for name in (topic, ordinary)}
        assert {name: await requires_keys(client, "p", route) for name, route in routes.items() if route is not None} == {
            topic: True,
            ordinary: False,
        }
    finally:
        await client.close()
    assert [rocketmq.message_count(name) for name in (topic, ordinary)] == [0, 0], "the query stores nothing"
