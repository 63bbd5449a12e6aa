"""The consumer: acknowledgement by packs, redelivery, seeks, gaps, closing."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.library.received import ReceivedMessage
from mqbridge.tubemq.client.consumer.partition_registration import REGISTER_ATTEMPTS
from mqbridge.tubemq.library.client import TubeMQClient
from mqbridge.tubemq.library.consumer import Consumer
from mqbridge.tubemq.wire import codes, rpc
from mqbridge.tubemq.wire.payload import checksum, join_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import TransferedMessage
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import STEP, Model

COUNT = 20
BODIES = [b"%03d" % n for n in range(COUNT)]


def store(cluster: Model, topic: str, partition: int, bodies: list[bytes], types: list[str] | None = None) -> None:
    for n, body in enumerate(bodies):
        data, flag = join_payload(f"$msgType$={types[n]}".encode() if types else None, body)
        message = TransferedMessage(messageId=n, checkSum=checksum(data), payLoadData=data, flag=flag)
        cluster.broker.stored[topic, partition].append(message)


async def received(consumer: Consumer, count: int, *, acknowledge: bool = True) -> list[ReceivedMessage]:
    messages = []
    for _ in range(count):
        messages.append(await consumer.receive(PATIENCE_S))
        if acknowledge:
            assert consumer.acknowledge(messages[-1])
    return messages


def bodies_of(messages: list[ReceivedMessage]) -> list[bytes | None]:
    return [message.payload for message in messages]


async def test_messages_of_all_partitions_arrive_in_order(client: TubeMQClient, cluster: Model) -> None:
    for partition in range(3):
        store(cluster, "demo", partition, BODIES)
    async with client.consumer("demo", "g") as consumer:
        messages = await received(consumer, 3 * COUNT)
        for name in ("1:0", "1:1", "1:2"):
            mine = [message for message in messages if message.partition == name]
            assert bodies_of(mine) == BODIES
            assert {message.topic for message in mine} == {"demo"}
            assert [message.position for message in mine] == sorted(message.position for message in mine)
        with pytest.raises(TimeoutError):
            await consumer.receive(0.01)


async def test_acknowledged_packs_are_not_delivered_to_the_next_consumer(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        await received(consumer, 10)
        await received(consumer, 2)  # of five in the pack
    async with client.consumer("single", "g") as consumer:
        assert bodies_of(await received(consumer, 10)) == BODIES[10:], "the pack of which three were not acknowledged comes again"


async def test_flush_confirms_at_the_broker(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES[:5])
    async with client.consumer("single", "g") as consumer:
        await received(consumer, 5)
        await consumer.flush()
        assert cluster.broker.confirmed["g", "single", 0] == 5 * STEP


async def test_a_message_that_is_not_acknowledged_stops_its_partition_only(client: TubeMQClient, cluster: Model) -> None:
    for partition in range(2):
        store(cluster, "demo", partition, BODIES)
    async with client.consumer("demo", "g") as consumer:
        kept, arrived = 0, []
        while len(arrived) < COUNT + 5:
            message = await consumer.receive(PATIENCE_S)
            arrived.append(message)
            if message.partition == "1:0" and not kept:
                kept += 1
            else:
                consumer.acknowledge(message)
        with pytest.raises(TimeoutError):
            await consumer.receive(0.02)
    assert len([message for message in arrived if message.partition == "1:1"]) == COUNT


async def test_a_negative_acknowledgement_redelivers_the_unacknowledged_messages(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES[:10])
    async with client.consumer("single", "g") as consumer:
        first, second, third = await received(consumer, 3, acknowledge=False)
        assert consumer.acknowledge(first)
        assert consumer.negative_acknowledge(second, 0.01)
        assert not consumer.acknowledge(third), "its pack comes again"
        assert not consumer.negative_acknowledge(second)
        again = await received(consumer, 9)
        assert bodies_of(again) == BODIES[1:10], "without the one that was acknowledged"
        assert [message.delivery_count for message in again] == [1] * 4 + [0] * 5
        assert consumer.acknowledge(again[0]), "acknowledging twice is allowed"


async def test_seek_to_a_message_and_to_both_ends(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        messages = await received(consumer, COUNT)
        await consumer.seek(messages[7])
        assert bodies_of(await received(consumer, 2, acknowledge=False)) == BODIES[7:9]
        left = messages[8]
        await consumer.seek("earliest")
        assert bodies_of(await received(consumer, 1, acknowledge=False)) == BODIES[:1]
        await consumer.seek("latest")
        with pytest.raises(TimeoutError):
            await consumer.receive(0.02)
        store(cluster, "single", 0, [b"new"])
        assert bodies_of(await received(consumer, 1)) == [b"new"]
        assert consumer.acknowledge(left), "its pack was confirmed before the seek"


@pytest.mark.parametrize("steps", range(5))
async def test_a_seek_while_a_get_is_in_flight_skips_to_its_index(client: TubeMQClient, cluster: Model, steps: int) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        messages = await received(consumer, 5)
        for _ in range(steps):
            await asyncio.sleep(0)
        await consumer.seek(messages[2])
        assert bodies_of(await received(consumer, 8)) == BODIES[2:10]


async def test_a_failed_seek_keeps_the_acknowledgements(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        messages = await received(consumer, 5)
        first, second, _ = await received(consumer, 3, acknowledge=False)
        consumer.acknowledge(first)
        registrations = cluster.faults.counts[rpc.PARTITION_REGISTER]
        for number in range(1, REGISTER_ATTEMPTS + 1):
            cluster.faults.plan[rpc.PARTITION_REGISTER, registrations + number] = codes.INTERNAL_ERROR
        with pytest.raises(ClusterError):
            await consumer.seek(messages[2])
        assert consumer.negative_acknowledge(second)
        assert bodies_of(await received(consumer, 4)) == BODIES[6:10]


async def test_messages_delivered_before_a_seek_cannot_be_acknowledged(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        (message,) = await received(consumer, 1, acknowledge=False)
        await consumer.seek("earliest")
        assert not consumer.acknowledge(message)
        assert not consumer.negative_acknowledge(message)
        assert bodies_of(await received(consumer, COUNT)) == BODIES


async def test_an_impossible_seek_is_explained(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        with pytest.raises(ClusterError, match="holds no partition yet"):
            await consumer.seek("earliest")
        with pytest.raises(ClusterError, match="cannot seek to a time") as caught:
            await consumer.seek(datetime.now(UTC))
        assert caught.value.failure is Failure.FATAL
        (message,) = await received(consumer, 1)
        message.partition = "1:9"
        with pytest.raises(ClusterError, match="does not hold partition 1:9 of topic 'single'"):
            await consumer.seek(message)


@pytest.mark.parametrize("to", ["gap", "earliest"])
async def test_a_gap_is_raised_once_and_reading_continues_after_it(client: TubeMQClient, cluster: Model, to: str) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        await received(consumer, 5)
        await consumer.flush()
        messages = await received(consumer, 5, acknowledge=False)
        cluster.broker.deleted["single", 0] = 12 * STEP
        consumer.negative_acknowledge(messages[0])
        if to == "earliest":
            await until(lambda: any(feed._problem for feed in consumer._feeds.values()))
            await consumer.seek("earliest")
        else:
            with pytest.raises(GapError):
                await consumer.receive(PATIENCE_S)
        assert bodies_of(await received(consumer, 8)) == BODIES[12:]


async def test_after_a_gap_a_seek_decides_where_reading_continues(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        messages = await received(consumer, COUNT)
        await consumer.seek(messages[5])
        again = await received(consumer, 5, acknowledge=False)
        cluster.broker.deleted["single", 0] = 12 * STEP
        consumer.negative_acknowledge(again[0])
        with pytest.raises(GapError):
            await consumer.receive(PATIENCE_S)
        await consumer.seek(messages[16])
        assert bodies_of(await received(consumer, 2)) == BODIES[16:18]


async def test_seek_to_the_earliest_message_of_a_truncated_partition(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES)
    async with client.consumer("single", "g") as consumer:
        await received(consumer, COUNT)
        cluster.broker.deleted["single", 0] = 15 * STEP
        await consumer.seek("earliest")
        assert bodies_of(await received(consumer, 5)) == BODIES[15:]


async def test_only_messages_of_the_wanted_types_are_delivered(client: TubeMQClient, cluster: Model) -> None:
    types = ["paid", "sent", "paid", "other"] * 5
    store(cluster, "single", 0, BODIES, types)
    async with client.consumer("single", "g", msg_types=["paid", "other"]) as consumer:
        messages = await received(consumer, 15)
        assert [message.msg_type for message in messages] == ["paid", "paid", "other"] * 5
        await consumer.flush()
        assert cluster.broker.confirmed["g", "single", 0] == COUNT * STEP, "packs without a wanted message, too"


async def test_a_damaged_message_is_delivered_with_its_defect(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES[:2])
    stored = cluster.broker.stored["single", 0][0]
    stored.checkSum ^= 1
    async with client.consumer("single", "g") as consumer:
        damaged, well = await received(consumer, 2)
    assert (damaged.payload, well.payload, well.defect) == (stored.SerializeToString(), BODIES[1], None)
    assert damaged.property("mqbridge.raw") == "tubemq.message.v1"
    assert damaged.defect


async def test_a_receive_that_is_cancelled_loses_no_message(client: TubeMQClient, cluster: Model) -> None:
    async with client.consumer("single", "g") as consumer:
        found: list[ReceivedMessage] = []
        for n in range(COUNT):
            tasks = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
            await asyncio.sleep(0)
            store(cluster, "single", 0, [BODIES[n]])
            if n % 2:
                await asyncio.sleep(0.001)
            tasks[0].cancel()
            done, _ = await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED, timeout=PATIENCE_S)
            for task in tasks:
                task.cancel()
            results: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
            for result in results:
                if isinstance(result, ReceivedMessage):
                    consumer.acknowledge(result)
                    found.append(result)
            assert done or found
        assert bodies_of(found) == BODIES


async def test_close_ends_iteration_and_receives(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES[:3])
    consumer = await client.consumer("single", "g")
    found = []

    async def iterate() -> None:
        async for message in consumer:
            found.append(message.payload)
            consumer.acknowledge(message)

    iterating, waiting = asyncio.ensure_future(iterate()), asyncio.ensure_future(consumer.receive())
    await until(lambda: len(found) + waiting.done() >= 3)
    if waiting.done():
        waiting = asyncio.ensure_future(consumer.receive())
    await asyncio.sleep(0)
    await consumer.close()
    await asyncio.wait_for(iterating, PATIENCE_S)
    with pytest.raises(ClusterError, match="consumer of group 'g' is closed"):
        await waiting
    with pytest.raises(ClusterError, match="consumer of group 'g' is closed"):
        await consumer.receive()


async def test_unacknowledged_messages_move_with_their_partition(client: TubeMQClient, cluster: Model) -> None:
    for partition in range(3):
        store(cluster, "demo", partition, BODIES)
    async with client.consumer("demo", "g") as first:
        held = await received(first, 15, acknowledge=False)
        async with client.consumer("demo", "g") as second:
            await until(lambda: any(topic == "demo" for topic, _ in second.partitions))
            moved = {name for topic, name in second.partitions if topic == "demo"}
            assert [message for message in held if message.partition in moved]
            for message in held:
                assert first.acknowledge(message) == (message.partition not in moved)
            again = await received(second, COUNT * len(moved))
            assert sorted(bodies_of(again)) == sorted(BODIES * len(moved))


async def test_delivered_packs_free_the_read_budget(client: TubeMQClient, cluster: Model) -> None:
    for partition in range(3):
        store(cluster, "demo", partition, BODIES)
    async with client.consumer("demo", "g", max_bytes=1 << 20) as consumer:
        assert len(await received(consumer, 3 * COUNT)) == 3 * COUNT
        await until(lambda: consumer._member.held_partitions.budget.used == 0)


async def test_a_cut_at_every_request_loses_nothing(client: TubeMQClient, cluster: Model) -> None:
    store(cluster, "single", 0, BODIES)
    for method in (17, 18, 15):
        for n in range(1, 12, 2):
            cluster.faults.plan[method, n] = "before" if n % 4 == 1 else "after"
    async with client.consumer("single", "g") as consumer:
        seen: set[bytes | None] = set()
        while seen != set(BODIES):
            message = await consumer.receive(PATIENCE_S)
            seen.add(message.payload)
            consumer.acknowledge(message)
