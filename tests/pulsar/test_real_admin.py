"""The REST client at a real broker."""

from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.errors import Failure, RequestTimeout, ServerRefused, Unreachable
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.kit.process import free_ports
from tests.pulsar.entries import numbers, take

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def admin(pulsar):
    admin = Admin(pulsar.admin_url, 20.0)
    yield admin
    await admin.close()


async def test_tenants_and_namespaces(admin):
    tenant = f"tenant-{uuid4().hex[:6]}"
    await admin.create_tenant(tenant, await admin.clusters())
    assert tenant in await admin.tenants()
    namespace = f"{tenant}/one"
    await admin.create_namespace(namespace)
    assert await admin.namespaces(tenant) == [namespace]
    assert namespace in await admin.namespaces()
    with pytest.raises(ServerRefused) as caught:
        await admin.create_namespace(namespace)
    assert (caught.value.code, caught.value.failure) == (409, Failure.REFUSED)
    await admin.delete_namespace(namespace)
    await admin.delete_tenant(tenant)
    assert tenant not in await admin.tenants()


async def test_policies(admin, pulsar):
    namespace = pulsar.create_namespace("acme", f"policies-{uuid4().hex[:6]}")
    await admin.set_policy(namespace, "deduplication", True)
    await admin.set_policy(namespace, "messageTTL", 3600)
    await admin.set_policy(namespace, "schemaCompatibilityStrategy", "FULL")
    await admin.set_retention(namespace, 60, -1)
    found = await admin.policies(namespace)
    assert (found["deduplicationEnabled"], found["message_ttl_in_seconds"]) == (True, 3600)
    assert found["schema_compatibility_strategy"] == "FULL"
    assert found["retention_policies"] == {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
    topic = parse_topic(pulsar.create_topic("t", namespace=namespace))
    await admin.set_topic_policy(topic, "deduplicationEnabled", False)


async def test_topics(admin, client, pulsar):
    namespace = pulsar.create_namespace("acme", f"topics-{uuid4().hex[:6]}")
    whole, parts = (parse_topic(f"persistent://{namespace}/{name}") for name in ("whole", "parts"))
    await admin.create(whole, 0)
    await admin.create(parts, 2)
    await admin.grow(parts, 3)
    assert await client.partitions(str(parts)) == 3
    assert await admin.partitioned_topics(namespace) == [str(parts)]
    assert sorted(await admin.topics(namespace)) == [*(str(parts.partition(index)) for index in range(3)), str(whole)]
    producer = client.producer(str(parts.partition(1)))
    receipt = await producer.send(MessageMetadata(publish_time=1_700_000_000_000), b"x")
    assert await admin.last_id(parts.partition(1)) == (receipt.ledger, receipt.entry)
    assert (await admin.last_id(parts.partition(0)))[1] == -1
    assert await admin.id_at(parts.partition(1), 1_600_000_000_000) == (receipt.ledger, receipt.entry)
    assert (await admin.stats(parts, 3)).messages_in == (await admin.stats(parts.partition(1))).messages_in == 1
    assert (await admin.internal_stats(parts.partition(1)))["entriesAddedCounter"] == 1
    await admin.unload(parts.partition(1))
    await producer.close()
    assert await admin.delete(parts, force=True)
    assert await admin.delete(whole)
    assert not await admin.delete(whole)
    assert await admin.topics(namespace) == []
    with pytest.raises(ServerRefused) as caught:
        await admin.stats(whole)
    assert (caught.value.code, caught.value.failure) == (404, Failure.FATAL)


async def test_subscriptions_and_their_positions(admin, client, subscribe, pulsar):
    topic = pulsar.take_topic()
    name = parse_topic(topic)
    producer = client.producer(topic)
    receipts = [await producer.send(MessageMetadata(publish_time=1_700_000_000_000 + n * 1000), b"%d" % n) for n in range(10)]
    positions = [(receipt.ledger, receipt.entry) for receipt in receipts]
    await admin.create_subscription(name, "end")
    await admin.create_subscription(name, "here / there", positions[4])
    assert await admin.subscriptions(name) == ["end", "here / there"]
    assert (await admin.stats(name)).backlog == {"end": 0, "here / there": 6}
    await admin.reset_to(name, "end", positions[7])
    consumer = await subscribe(topic, "end")
    assert numbers(await take(consumer, 3)) == [7, 8, 9]
    other = "here / there"
    await admin.reset_to_time(name, other, 1_700_000_008_000)
    assert (await admin.stats(name)).backlog[other] == 2
    await admin.reset_to(name, other, positions[0])
    await admin.skip(name, other, 3)
    assert (await admin.mark_delete_positions(name))[other] == positions[2]
    await admin.expire(name, other, 60)
    await admin.skip_all(name, other)
    assert (await admin.mark_delete_positions(name))[other] == positions[9]
    await admin.delete_subscription(name, other)
    with pytest.raises(ServerRefused):
        await admin.delete_subscription(name, "end")
    await consumer.close()  # otherwise it would create the subscription again
    await admin.delete_subscription(name, "end", force=True)
    assert await admin.subscriptions(name) == []
    await producer.close()


ODD_NAMES = ["plain", "a b", "a+b", "a/b", "a%2Fb", "50%", "50%zz", "%", "ü", "a?b#c", "a;b", "a\\b", " ", "a&b=c"]
"""Subscription names that differ in what URLs decode; some would be others after one more decoding."""


async def test_a_call_reaches_the_subscription_with_this_name_and_no_other(admin, client, pulsar):
    topic = pulsar.take_topic()
    name = parse_topic(topic)
    producer = client.producer(topic)
    receipts = [await producer.send(MessageMetadata(publish_time=1_700_000_000_000 + n * 1000), b"%d" % n) for n in range(4)]
    await producer.close()
    positions = [(receipt.ledger, receipt.entry) for receipt in receipts]
    expected: dict[str, tuple[int, int]] = {}

    async def check() -> None:
        assert await admin.subscriptions(name) == sorted(expected)
        assert await admin.mark_delete_positions(name) == expected
        assert (await admin.stats(name)).backlog == {sub: 3 - positions.index(at) for sub, at in expected.items()}

    for sub in ODD_NAMES:
        await admin.create_subscription(name, sub, positions[1])
        expected[sub] = positions[0]
        await check()
    for sub in ODD_NAMES:
        await admin.skip(name, sub, 1)
        expected[sub] = positions[1]
        await check()
    for sub in ODD_NAMES:
        await admin.skip_all(name, sub)
        expected[sub] = positions[3]
        await check()
    for sub in ODD_NAMES:
        await admin.reset_to(name, sub, positions[3])
        expected[sub] = positions[2]
        await check()
    for sub in ODD_NAMES:
        await admin.reset_to_time(name, sub, 1_700_000_001_000)
        expected[sub] = positions[0]
        await check()
    for sub in ODD_NAMES:
        await admin.delete_subscription(name, sub)
        del expected[sub]
        await check()


@pytest.mark.parametrize("part", ["a b", "a+b", "a%2Fb", "a%252Fb", "50%", "ü", "a?b#c", "a;b", "a\\b"])
async def test_a_topic_call_reaches_the_topic_with_this_name(admin, pulsar, part):
    namespace = pulsar.create_namespace("acme", f"odd-{uuid4().hex[:6]}")
    topic = parse_topic(f"persistent://{namespace}/{part}")
    await admin.create(topic, 0)
    await admin.create_subscription(topic, "a+b")
    assert await admin.topics(namespace) == [str(topic)]
    assert await admin.mark_delete_positions(topic) != {}
    assert await admin.delete(topic, force=True)
    assert await admin.topics(namespace) == []


async def test_a_terminated_topic(admin, pulsar):
    topic = parse_topic(pulsar.take_topic())
    await admin.terminate(topic)
    assert (await admin.internal_stats(topic))["state"] == "Terminated"


async def test_an_unreachable_rest_interface():
    (port,) = free_ports(1)
    nowhere = Admin(f"http://127.0.0.1:{port}", 1.0)
    with pytest.raises((Unreachable, RequestTimeout)):
        await nowhere.tenants()
    await nowhere.close()
