"""Messages that are due much later: they are parked, and come when they are due, to the group for which they were parked."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from mqbridge.adapter.numbering import OffsetNumbering, PackedNumbering
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure
from mqbridge.groups.store import GroupStore
from mqbridge.listener import parked, parking
from mqbridge.listener.definitions import Definitions
from mqbridge.listener.feed import Feed, FeedLimits
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.listener import Listener
from mqbridge.listener.parked import FIRST_NUMBER, Parked, wrap
from mqbridge.listener.parking import Parking
from mqbridge.listener.server import load_servers
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Position, Share
from mqbridge.pulsar.server import broker, entries, subscription_feeds
from mqbridge.pulsar.server.consumer import ServedConsumer
from mqbridge.pulsar.server.message_ids import DUE_LEDGER, MessageIds
from mqbridge.pulsar.server.subscription import ServedSubscription
from mqbridge.pulsar.server.subscription_feeds import SubscriptionFeeds
from mqbridge.pulsar.wire import client_commands, ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import CommandSubscribe
from tests.listener.feeds import KEY, take
from tests.listener.scripted_source import FORMAT, ScriptedSource
from tests.patience import PATIENCE_S
from tests.pulsar.server.serving import TOPIC, RawClient, Serving, batch_frame, listener_settings, payload_of, serving, until

SHARED = CommandSubscribe.Shared
LONG_S = 3600.0


class Clock:
    """The wall clock by which messages are due, which a test moves on once they are parked."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def time(self) -> float:
        """Return the seconds since the epoch."""
        return time.time() + self._ahead_s

    def in_ms(self, delay_s: float) -> int:
        """Return the time (ms since the epoch) after this delay."""
        return int((self.time() + delay_s) * 1000)

    def advance(self, time_s: float) -> None:
        """Let this time pass at once."""
        self._ahead_s += time_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Park what is due in more than 0.1 s, in levels of 0.6 s (due in less than two hours) and two hours."""
    clock = Clock()
    for module in (parking, entries, subscription_feeds):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(parking, "HOLD_S", 0.1)
    monkeypatch.setattr(subscription_feeds, "HOLD_S", 0.1)
    monkeypatch.setattr(parking, "LOOK_S", 0.1)
    monkeypatch.setattr(broker, "LOOK_S", 0.1)
    monkeypatch.setattr(parking, "RETRY_S", 0.05)
    for level in parked.LEVELS_S:
        monkeypatch.setitem(parked.LEVELS_S, level, {"1m": 0.3, "2m": 0.6}.get(level, 7200.0))
    return clock


def parking_of(served: Serving) -> Parking:
    return served.listener.parking


async def subscribed(served: Serving, **fields: object) -> RawClient:
    client = await served.connect()
    await client.subscribe(permits=100, subType=SHARED, **fields)
    return client


@pytest.mark.parametrize("kind", [CommandSubscribe.Shared, CommandSubscribe.Key_Shared])
@pytest.mark.parametrize("owns_groups", [True, False], ids=["own", "backing"])
async def test_a_message_that_is_due_later_is_parked_and_comes_when_it_is_due(clock: Clock, owns_groups: bool, kind: int) -> None:
    async with serving(owns_groups=owns_groups) as served:
        producer = await served.connect()
        await producer.produce()
        consumer = await served.connect()
        await consumer.subscribe(permits=100, subType=kind)
        due_ms = clock.in_ms(LONG_S)
        await producer.store(b"later", deliver_at_time=due_ms)
        await producer.store(b"now")
        entry, payload = await consumer.message()
        assert payload == b"now"
        consumer.ack(entry)
        (subscription,) = served.broker.subscriptions.values()
        await until(lambda: subscription.feed.state().mark == (2,))
        assert parking_of(served).parked == 1
        clock.advance(LONG_S - 1)
        entry, payload = await consumer.message()
        assert payload == b"later"
        assert clock.time() * 1000 >= due_ms
        assert entry[0] == DUE_LEDGER
        consumer.ack(entry, request=(request := consumer.number()))
        await consumer.answer(request)
        due = subscription.feeds.due
        assert due is not None
        await until(lambda: due.state().mark == (1,))
        assert not consumer.frames


async def test_a_batch_is_parked_whole_and_acknowledged_in_parts(clock: Clock) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        producer.send(batch_frame([b"a", b"b", b"c"], deliver_at_time=clock.in_ms(LONG_S)))
        await until(lambda: parking_of(served).parked == 1)
        clock.advance(LONG_S)
        entry, _ = await consumer.message()
        assert entry[0] == DUE_LEDGER
        consumer.send(client_commands.ack(1, False, [ids.message_id(*entry, ids.to_words(0b110))], None))
        await consumer.ping()
        consumer.send(client_commands.redeliver(1, [ids.message_id(*entry)], None))
        frame = await consumer.next(lambda frame: frame.type == pb.BaseCommand.MESSAGE)
        assert list(frame.command.message.ack_set) == [0b110]
        assert frame.command.message.redelivery_count == 1


async def test_what_is_parked_survives_the_gateway(clock: Clock, tmp_path: Path) -> None:
    """The gateway is gone before the messages are due, and another one has them: of several levels, and for two groups."""
    cluster = LogCluster("store", LogSettings(path=str(tmp_path / "log.db")))
    await cluster.connect()
    for round_ in range(2):
        async with AsyncExitStack() as stack:
            store = GroupStore(tmp_path / "groups.db")
            listener = Listener(listener_settings(), load_servers()["pulsar"], cluster, cluster, store, "me")
            listener.bind()
            await listener.start()
            served = Serving(listener, cluster)
            stack.push_async_callback(store.close)
            stack.push_async_callback(lambda listener=listener: listener.close(asyncio.get_running_loop().time() + 5))
            consumers = [await subscribed(served, subscription=name) for name in ("one", "two")]
            if round_ == 0:
                producer = await served.connect()
                await producer.produce()
                for number, factor in enumerate([1, 3, 1, 4]):
                    await producer.store(b"%d" % number, deliver_at_time=clock.in_ms(factor * LONG_S))
                await until(lambda served=served: parking_of(served).parked >= 8)
            else:
                clock.advance(4 * LONG_S)
                for consumer in consumers:
                    assert sorted(await consumer.messages(4)) == [b"0", b"1", b"2", b"3"]
            for client in (*served.clients,):
                await client.close()
    await cluster.close()


async def test_a_message_that_cannot_be_parked_is_held_and_parked_later(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        create, failures = served.cluster.create, 2

        async def fail(topic: str, partitions: int) -> None:
            nonlocal failures
            if topic.startswith("mqbridge-app") and failures:
                failures -= 1
                raise ClusterError("not now")
            await create(topic, partitions)

        monkeypatch.setattr(served.cluster, "create", fail)
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        clock.advance(LONG_S)
        assert await consumer.messages(1) == [b"later"]
        assert failures == 0
        assert parking_of(served).brought_back == 1


@pytest.mark.parametrize("how", ["seek", "reset"])
async def test_what_was_parked_before_a_move_does_not_come_beside_what_is_delivered_again(clock: Clock, how: str) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        if how == "seek":
            request = consumer.number()
            consumer.send(client_commands.seek(request, 1, to=(1, 0)))
            await consumer.answer(request)
        else:
            topic = await served.listener.topics.find(TOPIC)
            assert topic is not None
            async with parking_of(served).moving(topic, "s", [0]):
                await served.listener.groups.move(topic, "s", {0: (0,)})
        again = await subscribed(served)
        await until(lambda: parking_of(served).parked == 2)
        clock.advance(LONG_S)
        assert await again.messages(1) == [b"later"]
        await until(lambda: parking_of(served).dropped == 1)
        assert parking_of(served).parked == 2
        await again.ping()
        assert not again.frames


async def test_a_skipped_message_does_not_come_when_it_is_due(clock: Clock) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        request = consumer.number()
        consumer.send(client_commands.seek(request, 1, to=ids.LATEST))
        await consumer.answer(request)
        again = await subscribed(served)
        clock.advance(LONG_S)
        await until(lambda: parking_of(served).dropped == 1)
        await producer.store(b"now")
        assert await again.messages(1) == [b"now"]


async def test_what_is_parked_for_a_group_goes_with_it(clock: Clock) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        request = consumer.number()
        consumer.send(client_commands.unsubscribe(request, 1))
        await consumer.answer(request)
        names = await served.cluster.topics()
        assert not [name for name in names if name.startswith("mqbridge-app-due-")]
        again = await subscribed(served, initialPosition=CommandSubscribe.Latest)
        clock.advance(LONG_S)
        await until(lambda: parking_of(served).dropped == 1)
        await producer.store(b"now")
        assert await again.messages(1) == [b"now"]


async def test_more_messages_than_the_span_may_be_due_later(clock: Clock) -> None:
    """They hold neither memory nor what comes after them."""
    async with serving(unacknowledged_span=50, unacknowledged_bytes=64 << 10) as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(*[bytes(1000)] * 300, deliver_at_time=clock.in_ms(LONG_S))
        await producer.store(b"now")
        assert await consumer.messages(1) == [b"now"]
        await until(lambda: parking_of(served).parked == 300)


async def test_other_subscriptions_get_it_at_once_and_parking_topics_are_hidden(clock: Clock) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        reader = await served.connect()
        await reader.subscribe(permits=10, subscription="exclusive")
        assert await reader.messages(1) == [b"later"]
        assert await served.listener.topics.names() == [TOPIC]
        await consumer.ping()
        assert not consumer.frames


async def test_two_gateways_share_what_is_parked(clock: Clock, tmp_path: Path) -> None:
    """Each has a consumer of one group; the messages come, whichever gateway had parked them."""
    clusters = [LogCluster("store", LogSettings(path=str(tmp_path / "log.db"))) for _ in range(2)]
    for cluster in clusters:
        await cluster.connect()
    await clusters[0].create("t", 2)
    listeners = []
    async with AsyncExitStack() as stack:
        for cluster in clusters:
            settings = listener_settings(owns_groups=False, create_partitions=2)
            listener = Listener(settings, load_servers()["pulsar"], cluster, cluster, None, "me")
            listener.bind()
            await listener.start()
            stack.push_async_callback(lambda listener=listener: listener.close(asyncio.get_running_loop().time() + 5))
            listeners.append(Serving(listener, cluster))
        producer = await listeners[0].connect()
        consumers = []
        for served in listeners:
            client = await served.connect()
            for index in range(2):
                await client.subscribe(index, f"{TOPIC}-partition-{index}", permits=1000, subType=SHARED)
            consumers.append(client)
        wanted = {b"%d" % number for number in range(40)}
        for index in range(2):
            await producer.produce(index, f"{TOPIC}-partition-{index}")
            due_ms = clock.in_ms(LONG_S)
            payloads = [b"%d" % number for number in range(index, 40, 2)]
            await producer.store(*payloads, producer=index, deliver_at_time=due_ms)
        await until(lambda: sum(parking_of(served).parked for served in listeners) >= len(wanted))
        clock.advance(LONG_S)
        got: set[bytes] = set()

        async def collect(client: RawClient) -> None:
            while True:
                frame = await client.next(lambda frame: frame.type == pb.BaseCommand.MESSAGE)
                message = frame.command.message
                client.ack(ids.entry_id(message.message_id), consumer=message.consumer_id)
                got.add(payload_of(frame))

        tasks = [asyncio.create_task(collect(client)) for client in consumers]
        async with asyncio.timeout(PATIENCE_S):
            while got != wanted:
                await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in (producer, *consumers):
            await client.close()
    for cluster in clusters:
        await cluster.close()


async def test_what_is_due_and_was_not_delivered_does_not_come_after_a_skip(clock: Clock) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await served.connect()
        await producer.produce()
        await consumer.subscribe(permits=1, subType=SHARED)
        await producer.store(b"now")
        await consumer.messages(1)
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        consumer.send(client_commands.flow(1, 1))
        await until(lambda: parking_of(served).parked == 1)
        clock.advance(LONG_S)
        await until(lambda: parking_of(served).brought_back == 1)
        (subscription,) = served.broker.subscriptions.values()
        await until(lambda: subscription.feeds.due is not None)
        entry, _ = await consumer.message()
        assert entry[0] == DUE_LEDGER
        request = consumer.number()
        consumer.send(client_commands.seek(request, 1, to=ids.LATEST))
        await consumer.answer(request)
        again = await subscribed(served)
        await producer.store(b"then")
        assert await again.messages(1) == [b"then"]
        await again.ping()
        assert not again.frames


async def test_topics_with_different_numbers_of_partitions_are_parked_together(clock: Clock) -> None:
    async with serving() as served:
        await served.cluster.create("wide", 3)
        producer, consumer = await served.connect(), await served.connect()
        wide = [f"persistent://public/default/wide-partition-{index}" for index in range(3)]
        for index, topic in enumerate((TOPIC, *wide)):
            await producer.produce(index, topic)
            await consumer.subscribe(index, topic, permits=10, subType=SHARED)
            producer.send_entry(b"%d" % index, 0, index, deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 4)
        clock.advance(LONG_S)
        assert sorted(await consumer.messages(4)) == [b"0", b"1", b"2", b"3"]
        due = {name for name in await served.cluster.topics() if "-due-" in name}
        counts = sorted([len((await served.cluster.describe(name)).index_by_partition) for name in due])  # type: ignore[union-attr]
        assert counts == [1, 3]


class HighNumbering(OffsetNumbering):
    """Numbers as large as those of Pulsar's positions."""

    def number(self, position: Position) -> int:
        return FIRST_NUMBER + super().number(position)


async def test_units_with_large_numbers_are_of_the_partition_where_nothing_is_due() -> None:
    assert PackedNumbering(3).number((5, 3, 0)) >= FIRST_NUMBER
    source = ScriptedSource()
    source.store(1)
    feed = Feed(KEY, FORMAT, HighNumbering(), None, FeedLimits(UnacknowledgedBytes(1 << 20), 100))
    feed.attach(source)
    feeds = SubscriptionFeeds(feed)
    (delivered,) = await take(feed, 1)
    assert feeds.find(FIRST_NUMBER) is delivered
    await feed.detach()


async def test_a_topic_of_what_is_due_that_was_deleted_is_made_again(clock: Clock) -> None:
    """Otherwise its level would be stuck, for all groups."""
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        (name,) = [name for name in await served.cluster.topics() if name.startswith("mqbridge-app-due-")]
        await served.cluster.delete(name)
        await consumer.of(pb.BaseCommand.CLOSE_CONSUMER)
        again = await subscribed(served)
        clock.advance(LONG_S)
        assert await again.messages(1) == [b"later"]


def scripted_feed(topic: str, numbering: OffsetNumbering | None = None) -> Feed:
    """Return a feed with one unit."""
    source = ScriptedSource()
    source.store(1)
    limits = FeedLimits(UnacknowledgedBytes(1 << 20), 100)
    feed = Feed(KEY._replace(topic=topic), FORMAT, numbering or OffsetNumbering(), None, limits)
    feed.attach(source)
    return feed


async def test_what_is_stored_is_not_stored_again_while_dead_letters_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """One message that its target refuses does not make the others come again and again."""
    sent: list[bytes] = []

    class Refusing:
        partitions = 1

        async def send(self, partition: int, share: Share) -> Receipt:
            payloads = [message.payload or b"" for message in share.batch.messages]
            sent.extend(payloads)
            failures = [MessageFailure(at, Failure.REFUSED, "no") for at, each in enumerate(payloads) if each == b"bad"]
            return Receipt((), failures)

    async with serving() as served:
        service, failures = parking_of(served), [1, 2]

        async def outbound(*_: object) -> Refusing:
            return Refusing()

        async def put_away(*_: object) -> None:
            if failures:
                failures.pop()
                raise ClusterError("no dead letters now")

        monkeypatch.setattr(service, "_outbound", outbound)
        monkeypatch.setattr(service, "_put_away", put_away)
        lane = SimpleNamespace(revoked=asyncio.Event())
        await service._store(lane, "x", 0, [Message(b"bad"), Message(b"good")])
        assert (sent.count(b"good"), sent.count(b"bad"), failures) == (1, 3, [])


async def test_what_was_acknowledged_of_a_batch_does_not_come_again_when_it_is_due(clock: Clock) -> None:
    async with serving() as served:
        producer, exclusive = await served.connect(), await served.connect()
        await producer.produce()
        producer.send(batch_frame([b"a", b"b", b"c"], deliver_at_time=clock.in_ms(1.5)))
        await exclusive.subscribe(permits=10)
        entry, _ = await exclusive.message()
        exclusive.send(
            client_commands.ack(1, False, [ids.message_id(*entry, ids.to_words(0b110))], request := exclusive.number())
        )
        await exclusive.answer(request)
        await exclusive.close()
        await until(lambda: not served.broker.subscriptions)
        consumer = await subscribed(served)
        frame = await consumer.next(lambda frame: frame.type == pb.BaseCommand.MESSAGE)
        assert list(frame.command.message.ack_set) == [0b110]
        assert parking_of(served).parked == 0


async def test_a_seek_to_a_message_that_was_parked_is_refused(clock: Clock) -> None:
    """It has no place among the others; the end would skip them."""
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        clock.advance(LONG_S)
        entry, _ = await consumer.message()
        await consumer.close()
        await until(lambda: not served.broker.subscriptions)
        await producer.store(b"next")
        consumer = await served.connect()
        await consumer.subscribe(subType=SHARED)
        consumer.send(client_commands.seek(request := consumer.number(), 1, to=entry))
        assert (await consumer.answer(request)).error
        consumer.send(client_commands.flow(1, 10))
        assert sorted(await consumer.messages(2)) == [b"later", b"next"]


async def test_a_message_that_was_parked_by_a_clock_ahead_does_not_stop_its_level(clock: Clock) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await served.cluster.create("mqbridge-app-2m", 1)
        outbound = await served.cluster.outbound(OutboundSpec("mqbridge-app-2m", stamp_origin=False))
        ahead = wrap(Parked("t", 0, "other", clock.in_ms(0), clock.in_ms(3 * LONG_S), 0), Message(b"x"))
        await outbound.send(0, Share(Batch.of([ahead])))
        await outbound.close()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        clock.advance(LONG_S)
        assert await consumer.messages(1) == [b"later"]


async def test_a_move_counts_for_what_another_gateway_has_parked(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if this one does not know yet that anything was parked for the group."""
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        monkeypatch.setattr(parking, "LOOK_S", LONG_S)
        await asyncio.sleep(0.3)  # until the last look
        parking_of(served)._known.clear()
        consumer.send(client_commands.seek(request := consumer.number(), 1, to=ids.LATEST))
        await consumer.answer(request)
        await until(lambda: parking_of(served).dropped == 1)


async def test_a_loss_of_the_partition_is_noticed_although_what_is_due_is_found_at_the_same_time() -> None:
    feed, due = scripted_feed("t"), scripted_feed("due", HighNumbering())
    subscription = ServedSubscription("s", "t", -1, feed, MessageIds(OffsetNumbering()), is_durable=True)
    empty: list[None] = []
    subscription.on_empty = lambda: empty.append(None)
    subscription.add(SHARED, ServedConsumer(Mock(), 1, "c", MessageIds(OffsetNumbering()), partition=-1, priority=0, epoch=None))
    source = feed._source
    assert source is not None
    feed._end(source)  # the subscription hears of it soon
    subscription.add_due(due)
    subscription._on_feed()
    assert not subscription.consumers
    await feed.detach()
    await due.detach()


async def test_a_move_that_fails_drops_nothing(clock: Clock) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        topic = await served.listener.topics.find(TOPIC)
        assert topic is not None
        with pytest.raises(ClusterError):
            async with parking_of(served).moving(topic, "s", [0]):
                raise ClusterError("not now")
        clock.advance(LONG_S)
        assert await consumer.messages(1) == [b"later"]
        assert parking_of(served).dropped == 0


async def test_a_group_whose_messages_cannot_be_brought_back_holds_no_other(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as served:
        service = parking_of(served)
        open_outbound, stuck = service._outbound, service._due_name("t", "one")

        async def outbound(topic: str, partitions: int) -> Outbound:
            if topic == stuck:
                raise ClusterError("this topic cannot be opened now")
            return await open_outbound(topic, partitions)

        monkeypatch.setattr(service, "_outbound", outbound)
        producer, one = await served.connect(), await subscribed(served, subscription="one")
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: service.parked == 1)  # so it comes before that of the other group
        two = await subscribed(served, subscription="two")
        await until(lambda: service.parked == 2)
        clock.advance(LONG_S)
        assert await two.messages(1) == [b"later"]
        assert not one.frames
        monkeypatch.setattr(service, "_outbound", open_outbound)
        assert await one.messages(1) == [b"later"]


async def test_what_is_parked_in_a_partition_that_was_added_comes_there(clock: Clock) -> None:
    async with serving() as served:
        await served.cluster.create("wide", 2)
        producer, consumer = await served.connect(), await served.connect()
        wide = "persistent://public/default/wide-partition-"
        for index in (0, 2):
            if index == 2:
                await served.cluster.create("wide", 3)
                assert await served.listener.topics.find("persistent://public/default/wide", fresh=True)
            await producer.produce(index, f"{wide}{index}")
            await consumer.subscribe(index, f"{wide}{index}", permits=10, subType=SHARED)
            await producer.store(b"%d" % index, producer=index, deliver_at_time=clock.in_ms(LONG_S))
            await until(lambda parked=1 + index // 2: parking_of(served).parked == parked)
            clock.advance(LONG_S)
            frame = await consumer.next(lambda frame: frame.type == pb.BaseCommand.MESSAGE)
            assert (frame.command.message.consumer_id, payload_of(frame)) == (index, b"%d" % index)


async def test_a_large_message_in_parts_that_was_parked_may_be_larger_than_what_a_feed_holds(clock: Clock) -> None:
    """Nothing of it is acknowledged before its last part has come, and all parts come through what is due."""
    async with serving(unacknowledged_bytes=1 << 20) as served:
        producer, consumer = await served.connect(), await served.connect()
        await producer.produce()
        await consumer.subscribe(permits=1000, subType=SHARED)
        due_ms, parts = clock.in_ms(LONG_S), 10
        for part in range(parts):
            chunk = {"uuid": "u-0", "num_chunks_from_msg": parts, "total_chunk_msg_size": parts * 200_000, "chunk_id": part}
            producer.send_entry(bytes(200_000), part, deliver_at_time=due_ms, **chunk)
            await producer.of(pb.BaseCommand.SEND_RECEIPT)
        await until(lambda: parking_of(served).parked == parts)
        clock.advance(LONG_S)
        got = [await consumer.message() for _ in range(parts)]
        assert {entry[0] for entry, _ in got} == {DUE_LEDGER}
        consumer.ack(*[entry for entry, _ in got])
        await consumer.ping()


async def test_a_due_topic_that_another_gateway_has_deleted_and_made_again_is_found(clock: Clock) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"first", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        clock.advance(LONG_S)
        assert await consumer.messages(1) == [b"first"]
        await consumer.close()
        await until(lambda: not served.broker.subscriptions)
        (due,) = [name for name in await served.cluster.topics() if "-due-" in name]
        await until(lambda: not served.listener.groups._feeds)  # type: ignore[attr-defined]
        await served.cluster.delete(due)  # by another gateway
        await until(lambda: due not in parking_of(served)._known)
        assert due not in parking_of(served)._counts
        await subscribed(served)
        await served.cluster.create(due, 1)  # likewise
        (subscription,) = served.broker.subscriptions.values()
        await until(lambda: subscription.feeds.due is not None)


async def test_partitions_that_another_gateway_adds_to_a_due_topic_are_found() -> None:
    """Its topic has grown, and a message of the new partition was parked there."""
    async with serving() as served:
        await served.cluster.create("wide", 2)
        wide = "persistent://public/default/wide"
        due = parking_of(served)._due_name("wide", "s")
        await served.cluster.create(due, 1)
        await until(lambda: due in parking_of(served)._known)
        first = await subscribed(served, topic=f"{wide}-partition-0")
        await until(lambda: all(each.feeds.due is not None for each in served.broker.subscriptions.values()))
        second = await served.connect()
        await second.subscribe(topic=f"{wide}-partition-1", subType=SHARED)
        subscription = served.broker.subscriptions[("wide", 1), "s"]
        await first.ping()
        assert subscription.feeds.due is None
        await served.cluster.create(due, 2)  # by another gateway
        await until(lambda: subscription.feeds.due is not None)


async def test_what_another_gateway_has_moved_is_not_brought_back_by_one_that_knew_of_no_moves(clock: Clock) -> None:
    """The topic of moves is made after this gateway has begun to read the levels."""
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        topic = await served.listener.topics.find(TOPIC)
        assert topic is not None
        elsewhere = Definitions(served.cluster, topic="mqbridge-app-moves")
        await elsewhere.start()
        name = parking_of(served)._due_name(topic.backing, "s") + "/0"
        begun = await elsewhere.add(name, parking.BEGUN, 0, b"")
        await elsewhere.add(name, parking.DONE, 0, b"%d" % begun.registered_ms)
        await elsewhere.close()
        await until(lambda: parking_of(served).dropped == 1)
        assert parking_of(served).brought_back == 0
        await consumer.ping()


async def test_a_group_that_is_deleted_while_its_message_is_brought_back_is_not_made_again(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as served:
        producer, consumer = await served.connect(), await subscribed(served)
        await producer.produce()
        sent, is_sending, goes_on = parking_of(served)._sent, asyncio.Event(), asyncio.Event()

        async def send(topic: str, outbound: Outbound, partition: int, share: Share) -> object:
            if "-due-" in topic:
                is_sending.set()
                await goes_on.wait()
            return await sent(topic, outbound, partition, share)

        monkeypatch.setattr(parking_of(served), "_sent", send)
        await producer.store(b"later", deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        clock.advance(LONG_S)
        await is_sending.wait()
        consumer.send(client_commands.unsubscribe(request := consumer.number(), 1))
        await consumer.answer(request)
        goes_on.set()
        await until(lambda: parking_of(served).dropped == 1)
        assert not [name for name in await served.cluster.topics() if "-due-" in name]


async def test_a_group_that_is_deleted_in_its_partitions_one_after_the_other_loses_what_is_parked(clock: Clock) -> None:
    async with serving(owns_groups=False, create_partitions=2) as served:
        await served.cluster.create("t", 2)
        producer, *consumers = [await served.connect() for _ in range(3)]
        for index, consumer in enumerate(consumers):
            await producer.produce(index, f"{TOPIC}-partition-{index}")
            await consumer.subscribe(1, f"{TOPIC}-partition-{index}", permits=10, subType=SHARED)
        producer.send_entry(b"later", 0, 0, deliver_at_time=clock.in_ms(LONG_S))
        await until(lambda: parking_of(served).parked == 1)
        consumers[1].send(client_commands.unsubscribe(request := consumers[1].number(), 1))
        await consumers[1].answer(request)
        await consumers[0].close()
        await until(lambda: parking_of(served).dropped == 1)
        assert not [name for name in await served.cluster.topics() if "-due-" in name]


def test_parking_topics_of_other_listeners_are_known_by_their_names() -> None:
    names = ["mqbridge-b-2m", "mqbridge-b-1s", "mqbridge-b-30s", "mqbridge-b-moves", "mqbridge-a-b-due-0123456789abcdef"]
    assert all(map(parking.is_default_parking_topic, names))
    assert not any(map(parking.is_default_parking_topic, ["orders-2m", "mqbridge-2m", "mqbridge-b-due", "mqbridge-b-orders"]))
