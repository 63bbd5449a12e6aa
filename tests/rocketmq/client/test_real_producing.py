"""Producing to and administering a real broker 5.3.3, read back by plain pulls and queries."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.connection.route_table import Queue
from mqbridge.rocketmq.wire import batch
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig
from mqbridge.rocketmq.wire.bodies.routes import KvTable
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.pull import PullFlag, PullHeader, PullResult
from mqbridge.rocketmq.wire.record import MAX_MESSAGE_BYTES, Record, decode_records
from tests.kit.rocketmq import RocketMQ

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(240)]

READER = "reader"
MAX_PENDING = 200
"""Sends that wait while a broker is down; each costs a round trip when it is back."""


@pytest_asyncio.fixture
async def client(rocketmq: RocketMQ) -> AsyncIterator[ClusterClient]:
    client = ClusterClient([rocketmq.name_server])
    await client.connect()
    yield client
    await client.close()


async def indexed(client: ClusterClient, address: str | None) -> bool:
    """Return whether the broker has added all stored messages to their queues, which happens after the response to a send."""
    assert address is not None
    answer = await client.request(address, Code.GET_BROKER_RUNTIME_INFO, {})
    return KvTable.decode(answer.body).table["dispatchBehindBytes"] == "0"


async def read(client: ClusterClient, queue: Queue) -> list[Record]:
    """Read all messages of a queue by pulls that neither use nor change the offsets of a group."""
    route = await client.routes.get(queue.topic)
    assert route is not None
    found: list[Record] = []
    await wait_for_result(lambda: indexed(client, route.master(queue.broker)))
    at = await client.positions.first(queue)
    while True:
        header = PullHeader(READER, queue.topic, queue.id, at, 1000, PullFlag.SUBSCRIPTION, 0, 0, 0, "*", "TAG")
        address = route.reader(queue.broker)
        assert address is not None
        empty = frozenset({Status.SUCCESS, Status.PULL_NOT_FOUND, Status.PULL_OFFSET_MOVED})
        answer = await client.request(address, Code.PULL_MESSAGE, header.encode(), accept=empty)
        if answer.code != Status.SUCCESS:
            return found
        found += decode_records(answer.body)
        at = PullResult.decode(answer.ext).next_begin_offset


async def read_all(client: ClusterClient, topic: str) -> list[Record]:
    route = await client.routes.get(topic, fresh=True)
    assert route is not None
    return [record for queue in route.read_queues() for record in await read(client, queue)]


def properties_of(record: Record) -> dict[str, str]:
    return dict(props.decode(record.properties))


async def wait_for_result(condition, timeout_s: float = 60.0):
    """Call `condition` until its result is true, and return the result."""
    async with asyncio.timeout(timeout_s):
        while not (found := await condition()):
            await asyncio.sleep(0.1)
    return found


# --- sending --------------------------------------------------------------------------------------------------------------


async def test_batches_keep_order_and_bytes(rocketmq: RocketMQ, client: ClusterClient):
    producer = client.producer("P", rocketmq.take_topic(2))
    queues = await producer.queues()
    sent = []
    for number in range(60):
        properties = [props.encode([("n", f"{number}.{index}"), ("é", "ü")]) for index in range(10)]
        body = b"".join(
            batch.encode_element(b"%d.%d" % (number, index), encoded, index) for index, encoded in enumerate(properties)
        )
        sent.append(producer.send_batch(queues[number % 2], body, 10, 1234))
    results = await asyncio.gather(*sent)
    assert [result.offset for result in results] == [number // 2 * 10 for number in range(60)]
    for parity, queue in enumerate(queues):
        records = await read(client, queue)
        expected = [(number, index) for number in range(parity, 60, 2) for index in range(10)]
        assert [record.body for record in records] == [b"%d.%d" % pair for pair in expected]
        assert [properties_of(record)["n"] for record in records] == [f"{number}.{index}" for number, index in expected]
        assert all(record.defect is None and properties_of(record)["é"] == "ü" for record in records)
        assert [record.queue_offset for record in records] == list(range(300))
        assert [record.flag for record in records] == [index for _, index in expected]
        assert all(record.born_timestamp == 1234 for record in records)
        ids = {properties_of(record)["UNIQ_KEY"] for record in records if "UNIQ_KEY" in properties_of(record)}
        assert len(ids) in {0, 300}, "a batch must not get one id for all"


async def test_refusals_of_the_broker_have_the_right_failure(rocketmq: RocketMQ, client: ClusterClient):
    topic = rocketmq.take_topic(1)
    at_limit = client.producer("P", topic)
    queue = (await at_limit.queues())[0]
    await at_limit.send_single(queue, bytes(MAX_MESSAGE_BYTES), b"")
    beyond = client.producer("P", topic, max_message_bytes=8 << 20)
    with pytest.raises(ServerRefused) as caught:
        await beyond.send_single(queue, bytes(MAX_MESSAGE_BYTES + 1), b"")
    assert (caught.value.failure, caught.value.code) == (Failure.REFUSED, Status.MESSAGE_ILLEGAL)
    element = batch.encode_element(bytes(100_000), b"")
    assert (await at_limit.send_batch(queue, element * 41, 41, 0)).offset == 1
    with pytest.raises(ServerRefused) as caught:
        await beyond.send_batch(queue, element * 42, 42, 0)
    assert caught.value.failure is Failure.REFUSED
    with pytest.raises(ClusterError) as gone:
        await beyond.send_single(Queue(topic, "broker-a", 99), b"x", b"")
    assert gone.value.failure is Failure.REFRESH
    with pytest.raises(ServerRefused) as caught:
        await client.producer("P", "missing").queues()
    assert caught.value.failure is Failure.FATAL


# --- administration -------------------------------------------------------------------------------------------------------


async def test_topics_are_created_grown_shrunk_and_deleted(rocketmq: RocketMQ, client: ClusterClient):
    topic, routes = "made_here", list[TopicRoute]()
    client.routes.watch(topic, routes.append)
    await client.admin.create_topic(topic, 2, attributes={"message.type": "FIFO"})
    await client.admin.create_topic(topic, 5)
    await client.admin.create_topic(topic, 3, read_queues=5)
    assert [(len(route.read_queues()), len(route.write_queues())) for route in routes] == [(2, 2), (5, 5), (5, 3)]
    config = (await client.admin.topic_config(topic))["broker-a"]
    assert (config.read_queues, config.write_queues, config.attributes) == (5, 3, {"message.type": "FIFO"})
    assert topic in await client.admin.topics("DefaultCluster")
    user = await client.admin.user_topics()
    assert topic in user
    assert not {"TBW102", "DefaultCluster", "broker-a", "SCHEDULE_TOPIC_XXXX"} & {*user}
    producer = client.producer("P", topic)
    await producer.send_single(Queue(topic, "broker-a", 1), b"x", b"")
    with pytest.raises(ClusterError) as caught:
        await producer.send_single(Queue(topic, "broker-a", 4), b"x", b"")
    assert caught.value.failure is Failure.REFRESH, "it can be read only"
    await asyncio.to_thread(rocketmq.settle)
    stats = await client.admin.topic_stats(topic)
    assert stats[Queue(topic, "broker-a", 1)].max_offset == 1
    await client.admin.delete_topic(topic)
    assert topic not in await client.admin.topics()
    assert await client.admin.topic_config(topic) == {}
    with pytest.raises(ServerRefused) as refused:
        await producer.send_single(Queue(topic, "broker-a", 1), b"x", b"")
    assert refused.value.failure is Failure.FATAL
    await client.admin.delete_topic(topic)


async def test_settings_of_a_broker_are_read_and_changed(rocketmq: RocketMQ, client: ClusterClient):
    info = await client.admin.cluster()
    assert info.brokers["broker-a"].addresses == {0: rocketmq.broker_address}
    assert await client.admin.masters("DefaultCluster") == {"broker-a": rocketmq.broker_address}
    settings = await client.admin.broker_config(rocketmq.broker_address)
    assert int(settings["maxMessageSize"]) == MAX_MESSAGE_BYTES
    name = "maxMsgsNumBatch"
    await client.admin.update_broker_config(rocketmq.broker_address, {name: 65})
    assert (await client.admin.broker_config(rocketmq.broker_address))[name] == "65"
    await client.admin.update_broker_config(rocketmq.broker_address, {name: settings[name]})


async def test_groups_are_created_moved_reset_and_deleted(rocketmq: RocketMQ, client: ClusterClient):
    topic, group = rocketmq.take_topic(1), "admin_group"
    producer = client.producer("admin_producers", topic)
    queue = Queue(topic, "broker-a", 0)
    for number in range(4):
        await producer.send_single(queue, b"%d" % number, b"")
        await asyncio.sleep(0.01)
    times = [record.store_timestamp for record in await read(client, queue)]
    assert (await client.positions.first(queue), await client.positions.next(queue)) == (0, 4)
    assert await client.positions.earliest_time(queue) == times[0]
    assert [await client.positions.at(queue, time) for time in times] == [0, 1, 2, 3]
    assert await client.positions.at(queue, times[3] + 1) == 4
    assert await client.positions.at(queue, times[2] + 1, upper=True) == 2

    assert await client.positions.committed(queue, group) is None
    with pytest.raises(ServerRefused) as caught:
        await client.positions.commit(queue, group, 1)
    assert caught.value.failure is Failure.FATAL
    await client.groups.create(GroupConfig(group, retry_max_times=3))
    assert (await client.groups.configs())[group]["broker-a"].retry_max_times == 3
    await client.groups.write(group, {queue: 1})
    assert await client.positions.committed(queue, group) == 1
    assert await client.groups.offsets(group) == {(group, queue): 1}
    assert (await client.groups.progress(group, topic))[queue].consumer_offset == 1
    assert (await client.groups.topics_of(group), await client.groups.groups_of(topic)) == ([topic], [group])
    assert await client.groups.consumers(group) is None

    async def connected():
        return await client.groups.producers("admin_producers")

    assert [one.client_id for one in await wait_for_result(connected)] == [client.client_id]
    assert await client.groups.producers("nobody") == []
    assert await client.groups.reset(group, topic, times[2]) == {queue: 2}
    assert await client.positions.committed(queue, group) == 2
    assert await client.groups.reset(group, topic, -1) == {queue: 4}
    await client.groups.write(group, {queue: 3})
    assert await client.positions.committed(queue, group) == 3, "also while a reset is pending"
    await client.groups.delete(group)
    assert group not in await client.groups.configs()
    assert await client.positions.committed(queue, group) is None


# --- faults ---------------------------------------------------------------------------------------------------------------


def distinct(bodies: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(bodies))


async def test_a_killed_broker_loses_nothing_and_keeps_the_order():
    with RocketMQ() as cluster:
        topic = cluster.take_topic(2)
        client = ClusterClient([cluster.name_server])
        await client.connect()
        producer = client.producer("P", topic)
        queues = await producer.queues()
        sent: list[asyncio.Future] = []
        stop = asyncio.Event()

        async def produce() -> None:
            while not stop.is_set():
                for _ in range(20 if producer.pending < MAX_PENDING else 0):
                    number = len(sent)
                    sent.append(producer.send_single(queues[number % 2], b"%d" % number, b""))
                await asyncio.sleep(0.02)

        producing = asyncio.ensure_future(produce())
        await wait_for_result(lambda: _done(sent, 200))
        await asyncio.to_thread(cluster.kill_broker)
        await asyncio.to_thread(cluster.restart_broker)
        count = len(sent)
        await wait_for_result(lambda: _done(sent, count + 200))
        await asyncio.to_thread(cluster.name_server_process.kill)
        count = len(sent)
        await wait_for_result(lambda: _done(sent, count + 200))
        stop.set()
        await producing
        await asyncio.gather(*sent)
        await asyncio.to_thread(cluster.name_server_process.start)
        for parity, queue in enumerate(queues):
            stored = distinct([record.body for record in await read(client, queue)])
            assert stored == [b"%d" % number for number in range(parity, len(sent), 2)]
        await producer.close()
        await client.close()


async def _done(sent: list[asyncio.Future], count: int) -> bool:
    return len(sent) > count and all(one.done() for one in sent[:count])
