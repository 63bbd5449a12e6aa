"""The connection to a real, deduplicating broker is cut at each frame of every kind of conversation, in both directions.

A conversation is held again and again, each time with the cut one frame later, until it ends without meeting it: so each of its
frames is lost once, and every run but the last is known to have been cut.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from uuid import uuid4

import pytest

from mqbridge.errors import ClusterError
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types, reader
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.library.topic_consumer import open_pattern_consumer
from mqbridge.pulsar.wire import ids, schemas
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import drain, numbers, payloads, send_all, take
from tests.pulsar.proxy import CuttingProxy

pytestmark = [pytest.mark.cluster, pytest.mark.thorough]

COUNT = 8
ALL = list(range(COUNT))
MOST_STEPS = 80
"""A conversation with more frames is in an endless loop."""


class Environment:
    """The topic and the clients of a conversation: `client` connects through the proxy, `direct` does not."""

    def __init__(self, pulsar: Pulsar, namespace: str, topic: str, client: ClusterClient, direct: ClusterClient) -> None:
        self.pulsar, self.namespace, self.topic, self.client, self.direct = pulsar, namespace, topic, client, direct

    async def fill(self) -> None:
        """Numbered entries, stored without a cut."""
        producer = self.direct.producer(self.topic)
        await send_all(producer, 0, COUNT)
        await producer.close()

    async def stored(self) -> list[int]:
        """What the topic holds, in order."""
        consumer = await self.direct.consumer(self.topic, reader(ids.EARLIEST))
        found = numbers(await drain(consumer))
        await consumer.close()
        return found

    async def has_backlog(self, name: str, kind: int = Types.Exclusive) -> bool:
        """Whether the subscription has anything that is not acknowledged."""
        consumer = await self.direct.consumer(self.topic, Subscription(name, kind))
        more = await consumer.has_more()
        await consumer.close()
        return more


async def confirmed(consumer: EntryConsumer) -> None:
    while True:
        try:
            await consumer.confirm_acks()
        except ClusterError:
            await asyncio.sleep(0.01)
        else:
            return


async def take_all(consumer: EntryConsumer, kind: int = Types.Exclusive) -> list[int]:
    """Receive and acknowledge until every number was received; return the numbers in the order of arrival."""
    seen: list[int] = []
    while len(set(seen)) < COUNT:
        entry = await consumer.receive()
        seen += numbers([entry])
        if kind == Types.Shared:
            consumer.acknowledge(entry.id)
        else:
            consumer.acknowledge_up_to(entry.id)
    return seen


# --- conversations ----------------------------------------------------------------------------------------------------


async def deliver(environment: Environment, kind: int) -> None:
    """Send messages, receive and acknowledge them, and close the consumer."""
    producer = environment.client.producer(environment.topic, ProducerSettings("me"))
    sent = [producer.send(MessageMetadata(), b"%d" % number) for number in ALL]
    consumer = await environment.client.consumer(environment.topic, Subscription("me", kind))
    seen = await take_all(consumer, kind)
    await asyncio.gather(*sent)
    await confirmed(consumer)
    await producer.close()
    await consumer.close()
    assert sorted(set(seen)) == ALL
    assert kind == Types.Shared or seen == ALL
    assert await environment.stored() == ALL, "stored once and in order"
    assert not await environment.has_backlog("me", kind), "all acknowledged"


async def exclusive(environment: Environment) -> None:
    await deliver(environment, Types.Exclusive)


async def shared(environment: Environment) -> None:
    await deliver(environment, Types.Shared)


async def seek(environment: Environment) -> None:
    """Seek to the beginning and into the middle: no entry from before the seek is received after it."""
    await environment.fill()
    consumer = await environment.client.consumer(environment.topic, Subscription("me", Types.Exclusive))
    entries = await take(consumer, 5)
    await consumer.seek(ids.EARLIEST)
    assert numbers(await take(consumer, COUNT)) == ALL
    await consumer.seek(entries[3].id)
    again = await take(consumer, COUNT - 3)
    assert numbers(again) == ALL[3:]
    consumer.acknowledge_up_to(again[-1].id)
    await confirmed(consumer)
    await consumer.close()
    assert not await environment.has_backlog("me")


async def redelivery(environment: Environment) -> None:
    """Unacknowledged entries are redelivered in order, and nothing else is."""
    await environment.fill()
    consumer = await environment.client.consumer(environment.topic, Subscription("me", Types.Exclusive))
    entries = await take(consumer, COUNT)
    consumer.acknowledge_up_to(entries[1].id)
    await confirmed(consumer)
    consumer.redeliver()
    assert await take_rest(consumer, ALL[2:]) == ALL[2:]
    await confirmed(consumer)
    await consumer.close()
    assert not await environment.has_backlog("me")


async def take_rest(consumer: EntryConsumer, wanted: list[int]) -> list[int]:
    seen: list[int] = []
    while set(seen) != set(wanted):
        entry = await consumer.receive()
        seen += numbers([entry])
        consumer.acknowledge_up_to(entry.id)
    return seen


async def refusal(environment: Environment) -> None:
    """Entries with a negative acknowledgement are redelivered until they are acknowledged."""
    await environment.fill()
    consumer = await environment.client.consumer(environment.topic, Subscription("me", Types.Shared))
    refused: set[int] = set()
    done: set[int] = set()
    while len(done) < COUNT:
        entry = await consumer.receive()
        (number,) = numbers([entry])
        if number % 2 and number not in refused:
            refused.add(number)
            consumer.negative_acknowledge(entry.id, 0.01)
        else:
            done.add(number)
            consumer.acknowledge(entry.id)
    await confirmed(consumer)
    await consumer.close()
    assert not await environment.has_backlog("me", Types.Shared)


async def reading(environment: Environment) -> None:
    """A reader receives every entry once, in order, and detects the end."""
    await environment.fill()
    consumer = await environment.client.consumer(environment.topic, reader(ids.EARLIEST))
    entries = await take(consumer, COUNT)
    assert numbers(entries) == ALL
    assert await consumer.last_id() == (entries[-1].ledger, entries[-1].entry)
    assert not await consumer.has_more()
    await consumer.close()


async def watching(environment: Environment) -> None:
    """Topics created while a pattern is watched are consumed, each from its first message."""
    name = environment.topic.rpartition("/")[2]
    pattern = f"{environment.namespace}/{name}.*"
    consumer = await open_pattern_consumer(environment.client, environment.namespace, pattern, Subscription("me"), refresh_s=0.5)
    await asyncio.to_thread(environment.pulsar.create_topic, f"{name}-more", namespace=environment.namespace)
    for topic, text in ((environment.topic, b"0"), (f"{environment.topic}-more", b"1")):
        producer = environment.direct.producer(topic)
        await producer.send(MessageMetadata(), text)
        await producer.close()
    found: set[bytes] = set()
    while found != {b"0", b"1"}:
        one, entry = await consumer.receive()
        found.update(payloads(entry))
        one.acknowledge_up_to(entry.id)
    await consumer.close()


async def schema(environment: Environment) -> None:
    """A schema is registered once, however often it is requested, and the messages contain its version."""
    text = schemas.STRING
    version = await environment.client.register_schema(environment.topic, text)
    registered = await environment.client.schema(environment.topic)
    assert registered is not None
    assert registered.version == version == bytes(8)
    producer = environment.client.producer(environment.topic, ProducerSettings("me", schema=text))
    await producer.send(MessageMetadata(), b"0")
    assert producer.schema_version == version
    await producer.close()
    consumer = await environment.client.consumer(environment.topic, Subscription("me", schema=text))
    (entry,) = await take(consumer, 1)
    assert entry.metadata.schema_version == version
    await consumer.close()


async def access(environment: Environment) -> None:
    """A producer with exclusive access keeps it over a cut; the next one, which waits for access, sends after it."""
    half = COUNT // 2
    first = environment.client.producer(environment.topic, ProducerSettings("first", access=pb.Exclusive))
    await send_all(first, 0, half)
    await first.close()
    second = environment.client.producer(environment.topic, ProducerSettings("second", access=pb.WaitForExclusive))
    await send_all(second, half, COUNT - half)
    assert first.topic_epoch is not None
    assert second.topic_epoch is not None
    assert first.topic_epoch < second.topic_epoch, "each time that it is given out it grows, also where the answer was lost"
    await second.close()
    assert await environment.stored() == ALL


CONVERSATIONS: dict[Callable[[Environment], Awaitable[None]], int] = {
    exclusive: 12,
    shared: 12,
    seek: 8,
    redelivery: 6,
    refusal: 8,
    reading: 6,
    watching: 6,
    schema: 8,
    access: 10,
}
"""The conversations, each with the minimum number of frames that it takes in either direction."""


@pytest.mark.parametrize("converse", CONVERSATIONS, ids=lambda converse: converse.__name__)
@pytest.mark.parametrize("answers", [False, True], ids=["commands", "answers"])
async def test_a_connection_cut_at_every_frame(pulsar, client, converse, answers):
    namespace = await asyncio.to_thread(pulsar.create_namespace, "acme", f"cuts-{uuid4().hex[:6]}")
    await asyncio.to_thread(pulsar.admin, "POST", f"namespaces/{namespace}/deduplication", True)
    async with CuttingProxy("127.0.0.1", pulsar.port) as proxy:
        for step in itertools.count(1):
            topic = await asyncio.to_thread(pulsar.create_topic, f"t-{step}", namespace=namespace)
            through = client_of(proxy.url)
            proxy.plan(step, answers)
            try:
                async with asyncio.timeout(SERVER_PATIENCE_S):
                    await converse(Environment(pulsar, namespace, topic, through, client))
            except BaseException as error:
                error.add_note(f"cut at step {step}")
                raise
            finally:
                await through.close()
            if not proxy.cuts:
                break
            assert step < MOST_STEPS
    assert step > CONVERSATIONS[converse], "each run before was cut"
