"""Subscriptions created with a topic, or retention, keep the messages of a real topic; a topic without either is unprotected."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio

from mqbridge.adapter import reading
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.operations import GroupMaker, ReportsUnprotected
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError
from mqbridge.message import Batch, Message, Share
from mqbridge.pulsar.adapter.cluster import Pulsar
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.admin.admin import Admin
from mqbridge.pulsar.client.admin.admin_paths import path_of
from mqbridge.pulsar.wire.names import TopicName, parse_topic
from tests.kit.pulsar import Pulsar as Server
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster


@pytest_asyncio.fixture
async def cluster(pulsar: Server) -> AsyncIterator[Pulsar]:
    cluster = ADAPTER.make_cluster("p", ADAPTER.cluster_model(service_url=pulsar.service_url, admin_url=pulsar.admin_url))
    assert isinstance(cluster, Pulsar)
    await cluster.connect()
    yield cluster
    await cluster.close()


@pytest_asyncio.fixture
async def admin(pulsar: Server) -> AsyncIterator[Admin]:
    admin = Admin(pulsar.admin_url, 20.0)
    yield admin
    await admin.close()


@pytest.fixture
def namespace(pulsar: Server) -> str:
    return pulsar.create_namespace("acme", f"keeping-{uuid4().hex[:6]}")


async def send(cluster: Pulsar, topic: str, *numbers: int) -> None:
    outbound = await cluster.outbound(OutboundSpec(topic))
    for partition in range(outbound.partitions):
        receipt = await outbound.send(partition, Share(Batch.of([Message(b"%d" % number) for number in numbers])))
        assert not receipt.failures
    await outbound.close()


async def close_ledgers(admin: Admin, topic: TopicName) -> None:
    """Close the ledgers like a rollover, and let the broker delete those that it does not need, as it does every two minutes."""
    await admin.unload(topic)
    await admin.stats(topic)
    await admin.call("POST", f"{path_of(topic)}/trim")


async def first_entry(admin: Admin, topic: TopicName) -> int:
    """Return the id of the topic's first ledger."""
    return int((await admin.internal_stats(topic))["ledgers"][0]["ledgerId"])


async def test_a_topic_created_with_a_subscription_keeps_its_messages(cluster, admin, namespace):
    """After their ledgers are closed, both topics are written to again; only the one without a subscription loses messages."""
    kept, lost = (f"persistent://{namespace}/{name}" for name in ("kept", "lost"))
    for topic in (kept, lost):
        await cluster.create(topic, 1)
    operations = cluster.operations
    assert isinstance(operations, GroupMaker)
    assert isinstance(operations, ReportsUnprotected)
    await operations.create_group(kept, "billing")
    assert "has no subscription and no retention" in (await operations.why_unprotected(lost) or "")
    assert await operations.why_unprotected(kept) is None
    for topic in (kept, lost):
        await send(cluster, topic, 1, 2, 3)
    had = await first_entry(admin, parse_topic(lost).partition(0))
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await first_entry(admin, parse_topic(lost).partition(0)) == had:
            for topic in (kept, lost):
                await close_ledgers(admin, parse_topic(topic).partition(0))
    for topic in (kept, lost):
        await send(cluster, topic, 4)
    assert await read(cluster, kept, 4) == [1, 2, 3, 4]
    assert await read(cluster, lost, 1) == [4]


async def read(cluster: Pulsar, topic: str, count: int) -> list[int]:
    inbound = await cluster.inbound(InboundSpec((topic,), "billing"))
    found: list[int] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        lane = await anext(inbound.lanes())
        while len(found) < count:
            batch = await lane.receive()
            found += [int(message.payload or b"") for message in batch.messages]
            lane.acknowledge(batch)
    await inbound.close()
    return found


async def test_the_group_is_created_where_missing_and_not_moved_elsewhere(cluster, admin, namespace):
    topic = f"persistent://{namespace}/t"
    await cluster.create(topic, 2)
    await cluster.operations.create_group(topic, "g")
    await send(cluster, topic, 1, 2)
    await admin.skip_all(parse_topic(topic).partition(0), "g")
    await admin.delete_subscription(parse_topic(topic).partition(1), "g")
    assert f"{topic} (partition 1) has no subscription" in await cluster.operations.why_unprotected(topic)
    await cluster.operations.create_group(topic, "g")
    assert await cluster.operations.backlog(topic, "g") == {"0": 0, "1": 1}, "of entries: it begins at the beginning"
    assert await cluster.operations.why_unprotected(topic) is None


@pytest.mark.parametrize("partitions", [0, 2])
async def test_every_retention_policy_is_checked(cluster, admin, namespace, partitions):
    topic = f"persistent://{namespace}/t"

    async def warnings_of(group: str | None = None, planned: tuple[str, ...] = ()) -> list[str]:
        return await cluster.operations.warnings(topic, group, planned)

    for exists in (False, True):  # the policies of the namespace apply to a topic that does not exist yet
        if exists:
            await admin.create(parse_topic(topic), partitions)
        assert "no subscription and no retention" in await cluster.operations.why_unprotected(topic)
        assert await cluster.operations.why_unprotected(topic, ("billing",)) is None
        assert await warnings_of() == await warnings_of(planned=("billing",)) == []
        await admin.set_retention(namespace, 90, 512)
        assert await cluster.operations.why_unprotected(topic) is None
        assert "deletes messages beyond 90 minutes or 512 MB" in (await warnings_of())[0]
        await admin.set_retention(namespace, -1, -1)
        assert await warnings_of() == []
        await admin.set_policy(namespace, "messageTTL", 60)
        (warning,) = await warnings_of()
        assert "a subscription loses messages that it does not consume within 60 s" in warning
        (warning,) = await warnings_of("mine")
        assert "subscription 'mine' loses messages that it does not consume within 60 s" in warning
        await admin.set_policy(namespace, "messageTTL", 0)
        quota: dict[str, Any] = {"limitSize": 1 << 20, "limitTime": -1, "policy": "consumer_backlog_eviction"}
        await admin.set_policy(namespace, "backlogQuota", quota)
        (warning,) = await warnings_of("mine")
        assert "the oldest messages of subscription 'mine' are deleted unread" in warning
        assert len(await warnings_of()) == 1
        await admin.set_policy(namespace, "backlogQuota", quota | {"policy": "producer_request_hold"})
        assert await warnings_of("mine") == []
        await admin.set_policy(namespace, "subscriptionExpirationTime", 5)
        (warning,) = await warnings_of("mine")
        assert "subscription 'mine' is deleted, with its unread messages, when it had no consumer for 5 minutes" in warning
        assert len(await warnings_of()) == 1
        await admin.set_policy(namespace, "subscriptionExpirationTime", 0)
        await admin.set_retention(namespace, 0, 0)


async def test_the_subscription_of_a_reader_retains_nothing(cluster, client, namespace):
    """A reader's subscription ends with its connection, so it must not hide that there is no other."""
    topic = f"persistent://{namespace}/t"
    await cluster.create(topic, 1)
    await send(cluster, topic, 1)
    batches = reading.read(cluster, topic, "0", (-1, -1, 0))
    await anext(batches)
    assert "no subscription and no retention" in await cluster.operations.why_unprotected(topic)
    await batches.aclose()


async def test_a_retention_that_cannot_be_checked_is_reported(pulsar, namespace):
    cluster = ADAPTER.make_cluster("p", ADAPTER.cluster_model(service_url=pulsar.service_url))
    await cluster.connect()
    (warning,) = await cluster.operations.warnings(f"persistent://{namespace}/t")
    assert warning.endswith("set admin_url of cluster 'p'")
    assert await cluster.operations.warnings(f"persistent://{namespace}/t", "g") == []
    assert await cluster.operations.why_unprotected(f"persistent://{namespace}/t") is None
    assert "is not persistent" in await cluster.operations.why_unprotected(f"non-persistent://{namespace}/t")
    (warning,) = await cluster.operations.warnings(f"non-persistent://{namespace}/t", "g")
    assert "is not persistent" in warning
    with pytest.raises(ClusterError, match="needs admin_url"):
        cluster.operations.check_create_group()
    with pytest.raises(ClusterError, match="needs admin_url"):
        await cluster.operations.create_group(f"persistent://{namespace}/t", "g")
    await cluster.close()
