"""Consumers of the public client at a real broker 5.3.3."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure
from mqbridge.library.received import ReceivedMessage
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.library.client import RocketMQClient
from mqbridge.rocketmq.library.consumer import Consumer
from mqbridge.rocketmq.library.pop_consumer import PopConsumer
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest_asyncio.fixture
async def client(rocketmq: RocketMQ) -> AsyncIterator[RocketMQClient]:
    async with RocketMQClient(f"rocketmq://{rocketmq.name_server}") as client:
        yield client


def new_group() -> str:
    return f"g-{uuid4().hex[:8]}"


async def send(client: RocketMQClient, topic: str, count: int) -> None:
    async with client.producer(topic) as producer:
        types = ("even", "odd")
        await asyncio.gather(*(producer.send(b"%d" % n, key=f"k{n % 5}", msg_type=types[n % 2]) for n in range(count)))


async def receive(consumer: Consumer | PopConsumer, count: int) -> list[ReceivedMessage]:
    return [await consumer.receive(SERVER_PATIENCE_S) for _ in range(count)]


async def lag(client: RocketMQClient, group: str, topic: str) -> int:
    progress = await client.groups.progress(group, topic)
    return sum(offsets.broker_offset - offsets.consumer_offset for offsets in progress.values())


async def test_filtered_messages_are_acknowledged_in_any_order(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic, group = rocketmq.take_topic(4), new_group()
    await send(client, topic, 100)
    async with client.consumer(topic, group, msg_types=["odd"]) as consumer:
        messages = await receive(consumer, 50)
        assert {message.msg_type for message in messages} == {"odd"}
        assert all(consumer.acknowledge(message) for message in reversed(messages))
        await consumer.flush()
        await asyncio.to_thread(rocketmq.settle)
        assert await lag(client, group, topic) == 0


async def test_unacknowledged_messages_are_redelivered_to_the_next_consumer(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic, group = rocketmq.take_topic(4), new_group()
    await send(client, topic, 100)
    async with client.consumer(topic, group) as consumer:
        messages = await receive(consumer, 100)
        for message in messages[:50]:
            consumer.acknowledge(message)
    async with client.consumer(topic, group) as consumer:
        missing = {message.payload for message in messages[50:]}
        while missing:
            missing.discard((await consumer.receive(SERVER_PATIENCE_S)).payload)


async def test_a_negatively_acknowledged_message_returns_through_the_retry_topic(
    rocketmq: RocketMQ, client: RocketMQClient
) -> None:
    topic, group = rocketmq.take_topic(1), new_group()
    await send(client, topic, 2)
    async with client.consumer(topic, group, max_redeliveries=3) as consumer:
        first, second = await receive(consumer, 2)
        assert consumer.negative_acknowledge(first)
        assert consumer.acknowledge(second)
        assert not consumer.acknowledge(first)
        (again,) = await receive(consumer, 1)
        assert (again.payload, again.key, again.topic, again.delivery_count) == (first.payload, first.key, topic, 1)
        assert consumer.acknowledge(again)
        await consumer.flush()
        await asyncio.to_thread(rocketmq.settle)
        assert await lag(client, group, topic) == 0


async def test_a_dead_letter_is_moved_to_its_topic(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic, group = rocketmq.take_topic(1), new_group()
    await send(client, topic, 1)
    async with client.consumer(topic, group) as consumer:
        (message,) = await receive(consumer, 1)
        assert await consumer.dead_letter(message)
        assert not await consumer.dead_letter(message)
    # The broker creates the dead letter topic without the permission to read, so only its name is checked.
    assert f"%DLQ%{group}" in await client.admin.topics()


async def test_members_of_one_client_divide_the_queues(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic, group = rocketmq.take_topic(4), new_group()
    async with client.consumer(topic, group) as one:
        async with client.consumer(topic, group) as other, asyncio.timeout(SERVER_PATIENCE_S):
            while [len([name for name, _ in each.partitions if name == topic]) for each in (one, other)] != [2, 2]:
                await asyncio.sleep(0.05)
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while len([name for name, _ in one.partitions if name == topic]) < 4:
                await asyncio.sleep(0.05)


async def test_a_reader_redelivers_by_itself_and_creates_no_group(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic = rocketmq.take_topic(2)
    await send(client, topic, 20)
    before = await client.groups.configs()
    async with client.reader(topic) as reader:
        messages = await receive(reader, 20)
        assert reader.negative_acknowledge(messages[3], delay_s=0.1)
        (again,) = await receive(reader, 1)
        assert (again.payload, again.delivery_count) == (messages[3].payload, 1)
        await reader.seek(messages[7])
        (again,) = await receive(reader, 1)
        assert (again.payload, again.position) == (messages[7].payload, messages[7].position)
        assert not reader.acknowledge(messages[7])
    assert (await client.groups.configs()).keys() == before.keys()
    async with client.reader(topic, partitions=["broker-a:1"]) as reader:
        assert {message.partition for message in await receive(reader, sum(m.partition == "broker-a:1" for m in messages))} <= {
            "broker-a:1"
        }
    with pytest.raises(ClusterError, match="no queue 'broker-a:9'"):
        await client.reader(topic, partitions=["broker-a:9"])


async def test_every_broadcasting_consumer_receives_everything(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic, group = rocketmq.take_topic(2), new_group()
    await send(client, topic, 10)
    async with (
        client.consumer(topic, group, mode="broadcasting") as one,
        client.consumer(topic, group, mode="broadcasting") as other,
    ):
        for consumer in (one, other):
            assert {message.payload for message in await receive(consumer, 10)} == {b"%d" % n for n in range(10)}


async def test_a_group_starts_and_seeks_at_a_time(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic = rocketmq.take_topic(1)
    await send(client, topic, 5)
    await asyncio.sleep(0.05)
    then = datetime.now().astimezone()
    await asyncio.sleep(0.05)
    async with client.producer(topic) as producer:
        await producer.send(b"late")
    await asyncio.to_thread(rocketmq.settle)
    async with client.consumer(topic, new_group(), start=then) as consumer:
        assert (await consumer.receive(SERVER_PATIENCE_S)).payload == b"late"
        await consumer.seek("earliest")
        assert (await consumer.receive(SERVER_PATIENCE_S)).payload == b"0"
        await consumer.seek(then)
        assert (await consumer.receive(SERVER_PATIENCE_S)).payload == b"late"


async def test_popped_messages_are_acknowledged_one_by_one(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic, group = rocketmq.take_topic(4), new_group()
    await send(client, topic, 60)
    async with client.pop_consumer(topic, group, invisible_s=10, poll_s=1) as consumer:
        messages = await receive(consumer, 60)
        await consumer.extend(messages[0], invisible_s=1)
        for message in messages[1:]:
            assert consumer.acknowledge(message)
        assert not consumer.acknowledge(messages[1])
        await consumer.flush()
        (again,) = await receive(consumer, 1)
        assert again.payload == messages[0].payload
        consumer.acknowledge(again)


async def test_a_pull_consumer_receives_the_pulls_of_a_queue(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic = rocketmq.take_topic(1)
    await send(client, topic, 20)
    settings = ConsumerSettings(new_group(), (everything(topic),), retries=False)
    async with client.pull_consumer(settings) as member:
        queue = await anext(member.assigned_queues())
        count = 0
        while count < 20:
            pulled = await queue.receive()
            count += len(pulled.records)
            queue.commit(pulled.next)


async def test_closing_the_client_closes_its_producers_and_consumers(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    client = RocketMQClient(f"rocketmq://{rocketmq.name_server}")
    producer, consumer = await client.producer(topic), await client.consumer(topic, new_group())
    waiting = asyncio.ensure_future(consumer.receive())

    async def iterate() -> int:
        return len([message async for message in consumer])

    iterating = asyncio.ensure_future(iterate())
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(ClusterError, match="is closed"):
        await waiting
    assert await iterating == 0
    assert producer.closed
    assert consumer.closed
    with pytest.raises(ClusterError, match="is closed"):
        await producer.send(b"late")
    with pytest.raises(ClusterError, match="the client is closed"):
        await client.producer(topic)


async def test_a_missing_topic_is_fatal(client: RocketMQClient) -> None:
    for opening in (client.producer("missing"), client.consumer("missing", new_group()), client.reader("missing")):
        with pytest.raises(ClusterError, match="no name server knows") as caught:
            await opening
        assert caught.value.failure is Failure.FATAL


async def test_one_unacknowledged_message_holds_no_later_ones_in_memory(rocketmq: RocketMQ, client: RocketMQClient) -> None:
    topic, group, count, max_bytes = rocketmq.take_topic(1), new_group(), 400, 4 << 20
    async with client.producer(topic, max_pending_bytes=max_bytes) as producer:
        await asyncio.gather(*(producer.send(bytes(100_000)) for _ in range(count)))
    async with client.consumer(topic, group, max_bytes=max_bytes) as consumer:
        budget = consumer._member._consumer.budget
        tracemalloc.start()
        slow = await consumer.receive(SERVER_PATIENCE_S)
        for _ in range(count - 1):
            message = await consumer.receive(SERVER_PATIENCE_S)
            assert budget.held <= max_bytes
            assert consumer.acknowledge(message)
        held_at_once, at_most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held_at_once < max_bytes // 2, "the slow message and a little more, of 40 MB"
        assert at_most < 4 * max_bytes, "also while responses are received and decoded"
        assert consumer.acknowledge(slow)
        await consumer.flush()
        await asyncio.to_thread(rocketmq.settle)
        assert await lag(client, group, topic) == 0
