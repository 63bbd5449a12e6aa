"""Dispatchers: turns, priorities, keys and ranges, delays, and messages that cannot be read."""

import time
from collections import Counter
from typing import Any

import pytest

from mqbridge.adapter.formats import batch_of_units
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.delivery.deadletter import DeadLetters
from mqbridge.errors import ClusterError
from mqbridge.message import Message, Share, Unit
from mqbridge.pulsar.server import quarantine
from mqbridge.pulsar.server.dispatchers import SLOTS, KeySharedDispatcher, points_of
from mqbridge.pulsar.server.subscription import ServedSubscription, Types
from mqbridge.pulsar.wire.hashing import murmur3_32
from mqbridge.rocketmq.mapping.unit_format import RecordFormat
from tests.listener.feeds import settle
from tests.pulsar.server.serving import DEAD_LETTERS, TOPIC, serving, until
from tests.pulsar.server.subscriptions import (
    EntrySource,
    RecordingLink,
    delivered,
    key_of,
    make_consumer,
    make_subscription,
    message_id,
)


def taken(subscription: ServedSubscription) -> dict[int, list[int]]:
    """Return the units that each consumer has got since the last call."""
    return {each.id: delivered(each.link.take()) for each in subscription.consumers}  # type: ignore[attr-defined]


async def test_shared_consumers_get_units_in_turn():
    source = EntrySource(batch_units=1000)
    source.store(*[1] * 100)
    subscription = make_subscription(source)
    for number in range(4):
        subscription.add(Types.Shared, make_consumer(number))
        subscription.consumers[-1].grant(100)
    subscription.dispatch()
    await settle()
    assert {each: len(found) for each, found in taken(subscription).items()} == {0: 40, 1: 20, 2: 20, 3: 20}
    await subscription.feed.detach()


async def test_a_lower_priority_gets_what_the_higher_one_cannot_take():
    source = EntrySource(batch_units=1000)
    source.store(*[1] * 30)
    subscription = make_subscription(source)
    high, low = make_consumer(1, priority=0), make_consumer(2, priority=1)
    for each, permits in ((low, 100), (high, 10)):
        subscription.add(Types.Shared, each)
        each.grant(permits)
    subscription.dispatch()
    await settle()
    found = taken(subscription)
    assert (len(found[1]), len(found[2])) == (10, 20)
    await subscription.feed.detach()


async def test_a_consumer_that_cannot_be_written_gets_nothing():
    source = EntrySource(batch_units=1000)
    source.store(*[1] * 30)
    subscription = make_subscription(source)
    for number in (1, 2):
        subscription.add(Types.Shared, make_consumer(number))
        subscription.consumers[-1].grant(100)
    link = subscription.consumers[0].link
    assert isinstance(link, RecordingLink)
    link.is_writable = False
    subscription.dispatch()
    await settle()
    found = taken(subscription)
    assert (len(found[1]), len(found[2])) == (0, 30)
    await subscription.feed.detach()


async def test_credit_goes_below_zero_by_one_batch_at_most():
    source = EntrySource(batch_units=1000)
    source.store(5, 5, 5)
    subscription = make_subscription(source)
    consumer = make_consumer(1)
    subscription.add(Types.Exclusive, consumer)
    consumer.grant(6)
    subscription.dispatch()
    await settle()
    assert taken(subscription) == {1: [0, 5]}
    assert consumer.permits == -4
    consumer.grant(4)
    subscription.dispatch()
    assert taken(subscription) == {1: []}
    consumer.grant(1)
    subscription.dispatch()
    assert taken(subscription) == {1: [10]}
    await subscription.feed.detach()


async def test_keys_stay_with_their_consumer_by_ranges():
    source = EntrySource(batch_units=1000)
    source.store(*[1] * 50)
    subscription = make_subscription(source)
    middle = SLOTS // 2
    for number, each in enumerate([((0, middle - 1),), ((middle, SLOTS - 2),)]):
        subscription.add(Types.Key_Shared, make_consumer(number, ranges=each))
        subscription.consumers[-1].grant(100)
    subscription.dispatch()
    await settle()
    found = taken(subscription)
    assert sum(map(len, found.values())) == 50
    for number in (0, 1):
        assert all((murmur3_32(key_of(each).encode()) % SLOTS >= middle) == bool(number) for each in found[number])
    await subscription.feed.detach()


def test_slots_are_those_of_a_real_broker():
    assert murmur3_32(b"abc") % SLOTS == 37882
    assert murmur3_32(b"key1") % SLOTS == 293


async def test_points_of_consumers_are_computed_once(monkeypatch):
    """1000 consumers of a subscription have 100,000 points: each that joins would take a second."""
    calls: Counter[int] = Counter()

    def counted(consumer: Any) -> Any:
        calls[consumer.id] += 1
        return points_of(consumer)

    monkeypatch.setattr("mqbridge.pulsar.server.dispatchers.points_of", counted)
    subscription = make_subscription(EntrySource())
    consumers = [make_consumer(number) for number in range(50)]
    for each in consumers:
        subscription.add(Types.Key_Shared, each)
    for each in consumers[:40]:
        subscription.remove(each)
    assert set(calls.values()) == {1}
    dispatcher = subscription._dispatcher
    assert isinstance(dispatcher, KeySharedDispatcher)
    assert {dispatcher._owner(slot) for slot in range(0, SLOTS, 50)} == set(consumers[40:])
    await subscription.feed.detach()


async def test_delayed_messages_come_when_they_are_due_on_shared_subscriptions():
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        due = time.time() + 2
        await client.store(b"later", deliver_at_time=int(due * 1000))
        await client.store(b"now")
        await client.subscribe(1, subscription="exclusive", permits=10)
        assert await client.messages(2) == [b"later", b"now"]
        for number, kind in ((2, Types.Shared), (3, Types.Key_Shared)):
            await client.subscribe(number, subscription=str(number), subType=kind, permits=10)
        came = []
        for _ in range(4):
            came.append((await client.message())[1])
            assert came[-1] == b"now" or time.time() >= due - 0.01, "too early"
        assert sorted(came) == [b"later", b"later", b"now", b"now"]


# --- messages that cannot be read -----------------------------------------------------------------------------------------


class Letters:
    """A dead-letter topic that cannot be opened the first times."""

    partitions = 1

    def __init__(self, failures: int = 0) -> None:
        self.stored: list[Message] = []
        self.failures = failures

    async def open(self) -> DeadLetters:
        if self.failures:
            self.failures -= 1
            raise ClusterError("not reachable")
        outbound: Any = self
        return DeadLetters("app", outbound, "store/dead")

    async def send(self, partition: int, share: Share) -> Receipt:
        self.stored += share.messages
        return Receipt([(number,) for number in range(len(share.messages))])


@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Failover, Types.Shared, Types.Key_Shared])
async def test_a_message_that_cannot_be_read_is_a_dead_letter_and_delays_no_other(kind, monkeypatch):
    monkeypatch.setattr(quarantine, "RETRY_S", 0.05)
    source, letters = EntrySource(batch_units=4), Letters(failures=1)
    source.store(*[0] * 10)
    source.defects = {2, 3, 7}
    subscription = make_subscription(source, letters.open)
    consumer = make_consumer(1)
    subscription.add(kind, consumer)
    consumer.grant(10)
    subscription.dispatch()
    good = [0, 1, 4, 5, 6, 8, 9]
    await until(lambda: len(consumer.out) == len(good))
    assert sorted(taken(subscription)[1]) == good
    assert consumer.permits == 3, "a message that is not delivered costs no permit"
    await until(lambda: len(letters.stored) == 3)
    assert {each.property("mqbridge.dead.reason") for each in letters.stored} == {"damaged"}
    assert {each.payload for each in letters.stored} == {b"2", b"3", b"7"}
    subscription.acknowledge([message_id(number) for number in good])
    await until(lambda: source.committed == 10)
    assert taken(subscription) == {1: []}
    assert subscription.quarantine.stored == 3
    await subscription.feed.detach()


async def test_a_reader_skips_what_cannot_be_read():
    source = EntrySource()
    source.store(0, 0)
    source.defects = {0}
    subscription = make_subscription(source, None)
    consumer = make_consumer(1)
    subscription.add(Types.Exclusive, consumer)
    consumer.grant(10)
    subscription.dispatch()
    await settle()
    assert taken(subscription) == {1: [1]}
    assert subscription.quarantine.skipped == 1
    await subscription.feed.detach()


async def test_a_message_that_cannot_become_an_entry_is_a_dead_letter(monkeypatch):
    source, letters = EntrySource(), Letters()
    source.store(0, 0, 0)
    for kind in (Types.Shared, Types.Key_Shared, Types.Exclusive):
        subscription = make_subscription(source.resume(), letters.open)
        consumer = make_consumer(1)
        subscription.add(kind, consumer)

        def encode(message: Message, number: int) -> bytes:
            if number == 1:
                raise ValueError("no")
            return b"x"

        monkeypatch.setattr("mqbridge.native.compiled", None)
        monkeypatch.setattr("mqbridge.pulsar.server.entries._encode", encode)
        letters.stored.clear()
        consumer.grant(10)
        subscription.dispatch()
        await until(lambda: len(letters.stored) == 1)
        await settle()
        assert sorted(consumer.out) == [0, 2]
        await subscription.feed.detach()


async def test_the_dead_letter_topic_of_the_listener_has_what_cannot_be_read():
    """A unit of another system that is damaged: the log stores it as it is."""
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        await client.store(b"1")
        outbound = await served.cluster.outbound(OutboundSpec("t", keep_units=True))
        damaged = batch_of_units(RecordFormat(), [Unit(b"garbage", 1, None)])
        assert not (await outbound.send(0, Share(damaged))).failures
        await outbound.close()
        await client.store(b"2")
        await client.subscribe(permits=10)
        assert await client.messages(2) == [b"1", b"2"]
        (subscription,) = served.broker.subscriptions.values()
        await until(lambda: subscription.quarantine.stored == 1)
        reader = await served.cluster.reader(DEAD_LETTERS, "0", (0,), max_bytes=1 << 20)
        batch = await reader.receive()
        assert batch is not None
        (letter,) = batch.messages
        assert letter.property("mqbridge.dead.reason")
        assert letter.property("mqbridge.dead.target") == TOPIC
        await reader.close()


async def test_a_dead_letter_topic_that_is_made_anew_is_opened_again(monkeypatch):
    monkeypatch.setattr("mqbridge.pulsar.server.quarantine.RETRY_S", 0.01)
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        await client.subscribe(permits=10)
        outbound = await served.cluster.outbound(OutboundSpec("t", keep_units=True))
        for stored in (1, 2):
            damaged = batch_of_units(RecordFormat(), [Unit(b"garbage", 1, None)])
            assert not (await outbound.send(0, Share(damaged))).failures
            (subscription,) = served.broker.subscriptions.values()
            await until(lambda stored=stored, quarantine=subscription.quarantine: quarantine.stored == stored)
            await served.cluster.delete(DEAD_LETTERS)
            await served.cluster.create(DEAD_LETTERS, 1)
        await outbound.close()
