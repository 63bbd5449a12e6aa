"""Brokers of version 4.9: workarounds for features that they lack, or errors that name the missing feature.

The conformance suite runs against such brokers, too; these are the tests that it does not have.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.errors import Failure, RemoteProtocolError, ServerRefused
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter.cluster import RocketMQ as RocketMQCluster
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.client.admin.compat_v4 import LEVELS, delay_levels
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection import connection
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.library.pop import Popper
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import encode
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S
from tests.rocketmq.client.broker import A, B, refuses, scripted_client
from tests.rocketmq.client.broker import Cluster as Scripted

cluster_test = pytest.mark.cluster
DEFAULT_LEVELS_S = (1, 5, 10, 30, *range(60, 660, 60), 1200, 1800, 3600, 7200)
"""The delays of levels 1 to 18 in the default `messageDelayLevel`, in seconds."""


@pytest_asyncio.fixture
async def client(rocketmq_old: RocketMQ) -> AsyncIterator[ClusterClient]:
    client = ClusterClient([rocketmq_old.name_server])
    await client.connect()
    yield client
    await client.close()


@pytest_asyncio.fixture
async def cluster(rocketmq_old: RocketMQ) -> AsyncIterator[Cluster]:
    cluster = ADAPTER.make_cluster("old", ADAPTER.cluster_model(name_servers=rocketmq_old.name_server))
    await cluster.connect()
    yield cluster
    await cluster.close()


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    scripted = Scripted()
    monkeypatch.setattr(connection, "dial", scripted.dial)
    return scripted


# --- workarounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
@cluster_test
async def test_a_time_is_found_exactly(rocketmq_old: RocketMQ, client: ClusterClient) -> None:
    topic = rocketmq_old.take_topic(1)
    queue = Queue(topic, "broker-a", 0)
    assert await client.positions.at(queue, 1) == 0
    cluster = ADAPTER.make_cluster("old", ADAPTER.cluster_model(name_servers=rocketmq_old.name_server))
    await cluster.connect()
    outbound = await cluster.outbound(OutboundSpec(topic))
    for number in range(40):
        await outbound.send(0, Share(Batch.of([Message(b"%d" % number)] * (1 + number % 7))))  # a batch is stored at one time
    await asyncio.to_thread(rocketmq_old.settle)
    stored: list[int] = []
    [name] = (await cluster.bounds(topic)).keys()
    async with (
        asyncio.timeout(SERVER_PATIENCE_S),
        aclosing(read(cluster, topic, name, (0,), (await client.positions.next(queue),))) as found,
    ):
        async for batch in found:
            stored += [message.publish_time or 0 for message in batch.messages]
    await outbound.close()
    await cluster.close()
    for at in sorted({moment + aside for moment in stored for aside in (-1, 0, 1)}):
        assert await client.positions.at(queue, at) == sum(moment < at for moment in stored)
        assert await client.positions.at(queue, at, upper=True) == max(0, sum(moment <= at for moment in stored) - 1)


@pytest.mark.thorough
@cluster_test
async def test_a_group_that_never_committed_has_no_offset(
    rocketmq_old: RocketMQ, client: ClusterClient, cluster: Cluster
) -> None:
    topic, group = rocketmq_old.take_topic(2), "never_committed"
    rocketmq_old.send(topic, b"x")
    queue = Queue(topic, "broker-a", 0)
    assert await client.positions.committed(queue, group) is None
    assert await client.positions.committed(queue, group, exact=False) == 0, "the response of such a broker"
    assert await client.groups.topics_of(group) == []
    await client.positions.commit(queue, group, 0)
    assert await client.positions.committed(queue, group) == 0
    assert await client.groups.topics_of(group) == [topic]
    assert await cluster.operations.groups(topic) == [group]


@pytest.mark.thorough
@cluster_test
async def test_the_configuration_of_a_topic_can_be_read(rocketmq_old: RocketMQ, client: ClusterClient) -> None:
    topic = rocketmq_old.take_topic(3)
    config = (await client.admin.topic_config(topic))["broker-a"]
    assert (config.read_queues, config.write_queues) == (3, 3)
    assert await client.admin.topic_config("none") == {}


@cluster_test
async def test_a_delayed_message_uses_a_level_and_keeps_its_delivery_time(rocketmq_old: RocketMQ, cluster: Cluster) -> None:
    topic, again = rocketmq_old.take_topic(1), rocketmq_old.take_topic(1)
    outbound = await cluster.outbound(OutboundSpec(topic))
    due = int(time.time() * 1000) + 700
    receipt = await outbound.send(0, Share(Batch.of([Message(b"late", (("a", "1"),), deliver_at=due)])))
    assert receipt.failures == []
    late = await first_of(cluster, topic)
    assert late.publish_time is not None
    assert late.publish_time >= due
    assert (late.payload, late.deliver_at, late.properties) == (b"late", due, (("a", "1"),))
    await (await cluster.outbound(OutboundSpec(again))).send(0, Share(Batch.of([late])))
    assert (await first_of(cluster, again)).deliver_at == due
    too_late = await outbound.send(0, Share(Batch.of([Message(b"x", deliver_at=due + 3 * 3_600_000)])))
    [failure] = too_late.failures
    assert failure.failure_kind is Failure.REFUSED
    assert "the broker holds messages for 7200000 ms at most (messageDelayLevel)" in failure.reason


async def first_of(cluster: Cluster, topic: str) -> Message:
    name = next(iter(await cluster.bounds(topic)))
    async with asyncio.timeout(SERVER_PATIENCE_S), aclosing(read(cluster, topic, name, (0,))) as found:
        return (await anext(found)).messages[0]


@pytest.mark.thorough
@cluster_test
async def test_the_error_of_a_pop_names_the_alternative(rocketmq_old: RocketMQ, client: ClusterClient) -> None:
    popper = Popper(client, "popping", everything(rocketmq_old.take_topic(1)))
    with pytest.raises(ServerRefused, match="instead of `pop_consumer`") as refused:
        await popper.pop("broker-a")
    assert refused.value.failure is Failure.FATAL


# --- levels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wait_ms", "level"),
    [(1, 1), (1000, 1), (1001, 2), (59_999, 5), (60_000, 5), (60_001, 6), (3_600_001, 18), (7_200_000, 18)],
)
def test_a_delay_is_rounded_up_to_the_next_level(wait_ms: int, level: int) -> None:
    limits = Limits(levels=[seconds * 1000 for seconds in DEFAULT_LEVELS_S])
    assert limits.delay_property(5_000 + wait_ms, 5_000) == ("DELAY", str(level))
    [outgoing], failures = encode([Message(b"x", deliver_at=5_000 + wait_ms)], None, limits, 5_000)
    assert failures == []
    assert f"DELAY\x01{level}\x02".encode() in outgoing.properties
    assert b"TIMER_DELIVER_MS" not in outgoing.properties
    assert f"mqbridge.deliver_at\x01{5_000 + wait_ms}\x02".encode() in outgoing.properties
    assert outgoing.delayed


def test_levels_may_be_configured_in_any_order() -> None:
    limits = Limits(levels=[10_000, 1000, 5000])
    assert [limits.delay_property(wait, 0)[1] for wait in (1, 1000, 1001, 5001, 10_000)] == ["2", "2", "3", "1", "1"]
    with pytest.raises(ValueError, match="due in 10001 ms, the broker holds messages for 10000 ms at most"):
        limits.delay_property(10_001, 0)


def settings_of(version: int, settings: str):
    def answer(link, request):
        command = request.answer(0, None, settings.encode())
        command.version = version
        link.send(command)

    return answer


async def levels_of(scripted: Scripted, answer) -> tuple[int, ...]:
    scripted.at[A, Code.GET_BROKER_CONFIG] = answer
    client = scripted_client()
    await client.connect()
    try:
        return await delay_levels(client, A)
    finally:
        await client.close()


async def test_levels_come_from_the_brokers_settings(scripted: Scripted) -> None:
    assert await levels_of(scripted, settings_of(407, f"a=b\nmessageDelayLevel={LEVELS}\n")) == tuple(
        s * 1000 for s in DEFAULT_LEVELS_S
    )
    assert await levels_of(scripted, settings_of(407, "brokerName=a\n")) == tuple(s * 1000 for s in DEFAULT_LEVELS_S)
    assert await levels_of(scripted, settings_of(407, "messageDelayLevel=2s 1d\n")) == (2000, 86_400_000)
    assert await levels_of(scripted, settings_of(413, f"messageDelayLevel={LEVELS}\n")) == ()
    with pytest.raises(RemoteProtocolError, match=r"messageDelayLevel of broker .* contains '5x'"):
        await levels_of(scripted, settings_of(407, "messageDelayLevel=1s 5x\n"))


async def test_delay_levels_of_an_unreachable_broker_are_queried_again(scripted: Scripted) -> None:
    cluster = ADAPTER.make_cluster("c", ADAPTER.cluster_model(name_servers="ns:9876"))
    assert isinstance(cluster, RocketMQCluster)
    cluster._shared_client = client = scripted_client()
    await client.connect()
    route = await client.routes.get("T")
    assert route is not None
    scripted.unreachable = {A, B}
    assert await cluster._delay_levels(route) == ()
    scripted.unreachable = {A}
    scripted.at[B, Code.GET_BROKER_CONFIG] = settings_of(407, "messageDelayLevel=1s\n")
    scripted.at[A, Code.GET_BROKER_CONFIG] = settings_of(407, "messageDelayLevel=2s\n")
    assert await cluster._delay_levels(route) == (1000,)
    scripted.unreachable = set()
    assert await cluster._delay_levels(route) == (2000,)
    await cluster._delay_levels(route)
    assert len(scripted.requests[Code.GET_BROKER_CONFIG]) == 2, "a broker that has answered is not queried again"
    await cluster.close()


async def test_a_broker_that_refuses_its_settings_counts_as_5x(scripted: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert await levels_of(scripted, refuses(Status.NO_PERMISSION)) == ()
    assert "assuming version 5.x" in caplog.text
