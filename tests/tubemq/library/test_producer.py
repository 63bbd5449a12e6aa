"""The producer: what it stores, in which partition, and which messages it refuses."""

import asyncio
from typing import Any

import pytest

from mqbridge.errors import ClusterError, ConfigError, ConnectionLost, Failure, MappingError, ServerRefused
from mqbridge.message import Message
from mqbridge.tubemq.library.client import TubeMQClient
from mqbridge.tubemq.mapping.stored import decode
from mqbridge.tubemq.wire import rpc
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import BROKER, Model


def stored(cluster: Model, topic: str, partition: int) -> list[Message]:
    return list(decode(cluster.broker.stored[topic, partition], 0))


async def test_every_field_is_stored_as_the_mapping_writes_it(client: TubeMQClient, cluster: Model) -> None:
    async with client.producer("single") as producer:
        receipt = await producer.send(
            b"body",
            key="customer,7",
            keys=("a", "b c"),
            msg_type="paid",
            properties=[("x", "1,2=3"), ("x", "again"), ("mqbridge.key", "a user's")],
            event_time=1_700_000_000_123,
            deliver_at=1_700_000_060_000,
        )
        await producer.send(None, key=b"\xff")
        await producer.send(b"")
    assert (receipt.topic, receipt.partition, receipt.position, receipt.message_id) == ("single", "1:0", (), "0")
    first, tombstone, empty = stored(cluster, "single", 0)
    assert first.payload == b"body"
    assert (first.key, first.keys, first.msg_type) == ("customer,7", ("a", "b c"), "paid")
    assert first.properties == (("x", "1,2=3"), ("x", "again"), ("mqbridge.key", "a user's"))
    assert (first.event_time, first.deliver_at) == (1_700_000_000_123, 1_700_000_060_000)
    assert (tombstone.payload, tombstone.key) == (None, b"\xff")
    assert empty.payload == b""


async def test_an_attribute_string_is_stored_byte_for_byte(client: TubeMQClient, cluster: Model) -> None:
    text = "$msgType$=paid,$msgTime$=202401020304,a=b,no pair"
    async with client.producer("single") as producer:
        await producer.send(b"x", attributes=text)
        await producer.send(b"y", attributes=text.encode(), msg_type="paid", key="k")
    first, second = stored(cluster, "single", 0)
    assert first.attributes == text.encode()
    assert first.msg_type == "paid"
    assert (second.attributes, second.key, second.event_time) == (text.encode(), "k", first.event_time)


@pytest.mark.parametrize(
    "arguments",
    [
        {"attributes": "a=b", "properties": {"c": "d"}},
        {"attributes": "$msgType$=a", "msg_type": "b"},
        {"properties": {"a": "\ud800"}},
    ],
    ids=["attributes and properties", "two types", "a lone surrogate"],
)
async def test_a_message_that_cannot_be_mapped_is_refused(client: TubeMQClient, arguments: Any) -> None:
    async with client.producer("single") as producer:
        with pytest.raises(MappingError):
            await producer.send(b"x", **arguments)


async def test_concurrent_sends_keep_their_order_per_key(client: TubeMQClient, cluster: Model) -> None:
    async with client.producer("demo") as producer:
        receipts = await asyncio.gather(*(producer.send(b"%03d" % n, key=f"k{n % 7}") for n in range(140)))
    assert len({receipt.partition for receipt in receipts}) > 1
    for key in range(7):
        found = [
            message.payload
            for partition in range(3)
            for message in stored(cluster, "demo", partition)
            if message.key == f"k{key}"
        ]
        assert found == [b"%03d" % n for n in range(key, 140, 7)]
        assert len({receipts[n].partition for n in range(key, 140, 7)}) == 1


async def test_messages_without_a_key_go_to_all_partitions(client: TubeMQClient) -> None:
    async with client.producer("demo") as producer:
        receipts = await asyncio.gather(*(producer.send(b"x") for _ in range(30)))
    assert sorted({receipt.partition for receipt in receipts}) == producer.partitions == ["1:0", "1:1", "1:2"]


async def test_a_partition_can_be_chosen(client: TubeMQClient, cluster: Model) -> None:
    async with client.producer("demo") as producer:
        assert (await producer.send(b"x", partition="1:2")).partition == "1:2"
        with pytest.raises(ClusterError, match=r"no partition '1:9'; it has 1:0, 1:1, 1:2") as caught:
            await producer.send(b"x", partition="1:9")
    assert caught.value.failure is Failure.REFUSED
    assert len(cluster.broker.stored["demo", 2]) == 1


async def test_a_message_whose_response_is_lost_is_sent_again(client: TubeMQClient, cluster: Model) -> None:
    cluster.faults.plan = {(rpc.SEND, 1): "before", (rpc.SEND, 3): "after", (rpc.SEND, 5): 419}
    async with client.producer("single") as producer:
        for n in range(5):
            await producer.send(b"%d" % n, key="k")
    bodies = [message.payload for message in stored(cluster, "single", 0)]
    assert sorted(set(bodies)) == [b"%d" % n for n in range(5)]
    assert bodies == sorted(bodies), "in order; the one whose response was lost comes twice"


async def test_send_waits_for_room_in_the_order_of_the_calls(client: TubeMQClient, cluster: Model) -> None:
    async with client.producer("single", max_pending_bytes=1) as producer:
        sends = [asyncio.ensure_future(producer.send(b"%d" % n)) for n in range(5)]
        await asyncio.sleep(0)
        sends[2].cancel()
        await asyncio.wait_for(producer.flush(), PATIENCE_S)
        assert [send.cancelled() for send in sends] == [False, False, True, False, False]
    assert [message.payload for message in stored(cluster, "single", 0)] == [b"0", b"1", b"3", b"4"]


async def test_messages_that_wait_for_room_fail_behind_a_failed_one_of_their_partition(
    client: TubeMQClient, cluster: Model
) -> None:
    """Else they would be stored before the caller can send the failed message again. Others wait on."""
    cluster.faults.plan = {(rpc.SEND, 1): 419}
    async with client.producer("demo", max_pending_bytes=1, max_elapsed_s=0.0) as producer:
        sends = [asyncio.ensure_future(producer.send(b"x", partition=name)) for name in ("1:0", "1:0", "1:1", "1:0")]
        with pytest.raises(ClusterError):
            await sends[0]
        again = asyncio.ensure_future(producer.send(b"again", partition="1:0"))
        results = await asyncio.gather(*sends[1:], return_exceptions=True)
        assert [getattr(result, "failure", None) for result in results] == [Failure.RETRY, None, Failure.RETRY]
        await again
    assert [message.payload for message in stored(cluster, "demo", 0)] == [b"again"]


async def test_close_fails_messages_that_are_not_stored_in_time(client: TubeMQClient, cluster: Model) -> None:
    producer = await client.producer("single")
    cluster.faults.plan = {(rpc.SEND, n): ConnectionLost("away") for n in range(1, 2000)}
    sends = [asyncio.ensure_future(producer.send(b"x", key="k")), asyncio.ensure_future(producer.send(b"y"))]
    await asyncio.sleep(0)
    await producer.close(0.02)
    assert producer.closed
    for send in sends:
        with pytest.raises(ConnectionLost, match="closed before this message was stored"):
            await send
    with pytest.raises(ClusterError, match="the producer of topic 'single' is closed"):
        await producer.send(b"z")


async def test_a_missing_topic_is_named(client: TubeMQClient) -> None:
    with pytest.raises(ServerRefused, match="no topic 'other'") as caught:
        await client.producer("other")
    assert caught.value.failure is Failure.FATAL


async def test_the_client_closes_its_producers_and_consumers(cluster: Model) -> None:
    client = TubeMQClient("tubemq://10.0.0.1:8715,10.0.0.2", heartbeat_s=0.005)
    producer = await client.producer("single")
    consumer = await client.consumer("single", "g")
    members = cluster.master.members["g"]
    assert len(members) == 1
    await client.close()
    assert producer.closed
    assert consumer.closed
    assert members == {}
    assert cluster.master.producers == set()
    with pytest.raises(ClusterError, match="client is closed"):
        await client.producer("single")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("pulsar://host:6650", r"'pulsar://'.*write tubemq://host:8715 or tubemq\+ssl://host:8716"),
        ("host:8715", "write tubemq://host:8715"),
        ("tubemq://host:port", "tubemq:// URL cannot be used"),
    ],
)
def test_a_wrong_url_is_explained(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TubeMQClient(url)


def test_a_wrong_time_zone_is_explained() -> None:
    with pytest.raises(ConfigError, match="is not a time zone"):
        TubeMQClient("tubemq://host", time_zone="Mars/Olympus")


async def test_a_cancelled_close_fails_messages_without_a_receipt(client: TubeMQClient, cluster: Model) -> None:
    producer = await client.producer("single")
    cluster.unreachable.add((BROKER.host, BROKER.port))
    cluster.connection_to(BROKER.host, BROKER.port).cut(ConnectionLost("cut"))
    sending = asyncio.ensure_future(producer.send(b"x", key="k"))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(), 0.01)
    with pytest.raises(ConnectionLost, match="closed before"):
        await asyncio.wait_for(sending, PATIENCE_S)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("tubemq send to")]
