"""The adapter against a real RocketMQ: features of RocketMQ alone, which the conformance suite does not test."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from pydantic import ValidationError

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec
from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.errors import ClusterError, ConfigError, Failure
from mqbridge.groups.lock_owners import RecordedLockOwners
from mqbridge.groups.store import GroupStore
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter.config import RocketMQCluster, RocketMQInboundOptions, RocketMQOutboundOptions
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.adapter.retry_lane import RetryLane
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.consumer.pull_consumer import join
from mqbridge.rocketmq.client.consumer.sendback import SendBack
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.record import Record
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

cluster_test = pytest.mark.cluster


class Endpoints(AsyncExitStack):
    """Opens a cluster, and inbounds and outbounds of it; closes them when the test endpoints."""

    def __init__(self, server: RocketMQ) -> None:
        super().__init__()
        self.server = server

    async def cluster(self) -> Cluster:
        made = ADAPTER.make_cluster(
            "c", ADAPTER.cluster_model(name_servers=self.server.name_server, refresh="500ms", heartbeat="2s")
        )
        await made.connect()
        self.push_async_callback(made.close)
        return made

    async def outbound(self, cluster: Cluster, topic: str, *, ordered: bool = True) -> Outbound:
        outbound = await cluster.outbound(OutboundSpec(topic, ordered=ordered, options=RocketMQOutboundOptions()))
        self.push_async_callback(outbound.close)
        return outbound

    async def inbound(self, cluster: Cluster, spec: InboundSpec) -> Inbound:
        inbound = await cluster.inbound(spec)
        self.push_async_callback(inbound.close)
        return inbound


@pytest_asyncio.fixture
async def endpoints(rocketmq: RocketMQ) -> AsyncIterator[Endpoints]:
    async with Endpoints(rocketmq) as endpoints:
        yield endpoints


def group() -> str:
    return f"g_{uuid4().hex[:8]}"


async def read(lane: InboundLane, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(found) < count:
            batch = await lane.receive()
            found += batch.messages
            lane.acknowledge(batch)
    return found


async def lane_of(inbound: Inbound) -> InboundLane:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        return await anext(inbound.lanes())


def test_addresses_and_urls() -> None:
    assert RocketMQCluster.from_url("rocketmq://a:1,b").name_servers == ("a:1", "b:9876")
    assert RocketMQCluster.model_validate({"name_servers": "a:1; b:2"}).name_servers == ("a:1", "b:2")
    with pytest.raises(ValidationError, match="is not host:port"):
        RocketMQCluster.model_validate({"name_servers": "a:b:c:0"})


@cluster_test
async def test_filtered_messages_are_committed_too(endpoints: Endpoints) -> None:
    cluster, topic, name = await endpoints.cluster(), endpoints.server.take_topic(1), group()
    outbound = await endpoints.outbound(cluster, topic)
    await outbound.send(0, Share(Batch.of([Message(b"%d" % n, msg_type=f"t{n % 4}") for n in range(40)])))
    spec = InboundSpec((topic,), name, msg_types=frozenset({"t1", "t2"}))
    inbound = await cluster.inbound(spec)
    got = await read(await lane_of(inbound), 20)
    assert {message.msg_type for message in got} == {"t1", "t2"}
    await inbound.close()
    assert list((await cluster.committed(topic, name)).values()) == [(40,)]


@cluster_test
async def test_an_sql_filter_is_applied_and_cannot_be_combined_with_tags(endpoints: Endpoints) -> None:
    cluster, topic = await endpoints.cluster(), endpoints.server.take_topic(1)
    outbound = await endpoints.outbound(cluster, topic)
    await outbound.send(0, Share(Batch.of([Message(b"%d" % n, (("amount", str(n)),)) for n in range(20)])))
    options = RocketMQInboundOptions(sql="amount >= 15")
    inbound = await endpoints.inbound(cluster, InboundSpec((topic,), group(), options=options))
    assert [message.payload for message in await read(await lane_of(inbound), 5)] == [b"15", b"16", b"17", b"18", b"19"]
    with pytest.raises(ConfigError, match=r"msg_types.*sql|sql.*msg_types|tags or by SQL92"):
        await cluster.inbound(InboundSpec((topic,), group(), msg_types=frozenset({"a"}), options=options))
    with pytest.raises(ClusterError) as refused:
        await cluster.inbound(InboundSpec((topic,), group(), options=RocketMQInboundOptions(sql="amount >=")))
    assert refused.value.failure is Failure.FATAL


@cluster_test
async def test_an_open_outbound_sees_its_topic_grow(endpoints: Endpoints) -> None:
    cluster, topic = await endpoints.cluster(), endpoints.server.take_topic(2)
    outbound = await endpoints.outbound(cluster, topic)
    await cluster.create(topic, 5)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while outbound.partitions < 5:
            await asyncio.sleep(0.05)
    assert not (await outbound.send(4, Share(Batch.of([Message(b"new")])))).failures
    await asyncio.to_thread(endpoints.server.settle)
    assert (await cluster.bounds(topic))["broker-a:4"].next == (1,)


@cluster_test
async def test_indexes_of_removed_queues_get_other_queues(endpoints: Endpoints) -> None:
    cluster, topic = await endpoints.cluster(), endpoints.server.take_topic(3)
    outbound = await endpoints.outbound(cluster, topic)
    client = ClusterClient([endpoints.server.name_server])
    await client.connect()
    await client.admin.create_topic(topic, 2, read_queues=3)  # no longer writable, but still readable: how a topic is shrunk
    await client.close()
    assert not (await outbound.send(2, Share(Batch.of([Message(b"old")])))).failures
    async with asyncio.timeout(SERVER_PATIENCE_S):
        number = 0
        while (await cluster.bounds(topic))["broker-a:0"].next == (0,):
            assert not (await outbound.send(2, Share(Batch.of([Message(b"%d" % number)])))).failures
            number += 1
            await asyncio.sleep(0.05)
    assert outbound.partitions == 3
    for partition in (0, 1):
        assert not (await outbound.send(partition, Share(Batch.of([Message(b"x")])))).failures
    await asyncio.to_thread(endpoints.server.settle)
    assert (await cluster.bounds(topic))["broker-a:1"].next == (1,)


async def test_queues_of_an_absent_broker_keep_their_indexes() -> None:
    present, absent = [Queue("t", "a", 0), Queue("t", "a", 1)], [Queue("t", "b", 0), Queue("t", "b", 1)]
    cluster = ADAPTER.make_cluster("c", ADAPTER.cluster_model(name_servers="127.0.0.1:1"))
    outbound = RocketMQOutbound(cluster, None, OutboundSpec("t"), present + absent, max_message_bytes=100)  # type: ignore[arg-type]
    by_number = [present[0], absent[0], present[1], absent[1]]
    outbound.on_route(route_of({"a": 2, "b": 0}, {"a"}))
    assert outbound._queues == by_number
    outbound.on_route(route_of({"a": 2, "b": 2}, {"a", "b"}, frozen="a"))
    assert outbound._queues == by_number, "writing may be permitted again"
    outbound.on_route(route_of({"a": 1, "b": 2}, {"a", "b"}))
    assert outbound._queues == [present[0], absent[0], absent[1], absent[1]], "index 2, of queue a:1, has another queue"
    outbound.on_route(route_of({"a": 0, "b": 0}, {"a", "b"}))
    assert outbound._queues == [present[0], absent[0], absent[1], absent[1]], "no queue is writable: sends report the error"
    outbound.on_route(route_of({"a": 2, "b": 2}, {"a", "b"}))
    assert outbound._queues == by_number, "each index has its own queue again"
    outbound.on_route(route_of({"a": 3, "b": 3}, {"a", "b"}))
    assert outbound.partitions == 6


def outbound_with(queues: list[Queue]) -> RocketMQOutbound:
    cluster = ADAPTER.make_cluster("c", ADAPTER.cluster_model(name_servers="127.0.0.1:1"))
    return RocketMQOutbound(cluster, None, OutboundSpec("t"), queues, max_message_bytes=100)  # type: ignore[arg-type]


async def test_as_many_new_queues_as_are_drained_replace_them() -> None:
    a, b = [Queue("t", "a", 0), Queue("t", "a", 1)], [Queue("t", "b", 0), Queue("t", "b", 1)]
    outbound = outbound_with(a)
    outbound.on_route(route_of({"a": 0, "b": 2}, {"a", "b"}))
    assert outbound._queues == b, "broker a is drained, b came"
    outbound.on_route(route_of({"a": 2, "b": 2}, {"a", "b"}))
    assert outbound._queues == [a[0], b[0], a[1], b[1]]
    outbound = outbound_with(a)
    outbound.on_route(route_of({"a": 1, "b": 1}, {"a", "b"}))
    assert outbound._queues == [a[0], b[0]], "the index of the drained queue gets the new one"
    outbound.on_route(route_of({"a": 0, "b": 1}, {"a", "b"}))
    assert outbound._queues == [b[0], b[0]], "both indexes share the only queue"
    outbound.on_route(route_of({"a": 2, "b": 0}, {"a", "b"}))
    assert outbound._queues == a


def route_of(queues: dict[str, int], present: set[str], frozen: str = "") -> TopicRoute:
    """Return a route with this number of queues per broker; only brokers in `present` are in it. `frozen` may not be written."""
    found = [Queue("t", name, number) for name in present for number in range(queues[name])]
    write, shut = [queue for queue in found if queue.broker != frozen], [queue for queue in found if queue.broker == frozen]
    return TopicRoute("t", {name: {0: f"{name}:1"} for name in present}, found, write, frozen=shut)


@cluster_test
async def test_without_order_sends_overlap_and_nothing_is_lost(endpoints: Endpoints) -> None:
    cluster, topic = await endpoints.cluster(), endpoints.server.take_topic(1)
    outbound = await endpoints.outbound(cluster, topic, ordered=False)
    receipts = [outbound.send(0, Share(Batch.of([Message(b"%d" % n) for n in range(k * 50, k * 50 + 50)]))) for k in range(20)]
    assert not any(receipt.failures for receipt in await asyncio.gather(*receipts))
    inbound = await endpoints.inbound(cluster, InboundSpec((topic,), group()))
    assert sorted(int(message.payload or b"") for message in await read(await lane_of(inbound), 1000)) == list(range(1000))


@cluster_test
async def test_a_delayed_message_arrives_at_its_time_and_is_delayed_only_once(endpoints: Endpoints) -> None:
    cluster, topic, again = await endpoints.cluster(), endpoints.server.take_topic(1), endpoints.server.take_topic(1)
    due = int(time.time() + 2) * 1000
    await (await endpoints.outbound(cluster, topic)).send(
        0, Share(Batch.of([Message(b"late", (("a", "1"), ("b", "2")), deliver_at=due)]))
    )
    [late] = await read(await lane_of(await endpoints.inbound(cluster, InboundSpec((topic,), group()))), 1)
    assert (late.payload, late.deliver_at, late.properties) == (b"late", due, (("a", "1"), ("b", "2")))
    assert time.time() * 1000 >= due - 1000
    await (await endpoints.outbound(cluster, again)).send(0, Share(Batch.of([late])))
    [copy] = await read(await lane_of(await endpoints.inbound(cluster, InboundSpec((again,), group()))), 1)
    assert copy.deliver_at == due


@cluster_test
async def test_messages_sent_back_arrive_in_a_lane_of_their_topic(endpoints: Endpoints) -> None:
    cluster, name = await endpoints.cluster(), group()
    first, second, foreign = (endpoints.server.take_topic(1) for _ in range(3))
    for topic in (first, second, foreign):
        await (await endpoints.outbound(cluster, topic)).send(0, Share(Batch.of([Message(b"of %d" % n) for n in range(3)])))
    inbound = await endpoints.inbound(cluster, InboundSpec((first, second), name))
    lanes = {lane.partition.topic: lane for lane in [await lane_of(inbound), await lane_of(inbound)]}
    await read(lanes[first], 3)
    await read(lanes[second], 3)
    client = ClusterClient([endpoints.server.name_server])
    await client.connect()
    endpoints.push_async_callback(client.close)
    back = SendBack(client, name)
    for topic, number in ((first, 0), (second, 1), (foreign, 2), (first, 2)):
        await back.redeliver(*await stored(client, topic, number), level=1)
    seen: dict[str, list[bytes | None]] = {first: [], second: []}
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while sum(map(len, seen.values())) < 3:
            lane = await lane_of(inbound)
            assert isinstance(lane, RetryLane)
            want = {first: 2, second: 1}[lane.partition.topic]
            seen[lane.partition.topic] += [message.payload for message in await read(lane, want)]
    assert {topic: sorted(filter(None, found)) for topic, found in seen.items()} == {
        first: [b"of 0", b"of 2"],
        second: [b"of 1"],
    }


async def stored(client: ClusterClient, topic: str, offset: int) -> tuple[Queue, Record]:
    """Return the queue of a topic with one queue, and its record at this offset."""
    route = await client.routes.get(topic)
    assert route is not None
    [queue] = route.read_queues()
    reader = await join(
        client, ConsumerSettings("", (everything(topic),), MessageModel.ASSIGNED, queues=(queue,), offsets={queue: offset})
    )
    try:
        assigned = await anext(reader.assigned_queues())
        return queue, (await assigned.receive()).records[0]
    finally:
        await reader.close()


@cluster_test
@pytest.mark.parametrize("is_known", [True, False])
async def test_every_message_below_the_brokers_limit_is_stored_whatever_the_size_of_batches(
    endpoints: Endpoints, is_known: bool
) -> None:
    server = endpoints.server
    cluster, topic = await endpoints.cluster(), server.take_topic(1)
    outbound = None if is_known else await endpoints.outbound(cluster, topic)
    server.configure({"maxMessageSize": 16 << 10})
    try:
        if outbound is None:
            outbound = await endpoints.outbound(cluster, topic)
        messages = [Message(b"%04d" % number + b"x" * 1000) for number in range(300)]
        messages[150] = Message(b"y" * (17 << 10))
        receipt = await outbound.send(0, Share(Batch.of(messages)))
    finally:
        server.configure({"maxMessageSize": 4 << 20})
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(150, Failure.REFUSED)]
    assert [position for position in receipt.positions if position] == [(number,) for number in range(299)]


@cluster_test
async def test_a_message_above_the_brokers_limit_is_stored_if_it_is_small_enough_when_compressed(endpoints: Endpoints) -> None:
    server = endpoints.server
    cluster, topic = await endpoints.cluster(), server.take_topic(1)
    options = RocketMQOutboundOptions(compression="zlib")
    outbound = await cluster.outbound(OutboundSpec(topic, options=options))
    endpoints.push_async_callback(outbound.close)
    messages = [
        Message(b"first"),
        Message(b"large " * (1 << 20), [("a", "b")], "k"),
        Message(os.urandom(5 << 20)),
        Message(b"last"),
    ]
    receipt = await outbound.send(0, Share(Batch.of(messages)))
    [failure] = receipt.failures
    assert (failure.index, failure.failure_kind) == (2, Failure.REFUSED)
    stored = await read(await lane_of(await endpoints.inbound(cluster, InboundSpec((topic,), group()))), 3)
    assert [message.payload for message in stored] == [messages[index].payload for index in (0, 1, 3)]
    assert (stored[1].key, stored[1].properties) == ("k", (("a", "b"),))


@cluster_test
async def test_properties_of_applications_with_system_names_reach_a_copy(endpoints: Endpoints) -> None:
    server = endpoints.server
    cluster, source, copy = await endpoints.cluster(), server.take_topic(1), server.take_topic(1)
    names = ("REDIRECT", "TRACE_CONTEXT", "__transactionId__", "INNER_MULTI_DISPATCH", "__RMQ.TRANSIENT.x")
    for name in names:
        server.send(source, b"x", properties={name: "value of the user"})
    inbound = await endpoints.inbound(cluster, InboundSpec((source,), group()))
    outbound = await endpoints.outbound(cluster, copy)
    receipt = await outbound.send(0, Share(Batch.of(await read(await lane_of(inbound), len(names)))))
    assert not receipt.failures
    copies = await read(await lane_of(await endpoints.inbound(cluster, InboundSpec((copy,), group()))), len(names))
    assert [message.property(name) for message, name in zip(copies, names, strict=True)] == ["value of the user"] * len(names)


_KILLED_MEMBER = """
import asyncio, os, signal, sys
from pathlib import Path
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.groups.lock_owners import RecordedLockOwners
from mqbridge.groups.store import GroupStore
from mqbridge.rocketmq.adapter.registration import ADAPTER

async def main(server, topic, group, path):
    cluster = ADAPTER.make_cluster("c", ADAPTER.cluster_model(name_servers=server))
    await cluster.connect()
    owners = RecordedLockOwners(GroupStore(Path(path)), "app", "c", topic, group)
    inbound = await cluster.inbound(InboundSpec((topic,), group, release_wait_s=5, sent_back=False, lock_owners=owners))
    assert len(inbound._consumer.held) == 2
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


@cluster_test
async def test_a_process_that_comes_back_after_a_kill_gets_its_locked_queues_at_once(
    endpoints: Endpoints, tmp_path: Path
) -> None:
    """Brokers keep the locks of a killed member for a minute. Each process has its own id, and none takes that of another."""
    server, name = endpoints.server, group()
    topic = server.take_topic(2)
    for start in range(2):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _KILLED_MEMBER, server.name_server, topic, name, str(tmp_path / "groups.db")
        )
        assert await asyncio.wait_for(process.wait(), SERVER_PATIENCE_S) == -signal.SIGKILL, f"start {start}"
    store = GroupStore(tmp_path / "groups.db")
    owners = RecordedLockOwners(store, "app", "c", topic, name)
    assert len(owners.abandoned) == 1
    spec = InboundSpec((topic,), name, release_wait_s=5, sent_back=False, lock_owners=owners)
    inbound = await endpoints.inbound(await endpoints.cluster(), spec)
    assert len(inbound._consumer.held) == 2, "with the first request"  # type: ignore[attr-defined]
    assert owners.abandoned == []
    assert store.notes("app", "c", "lock owners"), "of this process"
    await inbound.close()
    assert not store.notes("app", "c", "lock owners")
    await store.close()
