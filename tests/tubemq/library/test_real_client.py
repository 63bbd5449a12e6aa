"""The library client with a real Master and Broker."""

import asyncio

import pytest

from mqbridge.tubemq.library.client import TubeMQClient
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.real import fresh_group

pytestmark = pytest.mark.cluster


async def test_types_attributes_and_chosen_partitions_at_a_real_broker(tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(3)
    async with TubeMQClient(f"tubemq://{tubemq.masters}", heartbeat_s=0.5) as client:
        async with client.producer(topic) as producer:
            for number in range(30):
                kind = ("paid", "sent", "refunded")[number % 3]
                receipt = await producer.send(b"%02d" % number, msg_type=kind, partition=f"1:{number % 2}")
                assert receipt.partition == f"1:{number % 2}"
            await producer.send(b"as it is", attributes="$msgType$=paid,$msgTime$=202401020304,a=b,no pair", partition="1:2")
        wanted = client.consumer(topic, fresh_group(), msg_types=["paid", "refunded"], query_priority=303)
        async with wanted as consumer:
            messages = [await consumer.receive(SERVER_PATIENCE_S) for _ in range(21)]
            assert all(consumer.acknowledge(message) for message in messages)
            await consumer.flush()
    for name, numbers in (("1:0", range(0, 30, 2)), ("1:1", range(1, 30, 2))):
        found = [message.payload for message in messages if message.partition == name]
        assert found == [b"%02d" % number for number in numbers if number % 3 != 1]
    (plain,) = [message for message in messages if message.partition == "1:2"]
    assert plain.attributes == b"$msgType$=paid,$msgTime$=202401020304,a=b,no pair"


async def test_seek_and_redelivery_across_packs_at_a_real_broker(tubemq: TubeMQ) -> None:
    """Messages have 200 kB, so a pack contains two or three of them."""
    topic = tubemq.take_topic(1)
    bodies = [bytes([number]) * 200_000 for number in range(12)]
    async with TubeMQClient(f"tubemq://{tubemq.masters}", heartbeat_s=0.5) as client:
        async with client.producer(topic, max_pending_bytes=500_000) as producer:
            await asyncio.gather(*(producer.send(body, key="k") for body in bodies))
        async with client.consumer(topic, fresh_group(), max_bytes=1 << 20) as consumer:
            received = []
            for _ in bodies:
                received.append(await consumer.receive(SERVER_PATIENCE_S))
                assert consumer.acknowledge(received[-1])
            assert [message.payload for message in received] == bodies
            assert len({message.position[0] for message in received}) > 2, "several packs"
            for start in (7, 0, 11):
                await consumer.seek(received[start])
                first = await consumer.receive(SERVER_PATIENCE_S)
                assert first.payload == bodies[start]
                assert consumer.negative_acknowledge(first)
                for body in bodies[start:]:
                    again = await consumer.receive(SERVER_PATIENCE_S)
                    assert again.payload == body
                    assert consumer.acknowledge(again)
