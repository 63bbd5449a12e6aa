"""The public producer: how messages are encoded, which queue they are sent to, and which share a batch."""

import asyncio
import time
from dataclasses import replace

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MappingError, RequestTimeout
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.library.outgoing import OutgoingMessage
from mqbridge.rocketmq.library.producer import Producer
from mqbridge.rocketmq.wire import compression
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.record import SysFlag
from mqbridge.wire.javahash import java_string_hash
from tests.rocketmq.client.broker import TOPIC, A, B, Cluster, hangs_up, refuses, silent, store, stored_with, until

SINGLE, BATCH = Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE
ON_A = "broker-a:0"


@pytest_asyncio.fixture
async def producer(client: ClusterClient) -> Producer:
    return Producer(client.producer("P", TOPIC, max_elapsed_s=5.0), compression="zlib")


def bodies(cluster: Cluster, address: str = A, queue: int = 0) -> list[bytes]:
    return [body for body, _ in cluster.stored[address, queue]]


async def test_every_field_is_stored_as_a_property_or_in_the_header(cluster: Cluster, producer: Producer):
    body = b"x" * 5000
    receipt = await producer.send(
        body, key="shard", keys=["k1", "k2"], msg_type="tag", properties={"own": "1"}, event_time=99, delay_level=3, flag=7
    )
    (header,) = cluster.headers(SINGLE)
    pairs = dict(props.decode(header.properties.encode()))
    assert len(pairs.pop("UNIQ_KEY")) == 32
    assert (pairs.pop("mqbridge.event_time"), pairs.pop("mqbridge.order")) == ("99", "0")
    assert pairs == {"TAGS": "tag", "KEYS": "k1 k2", "own": "1", "__SHARDINGKEY": "shard", "DELAY": "3"}
    assert (header.flag, header.born_timestamp, header.batch) == (7, 99, False)
    assert header.sys_flag == SysFlag.COMPRESSED | compression.ZLIB
    (request,) = cluster.requests[SINGLE]
    assert compression.decompress(compression.ZLIB, request.body) == body
    assert receipt.partition == (await producer.partitions())[abs(java_string_hash("shard")) % 4]
    assert receipt.position == (), "a delayed message is stored in another topic first"


async def test_deliver_at_becomes_a_timer(cluster: Cluster, producer: Producer):
    at = time.time_ns() // 1_000_000 + 60_000
    cluster.on[Code.GET_BROKER_CONFIG] = refuses(Status.NO_PERMISSION)
    await producer.send(b"x" * 5000, deliver_at=at)
    (header,) = cluster.headers(SINGLE)
    assert dict(props.decode(header.properties.encode()))["TIMER_DELIVER_MS"] == str(at)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"delay_level": 1, "deliver_at": 5}, "cannot have both"),
        ({"delay_level": 19}, "levels 1 to 18"),
        ({"delay_level": -1}, "levels 1 to 18"),
        ({"properties": {"a": "x" * 40_000}}, "bytes of properties"),
        ({"deliver_at": 1 << 60}, "timerMaxDelaySec"),
    ],
)
async def test_a_message_that_rocketmq_cannot_store_is_refused_before_sending(
    cluster: Cluster, producer: Producer, fields, problem
):
    cluster.on[Code.GET_BROKER_CONFIG] = refuses(Status.NO_PERMISSION)
    with pytest.raises(MappingError, match=problem):
        await producer.send(b"x", **fields)
    assert cluster.requests[SINGLE] == cluster.requests[BATCH] == []


async def test_a_payload_of_a_wrong_type_fails_its_message_only(cluster: Cluster, producer: Producer):
    done = await asyncio.gather(
        producer.send(b"1"), producer.send("text"), producer.send(b"2", properties={"a": 1}), return_exceptions=True
    )
    assert [type(one).__name__ for one in done] == ["SendReceipt", "TypeError", "TypeError"]


async def test_a_key_chooses_its_queue_and_other_messages_are_sent_round_robin(cluster: Cluster, producer: Producer):
    for _ in range(8):
        await producer.send(b"x")
    assert {queue: len(stored) for queue, stored in cluster.stored.items()} == {(A, 0): 2, (A, 1): 2, (B, 0): 2, (B, 1): 2}
    assert len({(await producer.send(b"x", key="same")).partition for _ in range(5)}) == 1
    assert (await producer.send(b"x", key="same", partition="broker-b:0")).partition == "broker-b:0"
    with pytest.raises(ClusterError, match=r"no queue 'broker-b:9' now; its queues are: broker-a:0, broker-a:1") as caught:
        await producer.send(b"x", partition="broker-b:9")
    assert caught.value.failure is Failure.FATAL


async def test_concurrent_sends_share_a_batch_in_their_order(cluster: Cluster, producer: Producer):
    receipts = await asyncio.gather(*(producer.send(b"%d" % n, key="k") for n in range(100)))
    assert [receipt.position for receipt in receipts] == [(n,) for n in range(100)]
    assert len({receipt.message_id for receipt in receipts}) == 100
    assert len(cluster.requests[BATCH]) == 1
    (stored,) = [messages for messages in cluster.stored.values() if messages]
    assert [body for body, _ in stored] == [b"%d" % n for n in range(100)]


async def test_a_receipt_tells_that_a_message_has_no_replica_yet(cluster: Cluster, producer: Producer):
    assert (await producer.send(b"x")).status == "SUCCESS"
    cluster.on[BATCH] = stored_with(Status.SLAVE_NOT_AVAILABLE)
    assert (await producer.send(b"x")).status == "SLAVE_NOT_AVAILABLE"


async def test_sends_during_a_request_share_the_next_batch(cluster: Cluster, producer: Producer):
    cluster.on[BATCH] = silent
    sends = [asyncio.ensure_future(producer.send(b"0", partition=ON_A))]
    await until(lambda: cluster.requests[BATCH])
    sends += [asyncio.ensure_future(producer.send(b"%d" % n, partition=ON_A)) for n in range(1, 50)]
    await asyncio.sleep(0.01)
    assert len(cluster.requests[BATCH]) == 1
    cluster.on[BATCH] = store
    cluster.link_to(A).drop()  # the first request is sent again
    await asyncio.gather(*sends)
    assert bodies(cluster) == [b"%d" % n for n in range(50)]
    assert len(decode_batch(cluster.requests[BATCH][-1].body)) == 49


async def test_send_waits_while_too_many_bytes_are_pending(cluster: Cluster, client: ClusterClient):
    producer = Producer(client.producer("P", TOPIC), max_pending_bytes=4000)
    cluster.on[BATCH] = silent
    sends = [asyncio.ensure_future(producer.send(bytes(1000), partition=ON_A)) for _ in range(10)]
    await until(lambda: cluster.requests[BATCH])
    await asyncio.sleep(0.01)
    assert sum(len(decode_batch(request.body)) for request in cluster.requests[BATCH]) == 3
    cluster.on[BATCH] = store
    cluster.link_to(A).drop()
    await asyncio.gather(*sends)
    await producer.flush()
    assert len(bodies(cluster)) == 10


async def test_cancelling_a_queued_send_does_not_affect_the_others(cluster: Cluster, producer: Producer):
    await producer.send(b"1", partition=ON_A)
    sends = [asyncio.ensure_future(producer.send(b"%d" % n, partition=ON_A)) for n in (2, 3, 4)]
    asyncio.get_running_loop().call_soon(sends[1].cancel)
    await asyncio.gather(*sends, return_exceptions=True)
    await producer.flush()
    assert bodies(cluster)[0] == b"1"
    assert {b"2", b"4"} <= {*bodies(cluster)}


async def test_a_batch_is_one_request(cluster: Cluster, producer: Producer):
    receipts = await producer.send_batch([OutgoingMessage(b"a", keys=["1"]), OutgoingMessage(b"b")], partition=ON_A)
    assert [(receipt.partition, receipt.position) for receipt in receipts] == [(ON_A, (0,)), (ON_A, (1,))]
    assert bodies(cluster) == [b"a", b"b"]
    ids = {dict(props.decode(properties.encode()))["UNIQ_KEY"] for _, properties in cluster.stored[A, 0]}
    assert len(ids) == 2
    assert await producer.send_batch([]) == []
    for wrong in ([OutgoingMessage(b"a", delay_level=1)], [OutgoingMessage(bytes(2 << 20)), OutgoingMessage(b"")]):
        with pytest.raises(MappingError, match="do not fit into one batch"):
            await producer.send_batch(wrong)


async def test_a_oneway_send_is_delayed(cluster: Cluster, producer: Producer):
    at = time.time_ns() // 1_000_000 + 60_000
    await producer.send_oneway(OutgoingMessage(b"x", deliver_at=at))
    await until(lambda: cluster.requests[SINGLE])
    (header,) = cluster.headers(SINGLE)
    assert dict(props.decode(header.properties.encode()))["TIMER_DELIVER_MS"] == str(at)
    with pytest.raises(MappingError, match="holds messages for"):
        await producer.send_oneway(OutgoingMessage(b"x", deliver_at=at + 10**12))


async def test_a_oneway_send_waits_for_no_response(cluster: Cluster, producer: Producer):
    cluster.on[SINGLE] = silent
    await producer.send_oneway(OutgoingMessage(b"x"), partition=ON_A)
    await until(lambda: cluster.requests[SINGLE])
    assert cluster.requests[SINGLE][0].is_oneway


async def test_a_oneway_send_waits_until_the_broker_reads(cluster: Cluster, client: ClusterClient):
    message = OutgoingMessage(bytes(1000))
    producer = Producer(client.producer("P", TOPIC, max_elapsed_s=5.0), max_pending_bytes=10 * message.size)
    await producer.send_oneway(message, partition=ON_A)
    await until(lambda: cluster.requests[SINGLE])
    endpoint = cluster.link_to(A).endpoint
    endpoint.pause_writing()  # as a transport whose buffer is full
    sends = [asyncio.ensure_future(producer.send_oneway(message, partition=ON_A)) for _ in range(100)]
    await until(lambda: len(producer._window._waiters) == 90)
    assert len(cluster.requests[SINGLE]) == 1
    assert producer._window.bytes_in_flight == 10 * message.size, "the others are not encoded yet"
    endpoint.resume_writing()
    await asyncio.gather(*sends)
    await until(lambda: len(cluster.requests[SINGLE]) == 101)


async def test_a_oneway_send_fails_if_the_broker_does_not_read(cluster: Cluster, client: ClusterClient, producer: Producer):
    await producer.send_oneway(OutgoingMessage(b"x"), partition=ON_A)
    client.timing = replace(client.timing, request=0.01)
    cluster.link_to(A).endpoint.pause_writing()
    with pytest.raises(RequestTimeout, match="has not read the requests sent before"):
        await producer.send_oneway(OutgoingMessage(b"y"), partition=ON_A)
    await producer.send_oneway(OutgoingMessage(b"z"), partition=ON_A)  # over a new connection
    await until(lambda: len(cluster.requests[SINGLE]) == 2)


async def test_messages_without_a_key_move_to_another_broker(cluster: Cluster, producer: Producer):
    await producer.partitions()
    cluster.unreachable.add(A)
    cluster.at[A, BATCH] = hangs_up
    receipts = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(20)))
    assert {receipt.partition.partition(":")[0] for receipt in receipts} <= {"broker-a", "broker-b"}
    waiting = asyncio.ensure_future(producer.send(b"stays", partition=ON_A))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    receipts = await asyncio.gather(*(producer.send(b"%d" % n) for n in range(20)))
    assert {receipt.partition.partition(":")[0] for receipt in receipts} == {"broker-b"}
    cluster.unreachable.clear()
    del cluster.at[A, BATCH]
    assert (await waiting).partition == ON_A


async def test_close_waits_for_receipts_then_fails_messages_without_one(cluster: Cluster, producer: Producer):
    cluster.on[BATCH] = silent
    sends = [asyncio.ensure_future(producer.send(b"%d" % n, partition=ON_A)) for n in range(3)]
    await until(lambda: cluster.requests[BATCH])
    sends.append(asyncio.ensure_future(producer.send(b"waits", partition=ON_A)))
    await asyncio.sleep(0)
    await producer.close(timeout=0.05)
    done = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(one) for one in done] == [ConnectionLost] * 4
    with pytest.raises(ClusterError, match="closed"):
        await producer.send(b"late")
    assert producer.closed
    await producer.close()


@pytest.mark.parametrize(
    "fields", [{"keys": [1]}, {"event_time": "now"}, {"delay_level": "1"}], ids=lambda fields: next(iter(fields))
)
async def test_fields_of_wrong_types_fail_their_message_only(cluster: Cluster, producer: Producer, fields):
    await producer.partitions()
    sends = [
        producer.send(b"1", partition=ON_A),
        producer.send(b"2", partition=ON_A, **fields),
        producer.send(b"3", partition=ON_A),
    ]
    first, second, third = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(second, TypeError)
    assert (first.position, third.position) == ((0,), (1,))
    await producer.flush()


async def test_close_sends_messages_that_wait_for_the_window(cluster: Cluster, client: ClusterClient):
    producer = Producer(client.producer("P", TOPIC), max_pending_bytes=4000)
    sends = [asyncio.ensure_future(producer.send(bytes(1000), partition=ON_A)) for _ in range(10)]
    await asyncio.sleep(0)
    await producer.close()
    await asyncio.gather(*sends)
    assert len(bodies(cluster)) == 10


async def test_a_close_that_is_cancelled_ends_at_once(cluster: Cluster, producer: Producer):
    cluster.on[BATCH] = silent
    sending = asyncio.ensure_future(producer.send(b"x", partition=ON_A))
    await until(lambda: cluster.requests[BATCH])
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(timeout=60.0), 0.01)
    assert time.monotonic() - begun < 30
    with pytest.raises(ConnectionLost):
        await sending


async def test_a_send_waits_while_no_broker_has_a_master(cluster: Cluster, producer: Producer):
    await producer.send(b"before", key="a")
    cluster.brokers = {"broker-a": {1: A}, "broker-b": {1: B}}  # only slaves
    await producer._queue_producer.client.routes.get(TOPIC, fresh=True)
    sends = [asyncio.ensure_future(producer.send(b"%d" % number, key="a")) for number in range(20)]
    await until(lambda: producer._queue_wait._waiting == 20)
    cluster.brokers = {"broker-a": {0: A}, "broker-b": {0: B}}
    sends += [asyncio.ensure_future(producer.send(b"%d" % number, key="a")) for number in range(20, 30)]
    receipts = await asyncio.gather(*sends)
    assert [receipt.position for receipt in receipts] == [(number,) for number in range(1, 31)], "in their order"


@pytest.mark.parametrize("max_elapsed_s", [0.0, 0.05])
async def test_a_send_waits_for_a_master_as_long_as_it_may(cluster: Cluster, client: ClusterClient, max_elapsed_s: float):
    producer = Producer(client.producer("P", TOPIC, max_elapsed_s=max_elapsed_s))
    cluster.brokers = {"broker-a": {1: A}, "broker-b": {1: B}}
    with pytest.raises(ClusterError, match="has no queue that accepts messages") as caught:
        await producer.send(b"x")
    assert caught.value.failure is Failure.REFRESH
    await producer.close()


async def test_close_ends_a_send_that_waits_for_a_master(cluster: Cluster, producer: Producer):
    cluster.brokers = {"broker-a": {1: A}, "broker-b": {1: B}}
    waiting = asyncio.ensure_future(producer.send(b"x"))
    await until(lambda: producer._queue_wait._waiting == 1)
    await producer.close(timeout=0.01)
    with pytest.raises(ClusterError, match="is closed"):
        await waiting
