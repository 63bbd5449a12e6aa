"""The connection to a real, deduplicating broker is cut at one step after another, in both directions."""

import asyncio
from uuid import uuid4

import pytest

from mqbridge.errors import ClusterError
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.subscription import Subscription, Types
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import PATIENCE_S, drain, numbers
from tests.pulsar.proxy import CuttingProxy

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

COUNT = 8


async def converse(url: str, topic: str, name: str, kind: int) -> list[int]:
    """Send, receive, acknowledge, close; what was received."""
    client = client_of(url)
    producer = client.producer(topic, Publication(name))
    sent = [producer.send(MessageMetadata(), b"%d" % number) for number in range(COUNT)]
    consumer = await client.consumer(topic, Subscription(name, kind))
    seen: list[int] = []
    while len(set(seen)) < COUNT:
        entry = await consumer.receive()
        seen += numbers([entry])
        if kind == Types.Shared:
            consumer.acknowledge(entry.place)
        else:
            consumer.acknowledge_up_to(entry.place)
    await asyncio.gather(*sent)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await consumer.confirm_acks()
                break
            except ClusterError:
                await asyncio.sleep(0.01)
    await producer.close()
    await consumer.close()
    await client.close()
    return seen


@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Shared], ids=["exclusive", "shared"])
@pytest.mark.parametrize("answers", [False, True], ids=["commands", "answers"])
async def test_a_cut_at_every_step(pulsar, subscribe, kind, answers):
    namespace = await asyncio.to_thread(pulsar.create_namespace, "acme", f"cuts-{uuid4().hex[:6]}")
    await asyncio.to_thread(pulsar.admin, "POST", f"namespaces/{namespace}/deduplication", True)
    async with CuttingProxy("127.0.0.1", pulsar.port) as proxy:
        for step in range(1, 19):
            topic = await asyncio.to_thread(pulsar.create_topic, f"t-{step}", namespace=namespace)
            proxy.plan(step, answers)
            seen = await asyncio.wait_for(converse(proxy.url, topic, "me", kind), PATIENCE_S)
            assert sorted(set(seen)) == list(range(COUNT)), f"cut at step {step}"
            if kind == Types.Exclusive:
                assert seen == list(range(COUNT)), f"cut at step {step}"
            reader = await subscribe(topic)
            assert numbers(await drain(reader)) == list(range(COUNT)), f"stored once and in order, cut at step {step}"
            again = await subscribe(topic, "me", type=kind)
            assert not await again.has_more(), f"all acknowledged, cut at step {step}"
            await reader.close()
            await again.close()
