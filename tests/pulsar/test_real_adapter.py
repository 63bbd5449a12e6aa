"""The adapter against a real Pulsar: behaviour that only Pulsar has, so the conformance suite does not test it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from pydantic import ValidationError

from mqbridge.adapter import reading
from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.tools.unit_ranges import count_units, position_after
from mqbridge.errors import ClusterError, Failure, LaneRevoked
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.pulsar.adapter.config import PulsarInboundOptions, PulsarOutboundOptions
from mqbridge.pulsar.adapter.registration import ADAPTER
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.names import parse_topic
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S

SOURCE = Partition("src", "orders", "7:0", 0)


class Endpoints(AsyncExitStack):
    """Clusters, inbounds and outbounds, all closed when the test endpoints."""

    def __init__(self, server: Pulsar) -> None:
        super().__init__()
        self._server = server

    def cluster(self, *, admin: bool = True, **settings: Any):
        url = self._server.admin_url if admin else None
        cluster = ADAPTER.make_cluster(
            "c", ADAPTER.cluster_model(service_url=self._server.service_url, admin_url=url, **settings)
        )
        self.push_async_callback(cluster.close)
        return cluster

    async def outbound(self, cluster, topic: str, **options: Any):
        outbound = await cluster.outbound(OutboundSpec(topic, options=PulsarOutboundOptions(**options)))
        self.push_async_callback(outbound.close)
        return outbound

    async def inbound(self, cluster, topic: str, start: Start = Start.EARLIEST, **options: Any):
        inbound = await cluster.inbound(InboundSpec((topic,), "g", start, options=PulsarInboundOptions(**options)))
        self.push_async_callback(inbound.close)
        return inbound


@pytest_asyncio.fixture
async def endpoints(pulsar: Pulsar) -> AsyncIterator[Endpoints]:
    async with Endpoints(pulsar) as endpoints:
        yield endpoints


def name() -> str:
    return f"adapter-{uuid4().hex[:8]}"


def messages(*numbers: int) -> list[Message]:
    return [Message(b"%d" % number, position=(number,)) for number in numbers]


async def read(lane, count: int) -> list[Message]:
    found: list[Message] = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(found) < count:
            batch = await lane.receive()
            found += batch.messages
            lane.acknowledge(batch)
    return found


async def first_lane(inbound):
    return await asyncio.wait_for(anext(inbound.lanes()), SERVER_PATIENCE_S)


async def groups_are(cluster, topic: str, expected: list[str]) -> None:
    """Wait until the topic has these groups: a broker may remove the subscription of a closed reader after its response."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await cluster.operations.groups(topic) != expected:
            await asyncio.sleep(0.01)


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"service_url": "http://x"},
        {"service_url": "pulsar://x", "tls": True},
        {"service_url": "pulsar+ssl://x", "auth": {"token": "a", "password": "b"}},
        {"service_url": "pulsar://x", "admin_url": "x:8080"},
        {"service_url": "pulsar://x", "namespace": "x"},
        {"service_url": "pulsar://x", "unknown": 1},
    ],
)
def test_contradicting_options_are_refused(wrong):
    with pytest.raises(ValidationError):
        ADAPTER.cluster_model(**wrong)


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
async def test_topics_are_listed_by_their_shortest_names(pulsar, endpoints):
    cluster, topic = endpoints.cluster(), name()
    namespace = pulsar.create_namespace("acme", name())
    assert await cluster.describe(topic) is None
    await cluster.create(topic, 2)
    await cluster.create(f"{namespace}/{topic}", 1)
    long = f"persistent://public/default/{topic}"
    assert (await cluster.describe(long)).name == long
    assert set((await cluster.describe(topic)).aliases) == {long, f"public/default/{topic}", topic}
    listed = await cluster.topics()
    assert {topic, f"{namespace}/{topic}"} <= set(listed)
    assert not any(each.startswith("__") or "-partition-" in each for each in listed)


@pytest.mark.cluster
async def test_topics_grow_and_never_shrink(endpoints):
    cluster, topic = endpoints.cluster(), name()
    for asked, have in ((2, 2), (4, 4), (3, 4)):
        await cluster.create(topic, asked)
        assert len((await cluster.describe(topic)).partitions) == have


@pytest.mark.cluster
@pytest.mark.parametrize("suffix", ["-partition-key", "-partition-1", "-partition-key-partition-1"])
async def test_the_check_finds_a_name_that_brokers_refuse_for_partitioned_topics(endpoints, suffix):
    cluster, topic = endpoints.cluster(), name() + suffix
    with pytest.raises(ClusterError, match="brokers create no partitioned topic whose name contains -partition-"):
        await cluster.check_create(topic, 2)
    with pytest.raises(ClusterError):  # the check is right
        await cluster.create(topic, 2)
    assert await cluster.describe(topic) is None


@pytest.mark.cluster
async def test_an_unpartitioned_topic_has_the_partition_minus_one(pulsar, endpoints):
    cluster = endpoints.cluster()
    topic = pulsar.take_topic().rpartition("/")[2]
    described = await cluster.describe(topic)
    assert (described.name, described.partitions) == (topic, ("-1",))
    await cluster.create(topic, 1)
    with pytest.raises(ClusterError) as caught:
        await cluster.create(topic, 2)
    assert caught.value.failure is Failure.FATAL
    outbound = await endpoints.outbound(cluster, topic)
    assert outbound.partitions == 1
    await outbound.send(0, Share(Batch.of(messages(1))))
    lane = await first_lane(await endpoints.inbound(cluster, topic))
    assert (lane.partition.name, lane.partition.index) == ("-1", 0)
    assert [message.payload for message in await read(lane, 1)] == [b"1"]


@pytest.mark.cluster
async def test_operations_without_an_admin_url(endpoints):
    cluster, topic = endpoints.cluster(admin=False), name()
    await cluster.create(topic, 1)
    assert (await cluster.describe(topic)).partitions == ("-1",)
    assert topic in await cluster.topics()
    for request in (cluster.create(name(), 3), cluster.operations.groups(topic), cluster.committed(topic, "g")):
        with pytest.raises(ClusterError, match="admin_url") as caught:
            await request
        assert caught.value.failure is Failure.FATAL


@pytest.mark.cluster
async def test_missing_topics_are_fatal(endpoints):
    cluster = endpoints.cluster()
    for request in (cluster.outbound(OutboundSpec(name())), cluster.bounds(name()), cluster.operations.groups(name())):
        with pytest.raises(ClusterError, match="create it") as caught:
            await request
        assert caught.value.failure is Failure.FATAL
    with pytest.raises(ClusterError, match="topic name"):
        await cluster.describe("a/b")


# --- out --------------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
async def test_only_messages_that_are_too_large_fail(endpoints):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 1)
    outbound = await endpoints.outbound(cluster, topic, chunking=False)
    sent = [*messages(0), Message(bytes(6 << 20)), *messages(2), Message(b"", defect="broken"), *messages(4)]
    receipt = await outbound.send(0, Share(Batch.of(sent, SOURCE)))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(1, Failure.REFUSED), (3, Failure.REFUSED)]
    lane = await first_lane(await endpoints.inbound(cluster, topic))
    found = await read(lane, 3)
    assert [message.payload for message in found] == [b"0", b"2", b"4"]
    assert receipt.highest_position == found[-1].position


@pytest.mark.cluster
async def test_resume_returns_stored_positions_and_fences_off_earlier_outbounds(endpoints):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 2)
    stale, outbound = (
        await endpoints.outbound(cluster, topic),
        await endpoints.outbound(cluster, topic, compression="lz4", batch_messages=3),
    )
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert await stale.resume(SOURCE) == {}
    await stale.send(0, Share(Batch.of(messages(*range(10)), SOURCE)))
    await stale.send(1, Share(Batch.of(messages(99), Partition("src", "orders", "8:0", 1))))
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert await outbound.resume(SOURCE) == {0: (9,)}
        with pytest.raises(ClusterError) as caught:
            await stale.send(0, Share(Batch.of(messages(10), SOURCE)))
        assert caught.value.failure is Failure.FATAL
        await outbound.send(1, Share(Batch.of(messages(10), SOURCE)))
        assert await outbound.resume(SOURCE) == {0: (9,), 1: (10,)}
    await groups_are(cluster, topic, [])


@pytest.mark.cluster
async def test_keys_choose_partitions_as_clients_do(endpoints):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 7)
    java, murmur = await endpoints.outbound(cluster, topic), await endpoints.outbound(cluster, topic, key_hash="murmur3")
    assert java.partition_of("schlüssel".encode()) == java_string_hash("schlüssel") % 7
    assert java.partition_of(b"\xff\xfe") == java_string_hash("//4=") % 7
    assert murmur.partition_of(b"abc") == murmur3_32(b"abc") % 7


# --- in ---------------------------------------------------------------------------------------------------------------


@pytest.mark.cluster
async def test_texts_that_are_not_utf8_are_stored_byte_for_byte(endpoints):
    """A broker takes them in a batch, which it does not read, and in an entry of one message, whose key it reads."""
    cluster, topic = endpoints.cluster(), name()
    await cluster.connect()
    await cluster.create(topic, 1)
    sent = [
        Message(b"1", (("ci\udcb4\udcf3", "\udcb4\udcf3"),), "k\udcff", position=(1,)),
        Message(b"2", (("a", "\udcb4"), ("b", "fine")), "k\udcff", position=(2,), deliver_at=1),
    ]
    outbound = await endpoints.outbound(cluster, topic)
    receipt = await asyncio.wait_for(outbound.send(0, Share(Batch.of(sent, SOURCE))), SERVER_PATIENCE_S)
    assert receipt.failures == []
    lane = await first_lane(await endpoints.inbound(cluster, topic))
    got = await read(lane, 2)
    assert [(message.payload, message.key, message.properties[: len(sent[n].properties)]) for n, message in enumerate(got)] == [
        (message.payload, message.key, message.properties) for message in sent
    ]
    assert [message.defect for message in got] == [None, None]


@pytest.mark.cluster
async def test_key_shared_consumers_of_a_copy_by_key_share_no_key(pulsar, endpoints, client):
    """A broker dispatches an entry by the key of its first message, so an entry of several keys goes to one consumer."""
    cluster, topic = endpoints.cluster(), name()
    await cluster.connect()
    await cluster.create(topic, 1)
    outbound = await endpoints.outbound(cluster, topic, batch_by_key=True)
    inbounds = [await endpoints.inbound(cluster, topic, subscription_type="key_shared") for _ in range(2)]
    lanes = [await first_lane(inbound) for inbound in inbounds]
    sent = [Message(b"%d" % n, key=f"key-{n % 20}", position=(n,)) for n in range(400)]
    await asyncio.wait_for(outbound.send(0, Share(Batch.of(sent, SOURCE))), SERVER_PATIENCE_S)
    owners: dict[object, set[int]] = {}
    counts = [0, 0]

    async def drain(index: int) -> None:
        while sum(counts) < 400:
            batch = await lanes[index].receive()
            for message in batch.messages:
                owners.setdefault(message.key, set()).add(index)
            counts[index] += batch.count
            lanes[index].acknowledge(batch)

    tasks = [asyncio.ensure_future(drain(index)) for index in range(2)]
    await asyncio.wait(tasks, timeout=SERVER_PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(counts) == 400
    assert all(counts)
    assert [key for key, indexes in owners.items() if len(indexes) > 1] == []


@pytest.mark.cluster
async def test_a_target_that_enforces_schemas_needs_one_and_check_sees_it(pulsar, endpoints):
    namespace = await asyncio.to_thread(pulsar.create_namespace, "acme", f"schemas-{uuid4().hex[:6]}")
    cluster = endpoints.cluster(namespace=namespace)
    await cluster.connect()
    admin, full = cluster._admin, parse_topic("t", namespace)
    await cluster.create("t", 1)
    definition = '{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'
    other = '{"type":"record","name":"R","fields":[{"name":"b","type":"string"}]}'

    def spec(**options: Any) -> OutboundSpec:
        return OutboundSpec("t", options=PulsarOutboundOptions(**options))

    with pytest.raises(ClusterError, match="has no schema"):
        await cluster.check_outbound(spec(schema_type="topic"))
    await cluster.check_outbound(spec())  # a topic without a schema takes any
    await admin.call("POST", f"/schemas/{full.path}/schema", {"type": "AVRO", "schema": definition, "properties": {}})
    await admin.call("POST", f"/namespaces/{namespace}/schemaValidationEnforced", True)
    with pytest.raises(ClusterError, match=r"refuses producers without one.*schema_type: topic") as refused:
        await cluster.check_outbound(spec())
    assert refused.value.failure is Failure.FATAL
    with pytest.raises(ClusterError, match="incompatible"):
        await cluster.check_outbound(spec(schema_type="avro", schema_definition=other))
    for options in ({"schema_type": "topic"}, {"schema_type": "avro", "schema_definition": definition}):
        await cluster.check_outbound(spec(**options))
        outbound = await endpoints.outbound(cluster, "t", **options)
        receipt = await asyncio.wait_for(outbound.send(0, Share(Batch.of(messages(1), SOURCE))), SERVER_PATIENCE_S)
        assert receipt.failures == []


@pytest.mark.cluster
async def test_waiting_entries_are_received_as_one_batch(endpoints):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 1)
    outbound = await endpoints.outbound(cluster, topic, batch_messages=2)
    await outbound.send(0, Share(Batch.of(messages(*range(100)))))
    lane = await first_lane(await endpoints.inbound(cluster, topic, batch_bytes=10_000))
    await asyncio.sleep(1)
    sizes, seen = [], []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(seen) < 100:
            batch = await lane.receive()
            assert (batch.first, batch.count) == (batch.messages[0].position, len(batch.messages))
            assert batch.next == (batch.messages[-1].position[0], batch.messages[-1].position[1] + 1, 0)
            sizes.append(batch.count)
            seen += batch.messages
    assert [message.payload for message in seen] == [b"%d" % number for number in range(100)]
    assert max(sizes) > 2


@pytest.mark.cluster
async def test_seeking_into_the_middle_of_an_entry(endpoints):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 1)
    outbound = await endpoints.outbound(cluster, topic, batch_messages=10)
    await outbound.send(0, Share(Batch.of(messages(*range(30)))))
    lane = await first_lane(await endpoints.inbound(cluster, topic))
    found = await read(lane, 30)
    await lane.seek(found[14].position)
    batch = await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S)
    assert batch.first == found[14].position
    assert [message.payload for message in batch.messages][:6] == [b"%d" % number for number in range(14, 20)]


@pytest.mark.cluster
async def test_bounds_and_committed_positions(endpoints):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 2)
    outbound = await endpoints.outbound(cluster, topic, batch_messages=10)
    await outbound.send(0, Share(Batch.of(messages(*range(30)))))
    bounds = await cluster.bounds(topic)
    first, following = bounds["0"].first, bounds["0"].next
    assert (first[1:], following) == ((0, 0), (first[0], 3, 0))
    assert bounds["1"].first == bounds["1"].next
    assert await cluster.committed(topic, "g") == {}
    inbound = await endpoints.inbound(cluster, topic, batch_bytes=1)
    lanes = inbound.lanes()
    held = [await asyncio.wait_for(anext(lanes), SERVER_PATIENCE_S) for _ in range(2)]
    lane = next(lane for lane in held if lane.partition.name == "0")
    batch = await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S)
    lane.acknowledge(batch)
    await lane.release()
    assert (await cluster.committed(topic, "g"))["0"] == (first[0], 1, 0) == batch.next
    await groups_are(cluster, topic, ["g"])


@pytest.mark.cluster
async def test_failover_moves_the_lane(endpoints):
    one, other, topic = endpoints.cluster(), endpoints.cluster(), name()
    await one.create(topic, 1)
    outbound = await endpoints.outbound(one, topic, batch_messages=1)
    await outbound.send(0, Share(Batch.of(messages(*range(10)))))
    # Of partition 0 the broker makes the consumer with the smallest name the active one.
    first, second = [
        await endpoints.inbound(cluster, topic, batch_bytes=1, consumer_name=each) for cluster, each in ((one, "a"), (other, "b"))
    ]
    waiting = asyncio.ensure_future(anext(second.lanes()))
    lane = await first_lane(first)
    assert [message.payload for message in await read(lane, 4)] == [b"0", b"1", b"2", b"3"]
    unacknowledged = await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S)
    assert not waiting.done()
    await first.close()
    with pytest.raises(LaneRevoked):
        await lane.receive()
    lane.acknowledge(unacknowledged)
    other_lane = await asyncio.wait_for(waiting, SERVER_PATIENCE_S)
    assert [message.payload for message in await read(other_lane, 6)] == [b"%d" % number for number in range(4, 10)]


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_only_the_rejected_batch_of_a_shared_subscription_is_redelivered(endpoints, kind):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 1)
    outbound = await endpoints.outbound(cluster, topic, batch_messages=1)
    await outbound.send(0, Share(Batch.of(messages(*range(10)))))
    inbound = await endpoints.inbound(cluster, topic, subscription_type=kind, batch_bytes=1)
    assert inbound.individual_ack
    lane = await first_lane(inbound)
    batches = [await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S) for _ in range(10)]
    for batch in batches[:4]:
        lane.acknowledge(batch)
    lane.reject(batches[4])
    again = await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S)
    assert [(message.payload, message.delivery_count) for message in again.messages] == [(b"4", 1)]
    lane.reject(again, delay_s=0.2)
    for batch in batches[5:]:
        lane.acknowledge(batch)
    again = await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S)
    assert [(message.payload, message.delivery_count) for message in again.messages] == [(b"4", 2)]
    lane.acknowledge(again)
    await inbound.close()
    bounds = await cluster.bounds(topic)
    assert (await cluster.committed(topic, "g"))["0"] == bounds["0"].next


@pytest.mark.cluster
async def test_single_messages_of_batches_are_acknowledged(endpoints):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 1)
    outbound = await endpoints.outbound(cluster, topic, batch_messages=5)
    await outbound.send(0, Share(Batch.of(messages(*range(10)))))
    inbound = await endpoints.inbound(cluster, topic, subscription_type="shared")
    lane = await first_lane(inbound)
    batches: list[Batch] = []
    while sum(batch.count for batch in batches) < 10:
        batches.append(await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S))
    for batch in batches:
        lane.acknowledge(
            batch, [index for index, message in enumerate(batch.messages) if message.payload not in (b"3", b"7", b"8")]
        )
        lane.reject(batch)
    left = await read(lane, 3)
    assert sorted(message.payload for message in left) == [b"3", b"7", b"8"]
    await inbound.close()
    assert (await cluster.committed(topic, "g"))["0"] == (await cluster.bounds(topic))["0"].next


@pytest.mark.cluster
async def test_reading_a_range_of_batches_and_chunks(endpoints, client):
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 1)
    concrete = f"persistent://public/default/{topic}-partition-0"
    chunked = client.producer(concrete, ProducerSettings(chunking=True, chunk_bytes=1000))
    first = await chunked.send(MessageMetadata(), b"L" * 2500)
    outbound = await endpoints.outbound(cluster, topic, batch_messages=5)
    await outbound.send(0, Share(Batch.of(messages(*range(20)))))
    bounds = (await cluster.bounds(topic))["0"]
    assert bounds.first == (*first.first_chunk, 0)

    async def payloads(begin, end) -> list[bytes]:
        async with aclosing(reading.read(cluster, topic, "0", begin, end)) as batches:
            return [message.payload async for batch in batches for message in batch.messages]

    everything = await payloads(bounds.first, bounds.next)
    assert everything == [b"L" * 2500, *[b"%d" % number for number in range(20)]]
    ledger, entry = first.ledger, first.entry + 1
    assert await payloads((ledger, entry, 3), (ledger, entry + 2, 1)) == [b"%d" % number for number in range(3, 11)]
    assert await payloads((ledger, entry, 1), (ledger, entry, 4)) == [b"1", b"2", b"3"]
    assert await payloads((ledger, entry, 4), (ledger, entry, 4)) == []
    await chunked.close()
    await groups_are(cluster, topic, [])


@pytest.mark.cluster
async def test_a_chunked_message_belongs_to_the_range_with_its_last_chunk(pulsar, endpoints, client):
    """This holds wherever the range is divided, with other entries between the chunks, and with chunks in two ledgers."""
    cluster, topic = endpoints.cluster(), name()
    await cluster.create(topic, 1)
    full = pulsar.keep(f"persistent://public/default/{topic}-partition-0")
    one, other = (client.producer(full, ProducerSettings(chunking=True, chunk_bytes=1000)) for _ in range(2))
    sends = [one.send(MessageMetadata(), b"A" * 4500), other.send(MessageMetadata(), b"B" * 3500)]
    sends += [producer.send(MessageMetadata(), b"%d" % number) for number in range(4) for producer in (one, other)]
    await asyncio.gather(*sends)
    await cluster._admin.unload(parse_topic(full))
    await one.send(MessageMetadata(), b"C" * 2500)
    bounds = (await cluster.bounds(topic))["0"]
    unit_ranges = await cluster.measure(topic, "0", bounds.first, bounds.next)
    assert (len(unit_ranges), count_units(unit_ranges)) == (2, 5 + 4 + 8 + 3)

    async def payloads(begin, end) -> list[bytes]:
        async with aclosing(reading.read(cluster, topic, "0", begin, end)) as batches:
            return [message.payload async for batch in batches for message in batch.messages if message.defect is None]

    whole = await payloads(bounds.first, bounds.next)
    assert len(whole) == 11
    for unit in range(1, count_units(unit_ranges)):
        cut = position_after(unit_ranges, unit, bounds.next)
        assert await payloads(bounds.first, cut) + await payloads(cut, bounds.next) == whole, cut
    await asyncio.gather(one.close(), other.close())


@pytest.mark.cluster
async def test_new_partitions_become_lanes(endpoints):
    cluster, topic = endpoints.cluster(refresh="200ms"), name()
    await cluster.create(topic, 1)
    lanes = (await endpoints.inbound(cluster, topic, subscription_type="exclusive")).lanes()
    assert (await asyncio.wait_for(anext(lanes), SERVER_PATIENCE_S)).partition.name == "0"
    await cluster.create(topic, 3)
    names = [(await asyncio.wait_for(anext(lanes), SERVER_PATIENCE_S)).partition.name for _ in range(2)]
    assert names == ["1", "2"]


@pytest.mark.cluster
async def test_a_deleted_topic_revokes_its_lanes_until_it_is_created_again(pulsar, endpoints):
    """Nothing may request the topic, because the broker would auto-create it.

    The check for new partitions runs so late that the test writes to the new topic before it.
    """
    cluster, topic = endpoints.cluster(refresh="3s"), name()
    await cluster.create(topic, 1)
    inbound = await endpoints.inbound(cluster, topic, subscription_type="exclusive", start=Start.LATEST)
    lanes = inbound.lanes()
    lane = await asyncio.wait_for(anext(lanes), SERVER_PATIENCE_S)
    await asyncio.to_thread(pulsar.admin, "DELETE", f"persistent/public/default/{topic}/partitions?force=true")
    with pytest.raises(LaneRevoked):
        await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S)
    assert topic not in await cluster.topics()
    await cluster.create(topic, 1)
    outbound = await cluster.outbound(OutboundSpec(topic))
    await outbound.send(0, Share(Batch.of([Message(b"new")])))
    lane = await asyncio.wait_for(anext(lanes), SERVER_PATIENCE_S)
    batch = await asyncio.wait_for(lane.receive(), SERVER_PATIENCE_S)
    assert [message.payload for message in batch.messages] == [b"new"]
    await outbound.close()
