"""Two real brokers of one cluster: redirects, topics that move to the other broker, and a broker that is killed under a route."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.errors import Failure, ServerRefused
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.connection.connection import Connection
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire.names import TopicName, parse_topic
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, CommandLookupTopicResponse, MessageMetadata
from tests.kit.gateway import GatewayProcess
from tests.kit.pulsar_cluster import CLUSTER, Broker, PulsarCluster
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import numbers

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(600)]  # four servers are started one after the other

ONE_BUNDLE = {"bundles": {"boundaries": ["0x00000000", "0xffffffff"], "numBundles": 1}}
BUNDLE = "0x00000000_0xffffffff"


class Brokers:
    """The cluster, with operations of the tests on it: the owner of a topic, and moves of a topic."""

    def __init__(self, cluster: PulsarCluster) -> None:
        self.cluster = cluster
        self.admins = [Admin(broker.admin_url, 30.0) for broker in cluster.brokers]

    async def namespace(self, owner: Broker | None = None) -> str:
        """A new namespace all topics of which one broker has."""
        name = f"public/n-{uuid4().hex[:8]}"
        await self.admins[0].call("PUT", f"/namespaces/{name}", ONE_BUNDLE)
        if owner is not None:
            await self.admins[0].create(parse_topic(f"persistent://{name}/first"), 0)  # now a broker owns the namespace
            await self.give(name, owner)
        return name

    async def topic(self, owner: Broker, partitions: int = 0) -> TopicName:
        topic = parse_topic(f"persistent://{await self.namespace(owner)}/t")
        await self.admins[0].create(topic, partitions)
        return topic

    async def owner(self, namespace: str) -> Broker:
        """Return the broker that owns the topic; wait until one does."""
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while True:
                for broker in self.cluster.brokers:
                    if broker.server.running and f"{namespace}/{BUNDLE}" in await self._owned(broker):
                        return broker
                await asyncio.sleep(0.05)

    async def give(self, namespace: str, to: Broker) -> None:
        """Unload it to this broker: again where another was given it, as happens on a busy machine when clients ask meanwhile.

        Brokers that both want it at that moment refuse what is asked, with status 500 and a failure that may pass.
        """
        path = f"/namespaces/{namespace}/{BUNDLE}/unload?destinationBroker={to.id}"
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while await self.owner(namespace) is not to:
                await self.insisting("PUT", path)
                # No broker owns the namespace until a client requests it.
                await self.insisting("GET", f"/persistent/{namespace}/first/stats")

    async def insisting(self, method: str, path: str) -> None:
        """A call, again until it is not refused for the moment."""
        while True:
            try:
                await self.admins[0].call(method, path)
            except ServerRefused as refused:
                if refused.failure is not Failure.RETRY:
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    def other(self, broker: Broker) -> Broker:
        return next(one for one in self.cluster.brokers if one is not broker)

    def asking(self, broker: Broker) -> Admin:
        return self.admins[self.cluster.brokers.index(broker)]

    async def _owned(self, broker: Broker) -> dict[str, Any]:
        return dict(await self.asking(broker).call("GET", f"/brokers/{CLUSTER}/{broker.id}/ownedNamespaces"))

    async def close(self) -> None:
        for admin in self.admins:
            await admin.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[PulsarCluster]:
    with PulsarCluster() as cluster:
        yield cluster


@pytest_asyncio.fixture
async def brokers(cluster: PulsarCluster) -> AsyncIterator[Brokers]:
    for broker in cluster.brokers:
        if not broker.server.running:
            await asyncio.to_thread(broker.server.start)
    brokers = Brokers(cluster)
    yield brokers
    await brokers.close()


@pytest_asyncio.fixture
async def client(cluster: PulsarCluster) -> AsyncIterator[ClusterClient]:
    client = client_of(cluster.service_url)
    yield client
    await client.close()


class Numbered:
    """Checks received numbers: each arrives, and a repetition continues in order from the repeated number."""

    def __init__(self) -> None:
        self.next = 0
        self.wrong: list[str] = []
        self.most = 0

    def see(self, found: list[int]) -> None:
        for number in found:
            if number > self.next:
                self.wrong.append(f"{number} where {self.next} was due")
            self.next = number + 1
            self.most = max(self.most, self.next)


async def read_until(consumer: EntryConsumer, count: int, seen: Numbered) -> None:
    while seen.most < count or seen.next < seen.most:
        entry = await consumer.receive()
        seen.see(numbers([entry]))
        consumer.acknowledge_up_to(entry.id)


# --- redirects --------------------------------------------------------------------------------------------------------


async def test_admin_calls_for_topics_of_the_other_broker(brokers):
    for owner in brokers.cluster.brokers:
        topic = await brokers.topic(owner, partitions=2)
        other = brokers.other(owner)
        part = topic.partition(1)
        path = f"persistent/{topic.tenant}/{topic.namespace}/{part.local}/subscription/raw"
        status, _ = brokers.cluster.admin("PUT", path, broker=brokers.cluster.brokers.index(other))
        assert status == 307, "the other broker does not answer itself"
        admin = brokers.asking(other)
        await admin.create_subscription(topic, "s")
        assert await admin.subscriptions(part) == ["s"]
        await admin.grow(topic, 3)
        assert (await admin.stats(topic, 3)).backlog == {"s": 0}
        assert set(await admin.mark_delete_positions(part)) == {"s"}
        assert (await admin.last_id(part))[1] == -1
        await admin.skip_all(part, "s")
        await admin.unload(part)
        await admin.delete_subscription(topic, "s")
        assert await admin.delete(topic, force=True)


async def test_a_lookup_is_redirected_to_the_leader_and_back(brokers, monkeypatch):
    """A broker that is not the leader redirects the first lookup to the leader, which may redirect it back as authoritative."""
    answers: list[CommandLookupTopicResponse] = []
    request = Connection.request

    async def recorded(self: Connection, make: Any, kind: int, *rest: Any) -> Any:
        answer = await request(self, make, kind, *rest)
        if kind == BaseCommand.LOOKUP_RESPONSE:
            answers.append(answer)
        return answer

    monkeypatch.setattr(Connection, "request", recorded)
    leader_id = (await brokers.admins[0].call("GET", "/brokers/leaderBroker"))["brokerId"]
    leader = next(broker for broker in brokers.cluster.brokers if broker.id == leader_id)
    client = client_of(brokers.other(leader).service_url)
    for number in range(4):
        name = f"persistent://{await brokers.namespace()}/t"
        answers.clear()
        producer = client.producer(name)
        await asyncio.wait_for(producer.send(MessageMetadata(), b"%d" % number), SERVER_PATIENCE_S)
        first, *_, last = answers
        assert first.response == CommandLookupTopicResponse.Redirect
        assert first.brokerServiceUrl == leader.service_url
        assert last.response == CommandLookupTopicResponse.Connect
        assert not last.proxy_through_service_url
        await producer.close()
    await client.close()


# --- topics that change hands -----------------------------------------------------------------------------------------


async def test_a_topic_in_use_moves_to_the_other_broker(brokers, client):
    first, second = brokers.cluster.brokers
    topic = await brokers.topic(first)
    consumer = await client.consumer(str(topic), Subscription("s", Types.Failover))
    producer = client.producer(str(topic))
    seen, sent, count = Numbered(), [], 0
    moving = True

    async def produce() -> None:
        nonlocal count
        while moving:
            sent.append(producer.send(MessageMetadata(), b"%d" % count))
            count += 1
            await asyncio.sleep(0.001)

    async def read() -> None:
        while True:
            await read_until(consumer, seen.most + 1, seen)

    producing, reading = asyncio.create_task(produce()), asyncio.create_task(read())
    async with asyncio.timeout(SERVER_PATIENCE_S):
        for owner in (second, first, second):
            before = seen.most
            await brokers.give(f"{topic.tenant}/{topic.namespace}", owner)
            while seen.most <= before + 100:  # messages pass through the new owner
                await asyncio.sleep(0.01)
        moving = False
        await producing
        await asyncio.gather(*sent)
        reading.cancel()
        await asyncio.wait([reading])
        await read_until(consumer, count, seen)
    assert not seen.wrong
    assert seen.most == count > 300
    await producer.close()
    await consumer.close()


async def write(client: ClusterClient, topic: TopicName, payload: bytes) -> None:
    producer = client.producer(str(topic))
    await asyncio.wait_for(producer.send(MessageMetadata(), payload), SERVER_PATIENCE_S)
    await producer.close()


async def ledgers(admin: Admin, topic: TopicName) -> set[int]:
    return {int(one["ledgerId"]) for one in (await admin.internal_stats(topic))["ledgers"]}


async def test_a_route_continues_after_its_broker_was_killed(brokers, client, tmp_path):
    """The killed broker owns source and target; the other one takes over both while messages arrive.

    The target's subscription is made with it, so the ledger that the kill closes is kept for the judge. A topic that nobody
    subscribed to shows that the broker deletes such ledgers. The REST interface is asked at the killed broker first.
    """
    staying, killed = brokers.cluster.brokers
    admin_url = f"{killed.admin_url},{staying.admin_url}"
    cluster = {"system": "pulsar", "service_url": brokers.cluster.service_url, "admin_url": admin_url}
    admin = Admin(admin_url, SERVER_PATIENCE_S)
    source, target = await brokers.topic(killed, partitions=1), await brokers.topic(killed, partitions=1)
    unread = await brokers.topic(killed)
    await write(client, unread, b"lost")
    first_ledger = await ledgers(admin, unread)
    producer = client.producer(str(source.partition(0)))
    sent, count = [], 0
    stop = asyncio.Event()

    async def produce() -> None:
        nonlocal count
        while not stop.is_set():
            sent.append(producer.send(MessageMetadata(), b"%d" % count))
            count += 1
            await asyncio.sleep(0.002)

    route = {
        "name": "r",
        "from": {"cluster": "p", "topic": str(source), "group": "g"},
        "to": {"cluster": "p", "topic": str(target), "create": {"subscriptions": ["judge"]}},
    }
    with GatewayProcess({"clusters": {"p": cluster}, "routes": [route]}, tmp_path) as gateway:
        producing = asyncio.create_task(produce())
        await asyncio.to_thread(gateway.wait_stored, 300, SERVER_PATIENCE_S)
        await asyncio.to_thread(killed.server.kill)
        stored = gateway.route()["stored"]
        await asyncio.to_thread(gateway.wait_stored, stored + 500, SERVER_PATIENCE_S)
        for topic in (source, target):
            assert await brokers.owner(f"{topic.tenant}/{topic.namespace}") is staying
        stop.set()
        await producing
        await write(client, unread, b"kept")
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while first_ledger & await ledgers(admin, unread):
                await asyncio.sleep(0.1)
        async with asyncio.timeout(SERVER_PATIENCE_S):
            await asyncio.gather(*sent)
        consumer = await client.consumer(str(target.partition(0)), Subscription("judge", Types.Failover))
        seen = Numbered()
        async with asyncio.timeout(SERVER_PATIENCE_S):
            await read_until(consumer, count, seen)
        assert not seen.wrong, gateway.log[-3000:]
        assert seen.most == count
        await consumer.close()
    await admin.close()
    await producer.close()
