"""A subscription against a model of what a broker guarantees, and its states."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.errors import LaneRevoked, RequestRefused
from mqbridge.pulsar.server import connection as connections
from mqbridge.pulsar.server import subscription as subscriptions
from mqbridge.pulsar.server.consumer import ServedConsumer, ServedConsumerState
from mqbridge.pulsar.server.subscription import SubscriptionState, Types
from mqbridge.pulsar.wire import client_commands, codes, ids
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.listener.feeds import settle
from tests.pulsar.server.serving import serving, until
from tests.pulsar.server.subscriptions import (
    EntrySource,
    RecordingLink,
    delivered,
    key_of,
    make_consumer,
    make_subscription,
    message_id,
)

SMALL = st.integers(0, 20)
OPERATIONS = st.one_of(
    st.tuples(st.just("store"), st.lists(st.sampled_from([0, 0, 1, 2, 5]), min_size=1, max_size=8)),
    st.tuples(st.just("join")),
    st.tuples(st.just("leave"), SMALL),
    st.tuples(st.just("flow"), SMALL, st.integers(1, 12)),
    st.tuples(st.just("flow"), SMALL, st.integers(1, 12)),
    st.tuples(st.just("flow"), SMALL, st.just(30)),
    st.tuples(st.just("ack"), SMALL, SMALL),
    st.tuples(st.just("ack"), SMALL, SMALL),
    st.tuples(st.just("ack"), SMALL, SMALL),
    st.tuples(st.just("ack indexes"), SMALL, SMALL, st.integers(0, 31)),
    st.tuples(st.just("ack number"), SMALL, st.integers(0, 60)),
    st.tuples(st.just("cumulative"), SMALL, SMALL),
    st.tuples(st.just("nack"), SMALL, SMALL),
    st.tuples(st.just("redeliver all"), SMALL),
    st.tuples(st.just("unwritable"), SMALL),
    st.tuples(st.just("writable"), SMALL),
    st.tuples(st.just("lose")),
    st.tuples(st.just("seek"), st.integers(0, 40)),
)


class Client:
    """What a client knows of its consumer."""

    def __init__(self, consumer: ServedConsumer, link: RecordingLink) -> None:
        self.consumer, self.link = consumer, link
        self.credit = 0
        self.last = -1
        """Number of the last unit since everything was delivered again; of one active consumer."""
        self.held: list[int] = []


class Model:
    """A subscription of one type, its clients, and what they have acknowledged."""

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.source = EntrySource(batch_units=4)
        self.subscription = make_subscription(self.source, span=60)
        self.clients: list[Client] = []
        self.made = 0
        self.begin = 0
        self.acknowledged: set[int] = set()
        """Numbers of the messages that are acknowledged."""
        self.nacks: dict[int, int] = {}
        """How often each unit was asked for again."""
        self.unordered: set[int] = set()
        """Units that were asked for again and were not delivered since: they may come in any order."""
        self.active: ServedConsumer | None = None

    @property
    def is_shared(self) -> bool:
        return self.kind in (Types.Shared, Types.Key_Shared)

    def units(self) -> dict[int, int]:
        """Return the number of messages of each unit, by its number."""
        found, number = {}, 0
        for size in self.source.sizes:
            found[number] = max(1, size)
            number += max(1, size)
        return found

    def open_messages(self, number: int) -> list[int]:
        """Return the indexes of a unit's messages that are to be delivered."""
        count = self.units()[number]
        return [index for index in range(count) if number + index not in self.acknowledged and number + index >= self.begin]

    # --- what comes -------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check everything that was sent to the clients."""
        active = getattr(self.subscription._dispatcher, "active", None)
        if active is not self.active:
            self.active = active
            for client in self.clients:
                client.held, client.last = [], -1
        for client in list(self.clients):
            for command in client.link.take():
                if command.type == BaseCommand.CLOSE_CONSUMER:
                    self.clients.remove(client)
                elif command.type == BaseCommand.MESSAGE:
                    assert client in self.clients, "a closed consumer got a message"
                    self.check(client, command)

    def check(self, client: Client, command: BaseCommand) -> None:
        message = command.message
        number = message.message_id.entryId
        count = self.units()[number]
        wanted = self.open_messages(number)
        masked = ids.from_words(message.ack_set) if message.ack_set else ids.full_mask(count)
        assert [index for index in range(count) if masked >> index & 1] == wanted, "other messages of the batch are to come"
        assert client.credit > 0, "delivered without permits"
        client.credit -= len(wanted)
        assert not any(number in other.held for other in self.clients), "it is at a consumer already"
        if self.is_shared:
            assert message.redelivery_count == self.nacks.get(number, 0)
        else:
            assert message.redelivery_count == 0
            assert client.consumer is self.active
            assert number > client.last
            between = [each for each in self.units() if client.last < each < number]
            assert not [each for each in between if self.open_messages(each)], "a message was left out"
            client.last = number
        if self.kind == Types.Key_Shared:
            self.check_key(client, number)
        self.unordered.discard(number)
        client.held.append(number)

    def check_key(self, client: Client, number: int) -> None:
        held = {each for other in self.clients for each in other.held}
        for other in self.clients:
            assert other is client or not any(key_of(each) == key_of(number) for each in other.held), "a key is at two consumers"
        earlier = [each for each in self.units() if each < number and key_of(each) == key_of(number)]
        missed = [each for each in earlier if self.open_messages(each) and each not in held and each not in self.unordered]
        assert not missed, f"{missed} of the key come before {number}"

    # --- what clients do --------------------------------------------------------------------------------------------

    async def apply(self, operation: tuple[Any, ...]) -> None:
        name, *arguments = operation
        if name == "store":
            self.source.store(*arguments[0])
        elif name == "join":
            self.join()
        elif name == "lose":
            self.lose()
        elif name == "seek":
            await self.seek(arguments[0])
        elif self.clients:
            client = self.clients[arguments[0] % len(self.clients)]
            await self.use(name, client, *arguments[1:])

    def join(self) -> None:
        self.made += 1
        link = RecordingLink(f"client:{self.made}")
        client = Client(make_consumer(self.made, link), link)
        try:
            self.subscription.add(self.kind, client.consumer)
        except RequestRefused:
            assert self.kind == Types.Exclusive
            assert self.clients
        else:
            self.clients.append(client)
            self.subscription.announce(client.consumer)

    async def use(self, name: str, client: Client, *arguments: int) -> None:
        subscription, consumer = self.subscription, client.consumer
        if name == "leave":
            self.look()
            self.clients.remove(client)
            subscription.remove(consumer)
            if not self.clients:
                await self.reopen()
        elif name == "flow":
            client.credit += arguments[0]
            consumer.grant(arguments[0])
        elif name == "redeliver all":
            self.rewind(client, client.held)
            subscription.redeliver(consumer, [], None)
        elif name == "unwritable":
            client.link.is_writable = False
        elif name == "writable":
            client.link.is_writable = True
        elif name == "ack number":
            if arguments[0] in self.units() and subscription.feed.find(arguments[0]) is not None:
                self.acknowledge(client, arguments[0], None)
        elif client.held:
            self.settle_one(name, client, client.held[arguments[0] % len(client.held)], *arguments[1:])
        subscription.dispatch()

    def settle_one(self, name: str, client: Client, number: int, *arguments: int) -> None:
        if name == "ack":
            self.acknowledge(client, number, None)
        elif name == "ack indexes":
            self.acknowledge(client, number, arguments[0])
        elif name == "nack":
            self.rewind(client, [number] if self.is_shared else client.held)
            self.subscription.redeliver(client.consumer, [message_id(number)], None)
        elif name == "cumulative":
            self.subscription.acknowledge_to(message_id(number), client.consumer)
            if not self.is_shared:
                end = number + self.units()[number]
                self.acknowledged |= set(range(end))
                client.held = [each for each in client.held if each > number]

    def acknowledge(self, client: Client, number: int, left: int | None) -> None:
        """Acknowledge a unit, or the messages of it whose bits are 0 in `left`."""
        count = self.units()[number]
        if left is not None:
            left &= ids.full_mask(count)
        words = () if not left else tuple(ids.to_words(left))
        if left and count == 1:
            return
        self.subscription.acknowledge([message_id(number, words)])
        self.acknowledged |= {number + index for index in range(count) if not (left or 0) >> index & 1}
        if not self.open_messages(number):
            for other in self.clients:
                other.held = [each for each in other.held if each != number]

    def rewind(self, client: Client, numbers: list[int]) -> None:
        """Take note that units are to be delivered again."""
        for number in list(numbers):
            self.nacks[number] = self.nacks.get(number, 0) + 1
            self.unordered.add(number)
            client.held.remove(number)
        client.last = -1

    # --- ends -------------------------------------------------------------------------------------------------------

    async def reopen(self) -> None:
        """End the subscription that has no consumers, and open it again, as the server does."""
        self.subscription.end()
        await self.subscription.feed.detach()
        self.begin_anew(self.source.resume())
        self.subscription = make_subscription(self.source, span=60)

    def lose(self) -> None:
        """Lose the source; `recover` attaches another one."""
        self.source.lost.set()

    async def recover(self) -> None:
        """Attach a source again if it was lost."""
        if not self.subscription.feed.is_held:
            self.look()
            assert not self.clients, "a client still has messages that do not count"
            self.begin_anew(self.source.resume())
            self.subscription.feed.attach(self.source)

    def begin_anew(self, source: EntrySource) -> None:
        self.source = source
        self.acknowledged = set(range(source.committed))
        self.nacks, self.unordered = {}, set()

    async def seek(self, number: int) -> None:
        if not self.subscription.feed.is_held:
            return
        self.look()
        self.begin = min(number, self.source.end)
        await self.subscription.seek((self.begin,))
        self.look()
        assert not self.clients
        self.acknowledged, self.nacks, self.unordered = set(), {}, set()

    async def finish(self) -> None:
        """Everything that is not acknowledged comes."""
        for _ in range(400):
            if not self.clients:
                self.join()
            for client in self.clients:
                client.link.is_writable = True
                if client.credit < 50:
                    client.credit += 50
                    client.consumer.grant(50)
            self.subscription.dispatch()
            await settle()
            self.look()
            for client in self.clients:
                for number in list(client.held):
                    self.acknowledge(client, number, None)
            if not any(self.open_messages(number) for number in self.units()):
                break
        missing = [number for number in self.units() if self.open_messages(number)]
        assert not missing, "messages never came"
        dispatcher: Any = self.subscription._dispatcher
        assert not any(client.consumer.out for client in self.clients)
        if self.kind == Types.Key_Shared:
            assert not dispatcher._waiting
            assert not dispatcher._holders
            assert not dispatcher._slots
            assert dispatcher._waiting_count == 0
        await self.subscription.feed.detach()


@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Failover, Types.Shared, Types.Key_Shared])
@settings(max_examples=60, deadline=None)
@given(operations=st.lists(OPERATIONS, min_size=5, max_size=40))
def test_a_subscription_keeps_what_a_broker_promises(kind: int, operations: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        model = Model(kind)
        await model.apply(("store", [2, 1, 5, 2, 0, 0, 0, 1, 1, 2, 5]))
        await model.apply(("join",))
        await model.apply(("flow", 0, 5))
        for operation in operations:
            await settle()
            model.look()
            await model.apply(operation)
            model.look()
            await settle()
            await model.recover()
        await settle()
        await model.recover()
        await model.finish()

    asyncio.run(run())


# --- states ---------------------------------------------------------------------------------------------------------------


async def test_states_of_a_seek():
    source = EntrySource()
    source.store(1, 1, 1)
    subscription = make_subscription(source)
    consumer, link = make_consumer(1), None
    link = consumer.link
    subscription.add(Types.Exclusive, consumer)
    consumer.grant(10)
    await until(lambda: bool(subscription.dispatch() or link.commands))
    seek = asyncio.ensure_future(subscription.seek((0,)))
    await asyncio.sleep(0)
    assert subscription.state is SubscriptionState.MOVING
    assert consumer.state is ServedConsumerState.CLOSED
    with pytest.raises(RequestRefused):
        await subscription.seek((1,))
    await seek
    assert subscription.state is SubscriptionState.OPEN
    assert link.take()[-1].type == BaseCommand.CLOSE_CONSUMER
    subscription.end()
    assert subscription.state is SubscriptionState.ENDED
    with pytest.raises(RequestRefused):
        await subscription.seek((1,))
    await subscription.feed.detach()
    assert not link.commands


async def test_a_seek_that_fails_leaves_the_subscription_open():
    source = EntrySource()
    source.store(1, 1)
    subscription = make_subscription(source)

    async def fail(position):
        raise LaneRevoked("gone")

    source.seek = fail  # type: ignore[method-assign]
    with pytest.raises(LaneRevoked):
        await subscription.seek((1,))
    assert subscription.state is SubscriptionState.OPEN
    await subscription.feed.detach()


async def test_types_and_exclusive_consumers_are_checked():
    subscription = make_subscription(EntrySource())
    subscription.add(Types.Shared, make_consumer(1))
    for kind in (Types.Exclusive, Types.Failover, Types.Key_Shared):
        with pytest.raises(RequestRefused):
            subscription.add(kind, make_consumer(2))
    subscription.add(Types.Shared, make_consumer(2))
    for consumer in list(subscription.consumers):
        subscription.remove(consumer)
    subscription.add(Types.Key_Shared, make_consumer(3))
    with pytest.raises(RequestRefused):
        subscription.add(Types.Key_Shared, make_consumer(4, ranges=((0, 10),)))
    await subscription.feed.detach()


async def test_failover_tells_who_is_active():
    source = EntrySource()
    subscription = make_subscription(source)
    consumers = [make_consumer(number) for number in range(4)]
    told: dict[int, bool] = {}

    def look() -> None:
        for each in consumers:
            for command in each.link.take():
                told[each.id] = command.active_consumer_change.is_active

    for each in consumers:
        subscription.add(Types.Failover, each)
        subscription.announce(each)
        subscription.grant(each, 1)
        look()
        assert sum(told.values()) == 1
    active = next(each for each in consumers if told[each.id])
    subscription.remove(active)
    look()
    told.pop(active.id)
    assert sum(told.values()) == 1
    source.lost.set()
    await settle()
    commands = [command.type for each in consumers for command in each.link.take()]
    assert commands.count(BaseCommand.CLOSE_CONSUMER) == 3
    await subscription.feed.detach()


async def test_failover_tells_a_consumer_once_its_client_asks_for_messages():
    subscription = make_subscription(EntrySource())
    first, second = make_consumer(1), make_consumer(2)
    for each in (first, second):
        subscription.add(Types.Failover, each)
        subscription.announce(each)
        assert each.link.take() == [], "a client that has not handled the response to SUBSCRIBE may drop what follows"
    told: dict[int, list[bool]] = {1: [], 2: []}
    for each in (second, first, second, first):
        subscription.grant(each, 1)
        told[each.id] += [command.active_consumer_change.is_active for command in each.link.take()]
    assert sorted(told.values()) == [[False], [True]]
    await subscription.feed.detach()


async def test_failover_tells_a_consumer_that_asks_for_no_messages(monkeypatch):
    monkeypatch.setattr(subscriptions, "NOTE_S", 0.01)
    subscription = make_subscription(EntrySource())
    consumer = make_consumer(1)
    subscription.add(Types.Failover, consumer)
    subscription.announce(consumer)
    while not consumer.link.commands:
        await asyncio.sleep(0)
    assert [command.active_consumer_change.is_active for command in consumer.link.take()] == [True]
    await subscription.feed.detach()


async def test_an_exclusive_subscription_is_refused_while_its_client_lives(monkeypatch):
    monkeypatch.setattr(connections, "PROBE_S", 0.5)
    async with serving() as served:
        first, second, third = [await served.connect() for _ in range(3)]
        await first.produce()
        await first.subscribe()
        assert (await second.subscribe()).error == codes.CONSUMER_BUSY
        first.silent = True
        second.send(second.subscribe_frame(50))
        third.send(third.subscribe_frame(51))
        await second.ping()
        assert (await third.subscribe(7, subscription="other")).request_id, "others wait for the one that is asked"
        answers = [await second.answer(50), await third.answer(51)]
        assert sorted(getattr(each, "error", 0) for each in answers) == [0, codes.CONSUMER_BUSY]
        winner = second if not hasattr(answers[0], "error") else third
        winner.send(client_commands.flow(1, 10))
        await winner.produce(8)
        await winner.store(b"x", producer=8)
        assert await winner.messages(1) == [b"x"]


async def test_a_consumer_that_closes_while_another_asks_for_its_place():
    async with serving() as served:
        first, second = await served.connect(), await served.connect()
        await first.produce()
        await first.store(b"x")
        for _ in range(5):
            await first.subscribe()
            first.silent = True
            second.send(second.subscribe_frame(second_request := second.number()))
            await second.ping()
            first.send(client_commands.close_consumer(first.number(), 1))
            await second.answer(second_request)
            second.send(client_commands.flow(1, 10))
            assert await second.messages(1) == [b"x"]
            second.send(client_commands.close_consumer(closing := second.number(), 1))
            await second.answer(closing)
            first.silent = False


async def test_seek_closes_the_consumers_then_answers():
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        stored = await client.store(b"1", b"2", b"3")
        await client.subscribe(permits=10)
        await client.messages(3)
        client.ack(*stored, request=60)
        await client.answer(60)
        client.send(client_commands.seek(61, 1, to=stored[1]))
        assert (await client.next()).type == BaseCommand.CLOSE_CONSUMER
        assert (await client.next()).type == BaseCommand.SUCCESS
        await client.subscribe(permits=10)
        assert await client.messages(2) == [b"2", b"3"]


async def test_a_reader_after_the_end_begins_at_the_end():
    """A client may name an id of an earlier topic of this name."""
    async with serving() as served:
        client = await served.connect()
        await client.produce()
        await client.store(b"1")
        await client.subscribe(durable=False, start_message_id=message_id(5000), permits=10)
        await client.store(b"2")
        assert await client.messages(1) == [b"2"]


async def test_a_lost_connection_gives_its_messages_to_others_uncounted():
    async with serving() as served:
        first, second = await served.connect(), await served.connect()
        await second.produce()
        await first.subscribe(subType=Types.Shared, permits=10)
        await second.store(b"1", b"2")
        assert await first.messages(2) == [b"1", b"2"]
        first.send(client_commands.redeliver(1, [message_id(0)], None))
        assert (await first.of(BaseCommand.MESSAGE)).redelivery_count == 1
        await second.subscribe(subType=Types.Shared, permits=10)
        await first.close()
        counts = {each.message_id.entryId: each.redelivery_count for each in [await second.of(BaseCommand.MESSAGE) for _ in "12"]}
        assert counts == {0: 1, 1: 0}


async def test_permits_without_end_are_bounded():
    consumer = make_consumer(1)
    for _ in range(10):
        consumer.grant((1 << 32) - 1)
    assert consumer.permits < 1 << 32


def test_the_key_of_a_test_is_that_of_its_number():
    assert key_of(3) == key_of(8)
    assert delivered([]) == []
