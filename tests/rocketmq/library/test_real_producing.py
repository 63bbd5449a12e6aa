"""Messages, delays, transactions and look-ups at a real broker 5.3.3, read back by plain pulls and queries."""

import asyncio
import time

import pytest

from mqbridge.errors import MappingError
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.partitions import find_queue
from mqbridge.rocketmq.library.producer import Producer
from mqbridge.rocketmq.library.query import Query
from mqbridge.rocketmq.library.transactions import Half, State, TransactionProducer
from mqbridge.rocketmq.mapping.compressed_body import Compression
from tests.kit.rocketmq import RocketMQ
from tests.rocketmq.client.test_real_producing import client, properties_of, read, read_all, wait_for_result

__all__ = ["client"]

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(240)]


async def test_every_field_of_a_message_is_stored(rocketmq: RocketMQ, client: ClusterClient):
    topic = rocketmq.take_topic(4)
    producer = Producer(client.producer("P", topic), compression="zlib")
    body = b"compressible " * 1000
    result = await producer.send(body, key="shard", keys=["k1", "k2"], msg_type="tag", properties={"own": "ä\n"}, flag=9)
    codecs: list[Compression] = ["lz4", "zstd", "none"]
    for codec in codecs:
        await Producer(client.producer("P", topic), compression=codec).send(body, key="shard")
    queue = find_queue(topic, (await client.routes.get(topic)).write_queues(), result.partition)
    records = await read(client, queue)
    assert [record.body for record in records] == [body] * 4
    found = properties_of(records[0])
    assert (found["TAGS"], found["KEYS"], found["own"], found["__SHARDINGKEY"]) == ("tag", "k1 k2", "ä\n", "shard")
    assert records[0].flag == 9
    await producer.send_oneway(OutgoingMessage(b"one way"), partition=result.partition)

    async def arrived():
        return [record for record in await read(client, queue) if record.body == b"one way"]

    assert await wait_for_result(arrived)


async def test_every_pipelined_send_is_stored_once(rocketmq: RocketMQ, client: ClusterClient):
    topic = rocketmq.take_topic(4)
    producer = Producer(client.producer("P", topic, in_flight_per_queue=64))
    results = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(2000)))
    assert len({(result.partition, result.position) for result in results}) == 2000
    records = await read_all(client, topic)
    assert sorted(int(record.body) for record in records) == list(range(2000))
    await producer.close()


async def test_delay_levels_and_timers_delay_messages(rocketmq: RocketMQ, client: ClusterClient):
    topic = rocketmq.take_topic(1)
    producer = Producer(client.producer("P", topic))
    now = time.time_ns() // 1_000_000
    await producer.send(b"level", delay_level=1)
    await producer.send(b"timer", deliver_at=now + 2000)
    early = await read_all(client, topic)
    assert not early or time.time_ns() // 1_000_000 - now >= 1000

    async def both():
        records = await read_all(client, topic)
        return records if len(records) == 2 else None

    found = {record.body: record for record in await wait_for_result(both)}
    assert found[b"level"].store_timestamp - now >= 1000
    assert found[b"timer"].store_timestamp - now >= 1000
    with pytest.raises(MappingError, match="timerMaxDelaySec"):
        await producer.send(b"too far", deliver_at=now + 4 * 86_400_000)


async def test_transactions(rocketmq: RocketMQ, client: ClusterClient):
    topic = rocketmq.take_topic(1)
    # By default the broker stores outcomes only every 3 s. The transaction timeout of these tests is shorter, so the broker would
    # ask for outcomes that it has already received.
    await client.admin.update_broker_config(rocketmq.broker_address, {"transactionOpBatchInterval": 100})
    asked: list[bytes] = []

    async def check(half: Half) -> State:
        asked.append(half.record.body)
        return State.ROLLBACK if half.record.body == b"unknown, rolled back" else State.COMMIT

    producer = TransactionProducer(client, "TG", topic, check)
    plan = {b"committed": State.COMMIT, b"rolled back": State.ROLLBACK, b"unknown, committed" * 500: State.UNKNOWN}
    for body, state in [*plan.items(), (b"unknown, rolled back", State.UNKNOWN)]:
        result = await producer.send(OutgoingMessage(body, msg_type="tag", delay_level=2), lambda *_, state=state: state)
        assert result.state is state

    async def checked():
        records = await read_all(client, topic)
        return records if len(records) >= 2 and b"unknown, rolled back" in asked else None

    records = await wait_for_result(checked)
    assert [record.body for record in records] == [b"committed", b"unknown, committed" * 500]
    assert all(properties_of(record)["TAGS"] == "tag" for record in records)
    assert b"unknown, committed" * 500 in asked
    await producer.close()


async def test_messages_are_found_by_key_unique_key_and_offset_id(rocketmq: RocketMQ, client: ClusterClient):
    topic = rocketmq.take_topic(2)
    producer = Producer(client.producer("P", topic))
    results = [await producer.send(b"%d" % number, keys=[f"k{number}", "all"]) for number in range(4)]
    await producer.send_batch([OutgoingMessage(b"b", keys=["batch"]), OutgoingMessage(b"c", keys=["batch"])])

    async def indexed():
        found = await Query(client).by_key(topic, "batch")
        return found if len(found) == 2 else None

    assert [record.body for record in await wait_for_result(indexed)] == [b"b", b"c"]
    assert [record.body for record in await Query(client).by_key(topic, "k2")] == [b"2"]
    assert sorted(record.body for record in await Query(client).by_key(topic, "all")) == [b"0", b"1", b"2", b"3"]
    assert await Query(client).by_key(topic, "none") == []
    (record,) = await Query(client).by_key(topic, "k1")
    unique = properties_of(record)["UNIQ_KEY"]
    assert [record.body for record in await Query(client).by_unique_key(topic, unique)] == [b"1"]
    found = await Query(client).by_offset_id(results[3].message_id)
    assert found is not None
    assert (found.body, found.queue_offset) == (b"3", results[3].position[0])
    assert await Query(client).by_offset_id(results[3].message_id[:16] + "00000FFFFFFFFFFF") is None
