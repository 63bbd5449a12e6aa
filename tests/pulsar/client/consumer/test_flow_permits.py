"""Flow permits and memory budgets: of one consumer, of several consumers, and with the batches of a lane."""

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition
from mqbridge.pulsar.adapter.lane import PulsarLane
from mqbridge.pulsar.client.consumer.flow_permits import MAX_OUTSTANDING, FlowPermits, ReceiveBudget, entry_memory
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.library.topic_consumer import open_topic_consumer
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.compression import compress
from mqbridge.pulsar.wire.entry import ENTRY_BYTES, Entry
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from tests.pulsar.client.broker import Broker, scripted_client, until
from tests.pulsar.client.store import Store

TOPIC = "persistent://public/default/t"
READ = 100
"""Maximum number of entries that a broker reads at once."""


def alone(max_bytes: int, largest: int) -> FlowPermits:
    return FlowPermits(ReceiveBudget(max_bytes), largest)


# --- one consumer -----------------------------------------------------------------------------------------------------


def test_the_first_grant_assumes_the_largest_entries():
    assert alone(16 << 20, 5 << 20).grant() == 3
    assert alone(1, 5 << 20).grant() == 1


@given(st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 2000)), max_size=60), st.integers(1, 1 << 20))
def test_grants_never_stall_and_never_exceed_the_budget(entries, max_bytes):
    permits = alone(max_bytes, 5 << 20)
    permits.grant()
    for count, each in entries:
        permits.on_received(count, count * each + 50)
        grant = permits.grant()
        assert grant == 0 or permits.held < max_bytes
        permits.release(count * each + 50)
        permits.grant()
        assert permits.held == 0
        assert permits.outstanding >= 1, "with nothing held the broker must have something to go on"
        assert permits.outstanding <= MAX_OUTSTANDING


def test_no_grant_while_the_budget_is_used_up():
    permits = alone(1000, 500)
    assert permits.grant() == 2
    permits.on_received(2, 1000)
    assert permits.grant() == 0
    permits.release(600)
    assert permits.grant() == 1


def test_deferred_bytes_stay_charged_until_released():
    permits = alone(1000, 500)
    permits.grant()
    permits.on_received(2, 900)
    permits.defer_release(900)
    assert (permits.held, permits.grant()) == (900, 0)
    permits.release_deferred()
    assert (permits.held, permits.grant()) == (0, 1)


async def test_larger_entries_overflow_beyond_the_limit_and_one_entry(broker: Broker, client):
    limit, size = 100_000, 60_000
    consumer = await client.consumer(TOPIC, Subscription("s", max_bytes=limit))
    broker.link.message(0, 1, 0, b"small")
    await consumer.receive()
    await until(lambda: sum(flow.messagePermits for flow in broker.asked[BaseCommand.FLOW]) > 20)
    for entry in range(1, 12):
        broker.link.message(0, 1, entry, bytes(size))
        assert consumer.held_bytes <= limit + size + 2 * ENTRY_BYTES
    flows = len(broker.asked[BaseCommand.FLOW])
    await until(lambda: consumer.registrations == 2 and len(broker.asked[BaseCommand.FLOW]) > flows)
    assert len(broker.asked[BaseCommand.CLOSE_CONSUMER]) == 1
    assert broker.asked[BaseCommand.FLOW][flows].messagePermits == 1
    await consumer.close()


async def test_a_compressed_entry_is_charged_its_uncompressed_size(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    payload = bytes(1 << 20)
    broker.link.message(0, 1, 0, compress(pb.ZLIB, payload), metadata={"compression": pb.ZLIB, "uncompressed_size": len(payload)})
    assert len(payload) < consumer.held_bytes < len(payload) + 2 * ENTRY_BYTES
    await consumer.close()


@pytest.mark.parametrize(
    ("count", "size", "charged"),
    [(1, 50, 50), (2, 500, 500), (1000, 6000, 64_000), (100_000, 600_000, 6_400_000), (100_001, 700_000, 700_000)],
)
def test_small_messages_of_a_batch_are_charged_what_their_copies_take(count: int, size: int, charged: int) -> None:
    """A batch of more messages than the limit is not unpacked, so it takes only its own bytes."""
    metadata = MessageMetadata(num_messages_in_batch=count)
    entry = Entry(metadata, bytes(size))
    assert entry_memory(entry, size) - ENTRY_BYTES == charged
    entry.unpack()
    assert entry.held_bytes - ENTRY_BYTES == charged


def test_after_an_overflow_the_estimate_falls_slowly_until_reset():
    """Otherwise the small entries that are redelivered first would cause an overflow again and again."""

    def asked_for(sheds: int, *, calm: bool = False) -> int:
        permits = alone(100_000, 500)
        for _ in range(sheds):
            permits.slow_decay()
        if calm:
            permits.reset_decay()
        for size in (50_000, *[1000] * 40):
            permits.on_received(1, size)
            permits.release(size)
        permits.reset()
        return permits.grant()

    assert asked_for(0) > asked_for(1) > asked_for(3) == 2
    assert asked_for(3, calm=True) == asked_for(0)


async def test_take_many_returns_one_entry_however_small_the_limits(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", max_bytes=1))
    broker.link.message(0, 1, 0, b"small")
    assert [entry.entry for entry in consumer.take_many(0, 0, 0)] == [0]
    assert consumer.take_many(1, 1, 1) == []
    await consumer.close()


async def test_the_decay_is_normal_again_after_the_dropped_entries(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", max_bytes=10_000))
    permits = consumer._receiver_queue.permits
    usual = permits._decay
    for entry in range(2):
        broker.link.message(0, 1, entry, bytes(9000))
    await until(lambda: consumer.registrations == 2)
    assert permits._decay < usual
    for entry in range(3):
        broker.link.message(0, 1, entry, b"small")
        assert (await consumer.receive()).entry == entry
        assert (permits._decay == usual) is (entry == 2)
    await consumer.close()


# --- many consumers ---------------------------------------------------------------------------------------------------


class Simulated:
    """A consumer and its broker, which never runs out of entries: it reads as many entries as it has permits."""

    def __init__(self, budget: ReceiveBudget) -> None:
        self.permits = FlowPermits(budget, 5 << 20)
        self.queue: deque[int] = deque()
        self.sheds = 0

    def read(self, messages: int, size: int) -> None:
        self.permits.grant()
        for _ in range(min(READ, self.permits.outstanding)):
            self.permits.on_received(messages, size)
            self.queue.append(size)
            if self.permits.overflowed and len(self.queue) > 1:
                self.sheds += 1
                while self.queue:
                    self.permits.release(self.queue.popleft())
                self.permits.reset()
                return

    def take(self, count: int, *, lend: bool) -> None:
        self.permits.release_deferred()
        for _ in range(min(count, len(self.queue))):
            size = self.queue.popleft()
            self.permits.defer_release(size) if lend else self.permits.release(size)


@given(st.data(), st.integers(1, 20), st.sampled_from([64 << 10, 1 << 20]), st.booleans())
def test_consumers_together_stay_within_the_budget_and_one_entry_each(data, count: int, limit: int, lend: bool):
    """This holds for any sizes of entries and for any speed of the application."""
    budget = ReceiveBudget(limit)
    consumers = [Simulated(budget) for _ in range(count)]
    largest = 0
    for _ in range(data.draw(st.integers(1, 30))):
        consumer = data.draw(st.sampled_from(consumers))
        size = data.draw(st.sampled_from([1800, 10_000, 100_000]))
        largest = max(largest, size)
        consumer.read(data.draw(st.sampled_from([1, 1000])), size)
        assert budget.held <= limit + count * largest
        if data.draw(st.booleans()):
            consumer.take(data.draw(st.integers(1, 50)), lend=lend)
    for consumer in consumers:
        consumer.take(10_000, lend=False)
        consumer.take(0, lend=False)
    assert (budget.held, [consumer.permits.held for consumer in consumers]) == (0, [0] * count)
    for consumer in consumers:
        consumer.permits.reset()
        assert consumer.permits.grant() >= 1


@given(st.integers(1, 100), st.sampled_from([1, 7, 1000]), st.integers(1700, 200_000))
def test_entries_of_one_size_never_overflow(count: int, messages: int, size: int):
    budget = ReceiveBudget(1 << 20, count)
    consumers = [Simulated(budget) for _ in range(count)]
    for _ in range(3):
        for consumer in consumers:
            consumer.read(messages, size)
        assert budget.held <= max(1 << 20, count * size)
        for consumer in consumers:
            consumer.take(3, lend=True)
    assert sum(consumer.sheds for consumer in consumers) == 0


def test_permits_granted_before_others_joined_count_against_the_budget():
    budget = ReceiveBudget(1 << 20)
    first = Simulated(budget)
    first.read(1, 2000)
    first.take(1, lend=False)
    first.permits.grant()
    assert budget.committed > 1_000_000
    others = [Simulated(budget) for _ in range(9)]
    for other in others:
        for _ in range(3):
            other.read(1, 2000)
            other.take(10, lend=False)
        assert other.permits.grant() + other.permits.outstanding >= 1, "one is always there"
        assert budget.committed <= 1 << 20
    while first.permits.outstanding > 0:
        first.permits.on_received(1, 2000)
        first.permits.release(2000)
    others[0].permits.grant()
    assert others[0].permits.outstanding > 20, "what is free again may be used by all"


def test_the_next_grant_comes_when_half_of_the_limit_is_free():
    """Otherwise the broker would read one entry at a time."""
    budget = ReceiveBudget(1 << 20)
    consumer = Simulated(budget)
    consumer.read(1000, 10_000)
    consumer.take(1, lend=False)
    consumer.read(1000, 10_000)
    full, reads = len(consumer.queue), 0
    while len(consumer.queue) > full * 0.55:
        consumer.take(1, lend=False)
        reads += consumer.permits.grant() > 0
    assert reads == 0
    consumer.take(10, lend=False)
    assert consumer.permits.grant() > 1000


async def test_a_consumer_of_many_topics_holds_no_more_than_its_limit(monkeypatch):
    store, count, size, limit = Store(), 60, 10_000, 1 << 20
    monkeypatch.setattr("mqbridge.pulsar.client.connection.handshake.dial", store.dial)

    def counted(link, frame):
        asked = frame.command.partitionMetadata.request_id
        response = pb.CommandPartitionedTopicMetadataResponse(
            request_id=asked, partitions=0, response=pb.CommandPartitionedTopicMetadataResponse.Success
        )
        link.send(partitionMetadataResponse=response)

    store.on[BaseCommand.PARTITIONED_METADATA] = counted
    client = scripted_client()
    topics = [f"persistent://public/default/t{number}" for number in range(count)]
    producers = [client.producer(topic) for topic in topics]
    await asyncio.gather(*[producer.send(pb.MessageMetadata(), bytes(size)) for producer in producers for _ in range(40)])
    consumer = await open_topic_consumer(client, topics, Subscription("s", max_bytes=limit))
    most = 0
    for _ in range(count * 40):
        await consumer.receive()
        most = max(most, sum(each.held_bytes for each in consumer.consumers.values()))
    assert size < most <= limit + count * (size + 2 * ENTRY_BYTES)
    assert sum(each.registrations for each in consumer.consumers.values()) == count, "without beginning anew"
    await consumer.close()
    assert consumer._budget.held == 0
    await asyncio.gather(*[producer.close() for producer in producers])
    await client.close()


async def test_a_closed_consumer_leaves_its_share_to_the_others(broker: Broker, client):
    budget = ReceiveBudget(10_000)
    first = await client.consumer(TOPIC, Subscription("a"), budget)
    second = await client.consumer(TOPIC, Subscription("b"), budget)
    for entry in range(3):
        broker.link.message(0, 1, entry, bytes(100))
    first.take_many(1, 1, 1)
    assert budget.share == 5_000
    await first.close()
    first.release_taken()
    assert (budget.held, budget.share) == (0, 10_000)
    await second.close()


# --- a lane -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def lane(broker: Broker, client):
    """Yield a lane, the batch of three entries that it has delivered, and the budget."""
    spec = InboundSpec(("t",), "g", max_bytes=1 << 20)
    budget = ReceiveBudget(spec.max_bytes)
    consumer = await client.consumer(TOPIC, Subscription("g", Types.Exclusive), budget)
    lane = PulsarLane(Partition("c", "t", "-1", 0), consumer, 1 << 20, 1 << 20)
    for entry in range(3):
        broker.link.message(0, 1, entry, bytes(1000))
    yield lane, await lane.receive(), budget
    await consumer.close()


@pytest.mark.parametrize("how", ["next", "acknowledge", "reject", "revoke"])
async def test_a_batch_stays_charged_until_the_next_is_requested_or_it_is_done(broker: Broker, lane, how: str):
    lane, batch, budget = lane
    assert batch.count == 3
    assert batch.held_bytes <= budget.held < batch.held_bytes + 3 * 200
    broker.link.message(0, 1, 3, bytes(1000))
    one = budget.held - batch.held_bytes
    if how == "next":
        following = await lane.receive()
        assert following.held_bytes <= budget.held <= one
        lane.acknowledge(batch)
        assert budget.held >= following.held_bytes, "the one that counts is another one now"
    else:
        {"acknowledge": lambda: lane.acknowledge(batch), "reject": lambda: lane.reject(batch), "revoke": lane.revoke}[how]()
        assert budget.held < batch.held_bytes


async def test_a_batch_takes_a_part_of_the_receiver_queue(broker: Broker, client):
    """A small message takes several times its size in memory. By its size alone, the whole receiver queue would be one batch."""
    consumer = await client.consumer(TOPIC, Subscription("g"), ReceiveBudget(1 << 20))
    lane = PulsarLane(Partition("c", "t", "-1", 0), consumer, 1 << 20, 64 << 10)
    for entry in range(400):
        broker.link.message(0, 1, entry, bytes(20))
    batches = [await lane.receive()]
    while batches[-1].next[1] < 400:
        batches.append(await lane.receive())
    one = batches[0].held_bytes // batches[0].count
    assert all(batch.held_bytes < (64 << 10) + 2 * one for batch in batches)
    assert sum(batch.count for batch in batches) == 400
    assert len(batches) > 4
    await consumer.close()


async def test_an_idle_lane_raises_the_error_that_ended_its_consumer(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("g"), ReceiveBudget(1 << 20))
    lane = PulsarLane(Partition("c", "t", "-1", 0), consumer, 1 << 20, 1 << 20)
    waiting = asyncio.ensure_future(lane.receive())
    assert await lane.confirm_caught_up()
    consumer.end(ClusterError("no rights any more", Failure.FATAL))
    with pytest.raises(ClusterError, match="no rights any more"):
        await waiting


async def test_a_lane_grants_permits_only_when_its_batch_is_charged_elsewhere(broker: Broker, client):
    budget = ReceiveBudget(20_000)
    consumer = await client.consumer(TOPIC, Subscription("g"), budget)
    lane = PulsarLane(Partition("c", "t", "-1", 0), consumer, 1 << 20, 1 << 20)
    broker.link.message(0, 1, 0, bytes(18_000))
    await lane.receive()
    await asyncio.sleep(0.01)
    assert len(broker.asked[BaseCommand.FLOW]) == 1
    waiting = asyncio.ensure_future(lane.receive())
    await until(lambda: len(broker.asked[BaseCommand.FLOW]) == 2)
    broker.link.message(0, 1, 1, b"x")
    assert (await waiting).data[0].id == (1, 1)
    await consumer.close()


async def test_a_batch_leaves_room_for_the_next_one(broker: Broker, client):
    budget = ReceiveBudget(100_000)
    consumer = await client.consumer(TOPIC, Subscription("g"), budget)
    lane = PulsarLane(Partition("c", "t", "-1", 0), consumer, 1 << 20, 1 << 20)
    for entry in range(8):
        broker.link.message(0, 1, entry, bytes(10_000))
    assert (await lane.receive()).count == 5
    assert ids.entry_id(pb.MessageIdData(ledgerId=1, entryId=5)) == (await lane.receive()).data[0].id
    await consumer.close()
