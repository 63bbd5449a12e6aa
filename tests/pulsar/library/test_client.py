"""`PulsarClient` against a scripted broker."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, ConfigError, ConnectionLost, Failure, MappingError, RequestTimeout
from mqbridge.library.received import ReceivedMessage
from mqbridge.pulsar.client.producer import entry_producer
from mqbridge.pulsar.library.batching import MessageId, OutgoingMessage
from mqbridge.pulsar.library.client import PulsarClient
from mqbridge.pulsar.library.consumer import Consumer
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, SingleMessageMetadata
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, silent, until
from tests.pulsar.library.catalog import Catalog, catalog

__all__ = ["catalog"]

TOPIC = "persistent://public/default/orders"


@pytest_asyncio.fixture
async def client(catalog: Catalog) -> AsyncIterator[PulsarClient]:
    catalog.counts[TOPIC] = 2
    async with PulsarClient("pulsar://broker:6650", operation_timeout_s=3.0, request_timeout_s=2.0) as client:
        yield client


def deliver(broker: Broker, partition: int, entry: int, *payloads: bytes) -> None:
    """Deliver one batch entry of a partition to its newest consumer."""
    wanted = f"{TOPIC}-partition-{partition}"
    consumer_id = [asked.consumer_id for asked in broker.asked[BaseCommand.SUBSCRIBE] if asked.topic == wanted][-1]
    framed = join_batch([(SingleMessageMetadata(), payload) for payload in payloads])
    broker.link.message(consumer_id, 7, entry, framed, metadata={"num_messages_in_batch": len(payloads)})


async def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    return [await consumer.receive(PATIENCE_S) for _ in range(count)]


def acknowledged(broker: Broker) -> list[tuple[int, int]]:
    return [ids.entry_id(each) for asked in broker.asked[BaseCommand.ACK] for each in asked.message_id]


async def consumer_of(client: PulsarClient, broker: Broker, **settings: Any) -> Consumer:
    consumer = await client.consumer("orders", "billing", mode="exclusive", **settings)
    broker.asked[BaseCommand.ACK].clear()
    return consumer


# --- sending ----------------------------------------------------------------------------------------------------------


async def test_receipts_have_the_position_of_each_message(client: PulsarClient) -> None:
    producer = await client.producer("orders", batch_messages=3)
    sends = [producer.send(b"%d" % number, key="k") for number in range(3)]
    receipts = await asyncio.gather(*sends, producer.send(b"x", partition=1))
    partition = receipts[0].partition
    assert [receipt.message_id for receipt in receipts[:3]] == [f"1:0:{partition}:{index}" for index in range(3)]
    assert [receipt.position for receipt in receipts[:3]] == [(1, 0, index) for index in range(3)]
    assert (receipts[3].topic, receipts[3].partition) == ("orders", "1")


async def test_send_waits_while_too_many_bytes_are_pending(client: PulsarClient, broker: Broker) -> None:
    broker.on[BaseCommand.SEND] = silent
    producer = await client.producer("orders", max_pending_bytes=2000, batch_messages=1)
    sends = [asyncio.ensure_future(producer.send(b"x" * 1000, key="k")) for _ in range(3)]
    await until(lambda: broker.asked[BaseCommand.SEND])
    assert len(broker.asked[BaseCommand.SEND]) == 1
    await producer.close(0.01)
    for error in await asyncio.gather(*sends, return_exceptions=True):
        assert isinstance(error, ConnectionLost)


@pytest.mark.parametrize(
    "options", [{"batch_delay_s": 60.0}, {"batch_messages": 1, "max_pending_bytes": 2000}], ids=["batch", "room"]
)
async def test_with_fails_in_order_messages_that_are_not_sent_yet_fail_behind_an_expired_one(
    client: PulsarClient, broker: Broker, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """They wait for their batch to be full, or for room: else they would be stored before the expired message is sent again."""
    monkeypatch.setattr(entry_producer, "EXPIRY_CHECK_S", 0.01)
    broker.on[BaseCommand.SEND] = silent
    producer = await client.producer("orders", max_elapsed_s=0.1, fails_in_order=True, **options)
    first = asyncio.ensure_future(producer.send(b"x" * 1000, partition=0))
    await asyncio.sleep(0)
    producer._producer.send_batches()
    await until(lambda: broker.asked[BaseCommand.SEND])
    later = [asyncio.ensure_future(producer.send(b"y" * 1000, partition=0)) for _ in range(2)]
    broker.on[BaseCommand.SEND] = broker.store
    with pytest.raises(RequestTimeout):
        await first
    producer._producer.send_batches()
    assert [type(error) for error in await asyncio.gather(*later, return_exceptions=True)] == [RequestTimeout] * 2
    assert broker.entries == 0
    again = asyncio.ensure_future(producer.send(b"x", partition=0))
    await asyncio.sleep(0)
    producer._producer.send_batches()
    await again
    assert broker.entries == 1


async def test_with_fails_in_order_a_rejected_message_does_not_wait_for_its_batch(
    client: PulsarClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_producer, "EXPIRY_CHECK_S", 0.01)
    broker.on[BaseCommand.SEND] = silent
    opened = await client.producer("orders", max_elapsed_s=0.05, fails_in_order=True, batch_delay_s=60.0)
    producer = opened._producer
    later: list[asyncio.Future[MessageId]] = []
    first = producer.send_message(OutgoingMessage(b"x"), 0)
    first.add_done_callback(lambda _: later.append(producer.send_message(OutgoingMessage(b"y"), 0)))
    producer.send_batches()
    with pytest.raises(RequestTimeout):
        await first
    with pytest.raises(RequestTimeout):
        await asyncio.wait_for(later[0], PATIENCE_S)


async def test_with_fails_in_order_requests_that_come_all_the_time_succeed_again_after_a_failure(
    client: PulsarClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a busy server: at any time some tasks do not know yet that their send was rejected."""
    monkeypatch.setattr(entry_producer, "EXPIRY_CHECK_S", 0.01)
    broker.on[BaseCommand.SEND] = silent
    producer = await client.producer("orders", max_elapsed_s=0.05, fails_in_order=True, batch_messages=1)
    sends = [asyncio.ensure_future(producer.send(b"x", partition=0))]
    await until(lambda: broker.asked[BaseCommand.SEND])
    broker.on[BaseCommand.SEND] = broker.store
    async with asyncio.timeout(PATIENCE_S):
        while not producer._producer.producer(0).is_rejecting:
            await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):  # on a busy machine, many more sends may reach their limit
        while not any(send.done() and send.exception() is None for send in sends):
            sends.append(asyncio.ensure_future(producer.send(b"x", partition=0)))
            await asyncio.sleep(0)
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(result) for result in results[:2]] == [RequestTimeout] * 2


async def test_messages_without_a_receipt_fail_when_the_producer_closes(client: PulsarClient, broker: Broker) -> None:
    broker.on[BaseCommand.SEND] = silent
    producer = await client.producer("orders")
    sending = asyncio.ensure_future(producer.send(b"x"))
    await until(lambda: broker.asked[BaseCommand.SEND])
    await producer.close(0.01)
    with pytest.raises(ConnectionLost, match="closed before the message had a receipt"):
        await sending
    with pytest.raises(ClusterError, match="is closed"):
        await producer.send(b"y")


async def test_a_cancelled_close_ends_at_once(client: PulsarClient, broker: Broker) -> None:
    broker.on[BaseCommand.SEND] = silent
    producer = await client.producer("orders")
    sending = asyncio.ensure_future(producer.send(b"x"))
    await until(lambda: broker.asked[BaseCommand.SEND])
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(timeout=60.0), 0.01)
    assert time.monotonic() - begun < 30
    with pytest.raises(ConnectionLost):
        await sending


async def test_a_payload_of_a_wrong_type_fails_its_message_only(client: PulsarClient) -> None:
    producer = await client.producer("orders")
    sends = [producer.send(payload, key="k") for payload in (b"1", "text", b"2")]  # type: ignore[arg-type]
    first, second, third = await asyncio.wait_for(asyncio.gather(*sends, return_exceptions=True), PATIENCE_S)
    assert isinstance(second, TypeError)
    assert [each.position for each in (first, third)] == [(1, 0, 0), (1, 0, 1)]  # type: ignore[union-attr]


async def test_flush_sends_batches_at_once(client: PulsarClient) -> None:
    producer = await client.producer("orders", batch_delay_s=1e6)
    sending = asyncio.ensure_future(producer.send(b"x"))
    await asyncio.sleep(0)
    await producer.flush()
    assert (await sending).position == (1, 0, 0)


async def test_a_cancelled_send_keeps_its_bytes_until_the_receipt(client: PulsarClient) -> None:
    producer = await client.producer("orders")
    sending = asyncio.ensure_future(producer.send(b"x"))
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await producer.flush()


async def test_a_message_that_cannot_be_sent_is_refused(client: PulsarClient) -> None:
    producer = await client.producer("orders")
    with pytest.raises(ClusterError, match="no partition 2") as refused:
        await producer.send(b"x", partition=2)
    assert refused.value.failure is Failure.REFUSED
    for fields in ({"key": "\ud800"}, {"properties": {"a": "\ud800"}}, {"deliver_at": 1 << 64}):
        with pytest.raises(MappingError, match="orders"):
            await producer.send(b"x", **fields)  # type: ignore[arg-type]
    await producer.flush()  # the refused messages leave nothing pending
    await producer.send(b"x")


async def test_batches_keep_within_the_limit_of_the_broker(client: PulsarClient, broker: Broker) -> None:
    """A batch above it would fail, although the broker accepts each of its messages."""
    producer = await client.producer("orders", batch_bytes=4 << 20, batch_delay_s=0.01)
    await producer.send(b"first")  # the limit is known once the producer is connected
    receipts = await asyncio.gather(*(producer.send(bytes(400_000)) for _ in range(5)))
    assert len({receipt.position for receipt in receipts}) == 5
    assert max(asked.num_messages for asked in broker.asked[BaseCommand.SEND]) == 2
    await producer.close()


async def test_large_messages_are_chunked_and_small_ones_batched(client: PulsarClient, broker: Broker) -> None:
    producer = await client.producer("orders", chunking=True, chunk_bytes=100_000, batch_bytes=1000)
    await asyncio.gather(*[producer.send(payload, key="k") for payload in (b"a", b"b", b"c" * 250_000)])
    sends = [(asked.num_messages, asked.is_chunk) for asked in broker.asked[BaseCommand.SEND]]
    assert sends == [(2, False), (1, True), (1, True), (1, True)]


# --- receiving --------------------------------------------------------------------------------------------------------


async def test_a_batch_is_acknowledged_with_the_last_of_its_messages(client: PulsarClient, broker: Broker) -> None:
    consumer = await consumer_of(client, broker)
    deliver(broker, 1, 0, b"a", b"b", b"c")
    messages = await take(consumer, 3)
    assert [(each.topic, each.partition, each.position) for each in messages] == [
        ("orders", "1", (7, 0, index)) for index in range(3)
    ]
    assert all(consumer.acknowledge(each) for each in messages[:2])
    deliver(broker, 1, 1, b"d")
    assert consumer.acknowledge(*await take(consumer, 1))
    await until(lambda: acknowledged(broker))
    assert acknowledged(broker) == [(7, 1)]
    assert consumer.acknowledge(messages[2])
    await until(lambda: acknowledged(broker)[1:])
    assert acknowledged(broker) == [(7, 1), (7, 0)]


async def test_the_chunks_of_an_unreadable_message_are_acknowledged_with_the_last_of_them(
    client: PulsarClient, broker: Broker
) -> None:
    consumer = await consumer_of(client, broker)
    consumers = {asked.topic: asked.consumer_id for asked in broker.asked[BaseCommand.SUBSCRIBE]}

    async def unreadable(first_entry: int) -> list[ReceivedMessage]:
        for entry, number in ((first_entry, 0), (first_entry + 1, 2)):
            chunk = {"uuid": "u", "chunk_id": number, "num_chunks_from_msg": 3, "total_chunk_msg_size": 9}
            broker.link.message(consumers[f"{TOPIC}-partition-1"], 7, entry, b"abc", metadata=chunk)
        messages = await take(consumer, 2)
        assert [message.position for message in messages] == [(7, first_entry + 1, 0), (7, first_entry + 1, 1)]
        assert all("is missing" in str(message.defect) for message in messages)
        return messages

    first, last = await unreadable(0)
    deliver(broker, 1, 2, b"after")
    assert consumer.acknowledge(first)
    assert consumer.acknowledge(*await take(consumer, 1))
    await until(lambda: acknowledged(broker))
    assert acknowledged(broker) == [(7, 2)]
    assert consumer.acknowledge(last)
    await until(lambda: acknowledged(broker)[1:])
    assert acknowledged(broker) == [(7, 2), (7, 0), (7, 1)]
    first, last = await unreadable(3)
    assert consumer.acknowledge_up_to(first), "does nothing yet"
    assert consumer.acknowledge_up_to(last)
    await until(lambda: acknowledged(broker)[3:])
    assert acknowledged(broker)[3:] == [(7, 4)]


async def test_cumulative_acknowledgements_need_an_ordered_subscription(client: PulsarClient, broker: Broker) -> None:
    consumer = await consumer_of(client, broker)
    deliver(broker, 0, 0, b"a")
    deliver(broker, 0, 1, b"b")
    assert consumer.acknowledge_up_to((await take(consumer, 2))[1])
    await until(lambda: acknowledged(broker))
    assert acknowledged(broker) == [(7, 1)]
    shared = await client.consumer("orders", "workers", mode="shared")
    deliver(broker, 0, 2, b"c")
    with pytest.raises(ClusterError, match="exclusive and failover"):
        shared.acknowledge_up_to(await shared.receive(PATIENCE_S))


async def test_a_cancelled_or_timed_out_receive_loses_nothing(client: PulsarClient, broker: Broker) -> None:
    consumer = await consumer_of(client, broker)
    with pytest.raises(TimeoutError):
        await consumer.receive(0.001)
    waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    deliver(broker, 0, 0, b"a", b"b")
    received = await asyncio.gather(*waiting[1:])
    assert sorted(each.payload or b"" for each in received) == [b"a", b"b"]


async def test_closing_ends_iteration_and_calls_of_receive(client: PulsarClient, broker: Broker) -> None:
    consumer = await consumer_of(client, broker)

    async def iterate() -> list[ReceivedMessage]:
        return [message async for message in consumer]

    receiving, iterating = asyncio.ensure_future(consumer.receive()), asyncio.ensure_future(iterate())
    await asyncio.sleep(0)
    deliver(broker, 0, 0, b"a", b"b")
    await until(receiving.done)
    late = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0.01)
    await client.close()
    assert len(await iterating) == 1
    with pytest.raises(ClusterError, match="closed"):
        await late
    assert not consumer.acknowledge(receiving.result())


async def test_messages_received_before_a_seek_cannot_be_acknowledged(client: PulsarClient, broker: Broker) -> None:
    consumer = await consumer_of(client, broker)
    deliver(broker, 0, 0, b"a", b"b", b"c")
    before = await take(consumer, 2)
    await consumer.seek(before[1])
    await until(lambda: len(broker.asked[BaseCommand.SUBSCRIBE]) == 3)
    await asyncio.sleep(0.01)
    assert not consumer.acknowledge(before[0])
    assert not consumer.negative_acknowledge(before[0])
    deliver(broker, 0, 0, b"a", b"b", b"c")
    again = await take(consumer, 2)
    assert [each.payload for each in again] == [b"b", b"c"]
    broker.asked[BaseCommand.ACK].clear()
    assert all(consumer.acknowledge(each) for each in again)
    await until(lambda: acknowledged(broker))
    assert acknowledged(broker) == [(7, 0)]


async def test_a_failed_partition_is_reported_once_and_the_others_continue(
    client: PulsarClient, broker: Broker, catalog: Catalog
) -> None:
    consumer = await consumer_of(client, broker)
    failing = broker.asked[BaseCommand.SUBSCRIBE][0].consumer_id
    subscribe = broker.on[BaseCommand.SUBSCRIBE]
    refused = lambda link, frame: link.error(frame.command.subscribe.request_id, pb.AuthorizationError)  # noqa: E731
    broker.on[BaseCommand.SUBSCRIBE] = refused
    broker.link.send(close_consumer=pb.CommandCloseConsumer(consumer_id=failing, request_id=1))
    with pytest.raises(ClusterError):
        await consumer.receive(PATIENCE_S)
    broker.on[BaseCommand.SUBSCRIBE] = subscribe
    deliver(broker, 1, 0, b"a")
    assert (await consumer.receive(PATIENCE_S)).payload == b"a"


@pytest.mark.parametrize("partitions", [100_001, 4_000_000_000])
async def test_more_partitions_than_a_cluster_can_have_are_refused(
    client: PulsarClient, catalog: Catalog, partitions: int
) -> None:
    """The number is refused before a name is made for each partition."""
    catalog.counts["persistent://public/default/many"] = partitions
    for opening in (client.partitions("many"), client.producer("many"), client.consumer("many", "group")):
        with pytest.raises(ClusterError, match=f"{partitions} partitions of .*many.*at most 100000") as refused:
            await opening
        assert refused.value.failure is Failure.FATAL


async def test_a_closed_client_opens_nothing(client: PulsarClient) -> None:
    await client.close()
    with pytest.raises(ClusterError, match="the client is closed"):
        await client.producer("orders")


async def test_invalid_arguments_are_refused_at_once(client: PulsarClient) -> None:
    with pytest.raises(ConfigError, match="topic name"):
        client.consumer("a/b", "group")
    with pytest.raises(ConfigError, match="admin_url"):
        _ = client.admin
    with pytest.raises(ConfigError, match="at most 100000 in a batch"):
        client.producer("orders", batch_messages=100_001)
    with pytest.raises(ClusterError, match="does not exist") as missing:
        await client.reader("missing")
    assert missing.value.failure is Failure.FATAL


async def test_a_seek_after_opening_waits_for_the_active_consumer(client: PulsarClient, broker: Broker) -> None:
    consumer = await client.consumer("orders", "billing", mode="failover")
    seeking = asyncio.ensure_future(consumer.seek("latest"))
    await asyncio.sleep(0.01)
    assert not broker.asked[BaseCommand.SEEK]
    first, second = (asked.consumer_id for asked in broker.asked[BaseCommand.SUBSCRIBE])
    for consumer_id, is_active in ((first, False), (second, True)):
        change = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
        broker.link.send(active_consumer_change=change)
    await asyncio.wait_for(seeking, PATIENCE_S)
    assert [asked.consumer_id for asked in broker.asked[BaseCommand.SEEK]] == [second]


async def test_a_seek_without_an_active_partition_is_refused(client: PulsarClient, broker: Broker) -> None:
    consumer = await client.consumer("orders", "billing", mode="failover")
    for asked in broker.asked[BaseCommand.SUBSCRIBE]:
        broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=asked.consumer_id, is_active=False))
    with pytest.raises(ClusterError, match="not the active consumer of any partition"):
        await consumer.seek("earliest")


# --- entries ----------------------------------------------------------------------------------------------------------


async def test_entries_are_acknowledged_by_their_consumers(client: PulsarClient, broker: Broker) -> None:
    async with client.entry_consumer("orders", "billing", mode="exclusive") as consumer:
        for entry in range(3):
            deliver(broker, 1, entry, b"a", b"b")
        received = [await asyncio.wait_for(consumer.receive(), PATIENCE_S) for _ in range(3)]
        assert [(owner.topic, entry.id) for owner, entry in received] == [(f"{TOPIC}-partition-1", (7, at)) for at in range(3)]
        owner = received[0][0]
        owner.acknowledge((7, 0))
        owner.acknowledge_message((7, 1), 0, 2)
        owner.acknowledge_message((7, 1), 1, 2)
        owner.flush_acks()
        await until(lambda: acknowledged(broker) == [(7, 0), (7, 1)])
        owner.acknowledge_up_to((7, 2))
        owner.flush_acks()
        await until(lambda: acknowledged(broker) == [(7, 0), (7, 1), (7, 2)])
    assert owner.closed
