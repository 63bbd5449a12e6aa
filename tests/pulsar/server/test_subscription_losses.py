"""Nothing is withheld, lost or reordered where consumers, gateways and the dead-letter topic come and go."""

import asyncio
import sqlite3
import tempfile
from pathlib import Path

import pytest

import mqbridge.groups.store as store_module
import mqbridge.listener.publisher as publisher_module
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.errors import ClusterError
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener
from mqbridge.listener.server import load_servers
from mqbridge.pulsar.server.subscription import Types
from mqbridge.pulsar.wire import client_commands
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandSubscribe
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import delete_broker
from tests.listener.feeds import settle
from tests.patience import PATIENCE_S
from tests.pulsar.server.serving import DEAD_LETTERS, Serving, listener_settings, serving, until
from tests.pulsar.server.subscriptions import EntrySource, delivered, make_consumer, make_subscription, message_id

SAME_KEY = 5
"""Entries of the scripted source whose numbers differ by this have the same key."""


@pytest.mark.parametrize("kind", [CommandSubscribe.Shared, CommandSubscribe.Key_Shared])
async def test_a_client_that_comes_back_soon_gets_what_it_has_not_acknowledged(kind: int) -> None:
    async with serving(owns_groups=False) as served:
        producer, consumer = await served.connect(), await served.connect()
        await producer.produce()
        await consumer.subscribe(permits=100, subType=kind)
        await producer.store(*[b"%d" % number for number in range(5)], partition_key="k")
        assert await consumer.messages(5) == [b"0", b"1", b"2", b"3", b"4"]
        await consumer.close()
        await until(lambda: not served.broker.subscriptions)
        again = await served.connect()
        await again.subscribe(permits=100, subType=kind)
        assert await again.messages(5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_redelivered_message_comes_before_later_ones_of_its_key() -> None:
    source = EntrySource(batch_units=30)
    subscription = make_subscription(source)
    consumer = make_consumer(1)
    subscription.add(Types.Key_Shared, consumer)
    consumer.grant(1)
    source.store(*[1] * 16)
    subscription.dispatch()
    await settle()
    (first,) = delivered(consumer.link.take())
    subscription.redeliver(consumer, [message_id(first)], None)
    consumer.grant(100)
    subscription.dispatch()
    await settle()
    got = [number for number in delivered(consumer.link.take()) if number % SAME_KEY == first % SAME_KEY]
    assert got == sorted(got)
    assert got[0] == first
    await subscription.feed.detach()


async def test_a_drain_does_not_wait_for_what_no_client_has() -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await served.connect()
        await producer.produce()
        await consumer.subscribe(subType=CommandSubscribe.Key_Shared, permits=1)
        await producer.store(*[b"%d" % number for number in range(4)], partition_key="k")
        entry, _ = await consumer.message()
        consumer.ack(entry)
        await consumer.ping()
        async with asyncio.timeout(PATIENCE_S):
            await served.listener.server.drain(asyncio.get_running_loop().time() + 10 * PATIENCE_S)


async def test_a_cumulative_acknowledgement_passes_over_what_is_in_quarantine() -> None:
    gate = asyncio.Event()

    async def fail() -> None:
        await gate.wait()
        raise ClusterError("the dead-letter topic cannot be written")

    source = EntrySource(batch_units=30)
    source.defects = {1}
    subscription = make_subscription(source, fail)
    source.store(*[0] * 4)
    consumer = make_consumer(1)
    subscription.add(Types.Exclusive, consumer)
    consumer.grant(100)
    subscription.dispatch()
    await settle()
    assert delivered(consumer.link.take()) == [0, 2, 3]
    subscription.acknowledge_to(message_id(3), consumer)
    gate.set()
    await settle()
    assert source.committed == 1, "the message in quarantine is not confirmed"
    await subscription.feed.detach()


async def test_a_refused_unsubscribe_is_told_so_that_the_client_subscribes_again() -> None:
    async with serving(owns_groups=False) as served:
        producer, consumer = await served.connect(), await served.connect()
        await producer.produce()
        await consumer.subscribe(permits=100)
        other = await served.cluster.inbound(InboundSpec(("t",), "s"))  # another gateway has consumers of the subscription
        request = consumer.number()
        consumer.send(client_commands.unsubscribe(request, 1))
        closed = await consumer.of(BaseCommand.CLOSE_CONSUMER)
        assert closed.consumer_id == 1
        assert "in use" in (await consumer.answer(request)).message
        await other.close()


async def test_allowed_bytes_are_taken_back_when_parts_of_messages_are_given_up() -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await served.connect()
        await producer.produce()
        await consumer.subscribe(permits=1000, subType=CommandSubscribe.Shared)
        for number in range(3):
            await producer.store(b"c", uuid=f"u{number}", num_chunks_from_msg=10, chunk_id=0, total_chunk_msg_size=50 << 20)
            entry, _ = await consumer.message()
            assert [each.feed._allowed_bytes for each in served.broker.subscriptions.values()] == [100 << 20]
            consumer.ack(entry)
            await until(lambda: [each.feed._allowed_bytes for each in served.broker.subscriptions.values()] == [0])


async def test_a_large_chunked_message_that_waits_for_its_acknowledgement_does_not_stop_the_next_one() -> None:
    async with serving(unacknowledged_bytes=40_000, owns_groups=False) as served:
        producer, consumer = await served.connect(), await served.connect()
        await producer.produce()
        await consumer.subscribe(permits=1000)
        for number in range(3):
            chunk = bytes(10_000)
            await producer.store(chunk, uuid="large", num_chunks_from_msg=3, chunk_id=number, total_chunk_msg_size=30_000)
        entries = [(await consumer.message())[0] for _ in range(3)]
        for text in (b"a", b"b"):  # one would be read in any case, as all groups may read a batch
            await producer.store(text)
            assert (await consumer.message())[1] == text
        feeds = [each.feed for each in served.broker.subscriptions.values()]
        assert [each._allowed_bytes for each in feeds] == [60_000]
        consumer.ack(*entries)
        await until(lambda: [each._allowed_bytes for each in feeds] == [0])


async def test_a_subscription_exists_only_once_it_is_in_the_state_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "WRITE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.05)
    with tempfile.TemporaryDirectory(prefix="served") as folder:
        cluster = MemoryCluster("store", MemoryConfig(broker="unwritten"))
        await cluster.connect()
        store = GroupStore(Path(folder) / "groups.db")
        listener = Listener(listener_settings(), load_servers()["pulsar"], cluster, cluster, store, "me")
        listener.bind()
        await listener.start()
        served = Serving(listener, cluster)
        lock = sqlite3.connect(Path(folder) / "groups.db")
        lock.execute("BEGIN IMMEDIATE")
        client = await served.connect()
        for _ in range(2):
            answer = await client.subscribe(initialPosition=CommandSubscribe.Latest)
            assert "cannot be written now" in answer.message
        lock.rollback()
        lock.close()
        answer = await client.subscribe(initialPosition=CommandSubscribe.Latest)
        assert not hasattr(answer, "error")
        await client.close()
        await listener.close(asyncio.get_running_loop().time() + 5)
        await store.close()
        await cluster.close()
    delete_broker("unwritten")


async def test_a_dead_letter_topic_that_hangs_holds_the_bytes_of_clients_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher_module, "STORE_TIMEOUT_S", 0.3)
    with tempfile.TemporaryDirectory(prefix="served") as folder:
        cluster = MemoryCluster("store", MemoryConfig(broker="hanging-store"))
        dead = MemoryCluster("dead", MemoryConfig(broker="hanging-dead"))
        await cluster.connect()
        await dead.connect()
        await cluster.create("t", 1)
        await dead.create(DEAD_LETTERS, 1)
        store = GroupStore(Path(folder) / "groups.db")
        settings = listener_settings(dead_letter_cluster="dead")
        listener = Listener(settings, load_servers()["pulsar"], cluster, dead, store, "me")
        listener.bind()
        await listener.start()
        served = Serving(listener, cluster)
        cluster.broker.faults.refuse = lambda message: "no" if (message.payload or b"").startswith(b"bad") else None
        client = await served.connect()
        await client.produce()
        await client.store(b"bad")
        dead.broker.connected.clear()
        client.send_entry(b"bad", 1)
        client.send_entry(b"good", 2)
        await client.of(BaseCommand.CLOSE_PRODUCER)  # it sends again what has no receipt
        await until(lambda: listener.in_flight.used == 0)
        dead.broker.connected.set()
        await client.close()
        await listener.close(asyncio.get_running_loop().time() + 5)
        await store.close()
        await cluster.close()
        await dead.close()
    delete_broker("hanging-store")
    delete_broker("hanging-dead")
