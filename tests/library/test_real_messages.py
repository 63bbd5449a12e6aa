"""Sending, receiving and acknowledging: the same program for the three clients, at real clusters."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.library.contract import Client, Consumer
from mqbridge.library.received import ReceivedMessage
from tests.library.conftest import System
from tests.patience import SERVER_PATIENCE_S

SILENCE_S = 2.0
"""If no message arrives for this long, none is expected any more; a later one would make the next step fail."""


def new_group() -> str:
    return f"g_{uuid4().hex[:10]}"


async def send(client: Client, topic: str, *payloads: bytes, key: str | None = None) -> None:
    """Send messages one after the other, of one key if given."""
    async with client.producer(topic) as producer:
        for payload in payloads:
            await producer.send(payload, key=key)


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    """Return the next `count` messages, unacknowledged."""
    return [await consumer.receive(timeout=SERVER_PATIENCE_S) for _ in range(count)]


async def take_all(consumer: Consumer, count: int) -> list[bytes | None]:
    """Acknowledge the next `count` messages; return their payloads."""
    payloads = []
    for _ in range(count):
        message = await consumer.receive(timeout=SERVER_PATIENCE_S)
        payloads.append(message.payload)
        assert consumer.acknowledge(message)
    return payloads


async def test_every_field_of_a_message_arrives(system: System) -> None:
    topic = system.take_topic(1)
    async with system.client() as client:
        async with client.producer(topic) as producer:
            receipt = await producer.send(
                b"\x00payload\xff",
                key="customer-7",
                keys=["order-1", "order-2"],
                msg_type="paid",
                properties={"shop": "Köln", "empty": "", "separators": "a=b,c"},
                event_time=1_700_000_000_123,
            )
        async with client.consumer(topic, group=new_group()) as consumer:
            [message] = await take(consumer, 1)
            assert consumer.acknowledge(message)
    assert (message.payload, message.key, message.keys) == (b"\x00payload\xff", "customer-7", ("order-1", "order-2"))
    assert (message.msg_type, message.event_time) == ("paid", 1_700_000_000_123)
    assert {"shop": "Köln", "empty": "", "separators": "a=b,c"}.items() <= dict(message.properties).items()
    assert (message.topic, message.partition) == (topic, receipt.partition)
    assert receipt.topic == topic
    assert receipt.message_id
    if receipt.position:
        assert receipt.position == message.position


async def test_a_message_with_only_a_payload_arrives(system: System) -> None:
    topic = system.take_topic(1)
    async with system.client() as client:
        await send(client, topic, b"x")
        async with client.consumer(topic, group=new_group()) as consumer:
            [message] = await take(consumer, 1)
    assert (message.payload, message.key, message.keys, message.msg_type) == (b"x", None, (), None)


async def test_messages_with_the_same_key_keep_their_order(system: System) -> None:
    topic = system.take_topic(4)
    sent = [(f"key-{number % 7}", b"%d" % number) for number in range(210)]
    async with system.client() as client:
        async with client.producer(topic) as producer:
            receipts = await asyncio.gather(*[producer.send(payload, key=key) for key, payload in sent])
        assert len({receipt.partition for receipt in receipts}) > 1
        by_key: dict[object, list[bytes | None]] = {}
        async with client.consumer(topic, group=new_group()) as consumer:
            for _ in sent:
                message = await consumer.receive(timeout=SERVER_PATIENCE_S)
                by_key.setdefault(message.key, []).append(message.payload)
                consumer.acknowledge(message)
    assert by_key == {key: [payload for other, payload in sent if other == key] for key, _ in sent}


async def test_acknowledged_messages_are_not_redelivered(system: System) -> None:
    topic, group = system.take_topic(2), new_group()
    async with system.client() as client:
        await send(client, topic, *(b"%d" % number for number in range(20)))
        async with client.consumer(topic, group=group) as consumer:
            assert sorted(await take_all(consumer, 20)) == sorted(b"%d" % number for number in range(20))
    async with system.client() as client:
        await send(client, topic, b"new")
        async with client.consumer(topic, group=group) as consumer:
            assert await take_all(consumer, 1) == [b"new"]


async def test_flush_sends_pending_acknowledgements(system: System) -> None:
    """After `flush`, a process that is killed does not receive the messages again."""
    topic, group = system.take_topic(1), new_group()
    async with system.client() as client:
        await send(client, topic, b"a", b"b")
        async with client.consumer(topic, group=group) as consumer:
            assert await take_all(consumer, 2) == [b"a", b"b"]
            await consumer.flush()
            await send(client, topic, b"c")
            assert await take_all(consumer, 1) == [b"c"]


async def test_unacknowledged_messages_are_redelivered(system: System) -> None:
    topic, group = system.take_topic(1), new_group()
    async with system.client() as client:
        await send(client, topic, b"a", b"b", b"c")
        async with client.consumer(topic, group=group) as consumer:
            assert [message.payload for message in await take(consumer, 3)] == [b"a", b"b", b"c"]
        async with client.consumer(topic, group=group) as consumer:
            assert await take_all(consumer, 3) == [b"a", b"b", b"c"]


async def test_acknowledging_a_later_message_first_loses_nothing(system: System) -> None:
    topic, group = system.take_topic(1), new_group()
    async with system.client() as client:
        await send(client, topic, b"a", b"b", b"c")
        async with client.consumer(topic, group=group) as consumer:
            messages = await take(consumer, 3)
            for message in messages[1:]:
                consumer.acknowledge(message)
        async with client.consumer(topic, group=group) as consumer:
            [again] = await take(consumer, 1)
            assert again.payload == b"a"


async def test_a_negatively_acknowledged_message_is_redelivered(system: System) -> None:
    topic = system.take_topic(1)
    async with system.client() as client:
        await send(client, topic, b"good", b"bad", b"better")
        async with client.consumer(topic, group=new_group()) as consumer:
            refused, done = 0, set()
            while len(done) < 3:
                message = await consumer.receive(timeout=SERVER_PATIENCE_S)
                if message.payload == b"bad" and not refused:
                    refused += consumer.negative_acknowledge(message)
                elif consumer.acknowledge(message):
                    done.add(message.payload)
    assert (refused, done) == (1, {b"good", b"bad", b"better"})


async def test_seek_to_the_beginning(system: System) -> None:
    topic = system.take_topic(2)
    payloads = [b"%d" % number for number in range(10)]
    async with system.client() as client:
        await send(client, topic, *payloads)
        async with client.consumer(topic, group=new_group()) as consumer:
            first = await take(consumer, 10)
            await consumer.seek("earliest")
            assert not consumer.acknowledge(first[0]), "it was left behind"
            assert sorted(await take_all(consumer, 10)) == sorted(payloads)


async def test_seek_to_a_message(system: System) -> None:
    topic = system.take_topic(1)
    async with system.client() as client:
        await send(client, topic, *(b"%d" % number for number in range(10)))
        async with client.consumer(topic, group=new_group()) as consumer:
            messages = await take(consumer, 10)
            await consumer.seek(messages[6])
            assert await take_all(consumer, 4) == [b"6", b"7", b"8", b"9"]


async def test_seek_to_the_end_skips_existing_messages(system: System) -> None:
    topic = system.take_topic(1)
    async with system.client() as client:
        await send(client, topic, b"old", b"old")
        async with client.consumer(topic, group=new_group()) as consumer:
            await take(consumer, 1)
            await consumer.seek("latest")
            await send(client, topic, b"new")
            assert await take_all(consumer, 1) == [b"new"]


async def test_seek_to_a_time(system: System) -> None:
    topic = system.take_topic(1)
    async with system.client() as client:
        await send(client, topic, b"a", b"b")
        async with client.consumer(topic, group=new_group()) as consumer:
            await take(consumer, 2)
            hour_ago = datetime.now(UTC) - timedelta(hours=1)
            if system.name == "tubemq":  # TubeMQ has no index by time
                with pytest.raises(ClusterError) as refused:
                    await consumer.seek(hour_ago)
                assert refused.value.failure is Failure.FATAL
            else:
                await consumer.seek(hour_ago)
                assert await take_all(consumer, 2) == [b"a", b"b"]


async def test_start_latest_applies_to_new_groups_only(system: System) -> None:
    topic = system.take_topic(1)
    async with system.client() as client:
        await send(client, topic, b"old")
        async with client.consumer(topic, group=new_group(), start="latest") as consumer:
            with pytest.raises(TimeoutError):
                await consumer.receive(timeout=SILENCE_S)


async def test_a_cancelled_receive_loses_no_message(system: System) -> None:
    topic = system.take_topic(1)
    payloads = [b"%d" % number for number in range(30)]
    async with system.client() as client, client.consumer(topic, group=new_group()) as consumer:
        received: list[bytes | None] = []
        sending = asyncio.ensure_future(send(client, topic, *payloads))
        while len(received) < len(payloads):
            receiving = asyncio.ensure_future(consumer.receive(timeout=SERVER_PATIENCE_S))
            for _ in range(len(received) % 4):
                await asyncio.sleep(0)
            receiving.cancel()
            (result,) = await asyncio.gather(receiving, return_exceptions=True)
            if isinstance(result, asyncio.CancelledError):
                result = await consumer.receive(timeout=SERVER_PATIENCE_S)
            assert isinstance(result, ReceivedMessage)
            received.append(result.payload)
            consumer.acknowledge(result)
        await sending
    assert received == payloads


async def test_closing_ends_iteration_and_receiving(system: System) -> None:
    topic = system.take_topic(1)
    async with system.client() as client:
        await send(client, topic, b"a")
        consumer = await client.consumer(topic, group=new_group())
        seen: list[bytes | None] = []

        async def iterate() -> None:
            async for message in consumer:
                seen.append(message.payload)
                consumer.acknowledge(message)

        iterating = asyncio.ensure_future(iterate())
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while not seen:
                await asyncio.sleep(0.01)
        await consumer.close()
        await asyncio.wait_for(iterating, SERVER_PATIENCE_S)
        with pytest.raises(ClusterError, match="closed"):
            await consumer.receive(timeout=SERVER_PATIENCE_S)
    assert seen == [b"a"]


async def test_a_client_closes_its_producers_and_consumers(system: System) -> None:
    topic, group = system.take_topic(1), new_group()
    async with system.client() as client:
        producer = await client.producer(topic)
        consumer = await client.consumer(topic, group=group)
        await producer.send(b"a")
        assert await take_all(consumer, 1) == [b"a"]
        assert not producer.closed
        assert not consumer.closed
    assert producer.closed
    assert consumer.closed
    with pytest.raises(ClusterError, match="closed"):
        await producer.send(b"b")


async def test_two_members_share_a_topic(system: System) -> None:
    """A group has one owner of each partition; on Pulsar that is a failover subscription."""
    topic, group = system.take_topic(4), new_group()
    member = {"mode": "failover"} if system.name == "pulsar" else {}
    async with system.client() as one, system.client() as other:
        consumers = [await client.consumer(topic, group=group, **member) for client in (one, other)]
        received: list[bytes | None] = []

        async def work(consumer: Consumer) -> None:
            async for message in consumer:
                received.append(message.payload)
                consumer.acknowledge(message)

        working = [asyncio.ensure_future(work(consumer)) for consumer in consumers]
        payloads = {b"%d" % number for number in range(100)}
        async with one.producer(topic) as producer:
            await asyncio.gather(*map(producer.send, payloads))
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while set(received) != payloads:
                await asyncio.sleep(0.01)
    await asyncio.gather(*working)


@pytest.mark.parametrize("end", ["producer", "consumer"])
async def test_the_error_names_a_topic_that_does_not_exist(system: System, end: str) -> None:
    if system.name == "pulsar":
        pytest.skip("a Pulsar broker as shipped makes a topic that is asked for")
    async with system.client() as client:
        with pytest.raises(ClusterError, match="no_such_topic"):
            await (client.producer("no_such_topic") if end == "producer" else client.consumer("no_such_topic", group="g"))
