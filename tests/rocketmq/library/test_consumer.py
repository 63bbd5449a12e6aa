"""The public consumer, without sockets: seeks, redelivery, damaged pulls, and opening while the client closes."""

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from mqbridge.errors import ClusterError, RemoteProtocolError
from mqbridge.library.received import ReceivedMessage
from mqbridge.rocketmq.client.consumer.consumer_settings import MessageModel
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.library import queue_reader
from mqbridge.rocketmq.library.client import RocketMQClient
from mqbridge.rocketmq.library.consumer import Consumer
from mqbridge.rocketmq.library.group_member import GroupMember
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import until
from tests.rocketmq.client.groups import ScriptedEnvironment, environment

__all__ = ["environment"]


async def open_consumer_of_t(environment: ScriptedEnvironment, **settings: Any) -> Consumer:
    """Return a consumer in group G that reads topic T."""
    member = await environment.join(**settings)
    return Consumer(GroupMember(environment.clients[-1], member, 16))


async def test_a_seek_right_after_opening_moves_every_queue(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"1", b"2")
    async with await open_consumer_of_t(environment) as consumer:
        await consumer.seek("latest")
        environment.groups.append(b"new")
        assert (await consumer.receive(PATIENCE_S)).payload == b"new"


async def test_a_seek_without_queues_is_an_error(environment: ScriptedEnvironment) -> None:
    async with (
        await open_consumer_of_t(environment, instance="1#1"),
        await open_consumer_of_t(environment, instance="2#2") as second,
    ):
        with pytest.raises(ClusterError, match="has no queue now"):
            await second.seek("earliest")


async def test_a_seek_over_received_messages_is_committed(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"1", b"2", b"3")
    async with await open_consumer_of_t(environment) as consumer:
        for _ in range(3):
            await consumer.receive(PATIENCE_S)
        await consumer.seek("latest")
    assert environment.groups.committed("G") == 3


async def test_a_second_negative_acknowledgement_replaces_the_first(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"1", b"2")
    async with await open_consumer_of_t(environment) as consumer:
        first = await consumer.receive(PATIENCE_S)
        await consumer.receive(PATIENCE_S)
        assert consumer.negative_acknowledge(first, 60.0)
        assert consumer.negative_acknowledge(first)
        assert consumer.negative_acknowledge(first)
        assert (await consumer.receive(PATIENCE_S)).payload == b"1"
        with pytest.raises(TimeoutError):
            await consumer.receive(0.01)


async def test_after_a_damaged_pull_a_seek_reads_the_queue_again(environment: ScriptedEnvironment) -> None:
    environment.groups.append(b"1", b"2")
    log = environment.groups.log()
    good, log.records[0] = log.records[0], log.records[0][:4] + bytes(4) + log.records[0][8:]
    async with await open_consumer_of_t(environment) as consumer:
        with pytest.raises(RemoteProtocolError):
            await consumer.receive(PATIENCE_S)
        log.records[0] = good
        await consumer.seek("earliest")
        assert (await consumer.receive(PATIENCE_S)).payload == b"1"


@pytest.mark.parametrize("steps", range(0, 40, 4))
async def test_a_consumer_that_is_opened_while_the_client_closes_is_closed(environment: ScriptedEnvironment, steps: int) -> None:
    async def open_consumer(client: RocketMQClient) -> Consumer:
        return await client.consumer("T", "G", retries=False)

    before = asyncio.all_tasks()
    client = RocketMQClient("rocketmq://ns:9876")
    opening = asyncio.ensure_future(open_consumer(client))
    for _ in range(steps):
        await asyncio.sleep(0)
    await client.close()
    (result,) = await asyncio.gather(opening, return_exceptions=True)
    assert result.closed if isinstance(result, Consumer) else isinstance(result, ClusterError)
    async with asyncio.timeout(PATIENCE_S):
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.001)
    assert not environment.groups.members["G"]


# --- memory ---------------------------------------------------------------------------------------------------------

MAX_BYTES = 100_000


def stored_bytes_in_memory() -> int:
    """Return the size of all pulled records that anything refers to."""
    gc.collect()
    return sum(each.size for each in gc.get_objects() if isinstance(each, PulledRecords))


async def receive_while_possible(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    """Receive up to `count` messages, until the consumer waits for acknowledgements."""
    messages: list[ReceivedMessage] = []
    with contextlib.suppress(TimeoutError):
        while len(messages) < count:
            messages.append(await consumer.receive(0.2))
    return messages


async def test_one_unacknowledged_message_holds_nothing_but_itself(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[bytes(1000)] * 2000)
    async with await open_consumer_of_t(environment, max_bytes=MAX_BYTES) as consumer:
        budget = consumer._member._consumer.budget
        slow = await consumer.receive(PATIENCE_S)
        for _ in range(1999):
            message = await consumer.receive(PATIENCE_S)
            assert budget.held <= MAX_BYTES
            consumer.acknowledge(message)
        await until(lambda: budget.held < 5000)
        assert stored_bytes_in_memory() < 5000
        assert consumer.acknowledge(slow)
        assert budget.held == 0
    assert environment.groups.committed("G") == 2000


async def test_unacknowledged_messages_stay_within_the_limit(
    environment: ScriptedEnvironment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_reader, "ACKNOWLEDGEMENT_WAIT_S", 0.01)
    environment.groups.append(*[bytes(1000)] * 500)
    async with await open_consumer_of_t(environment, max_bytes=MAX_BYTES) as consumer:
        budget = consumer._member._consumer.budget
        received = await receive_while_possible(consumer, 500)
        assert 50 < len(received) < 100
        assert stored_bytes_in_memory() <= budget.held <= MAX_BYTES
        assert caplog.text.count("messages that are not acknowledged, from offset 0 on") == 1
        while len(received) < 500:
            for message in received[-50:]:
                consumer.acknowledge(message)
            received += await receive_while_possible(consumer, 50)
            assert budget.held <= MAX_BYTES
        assert [message.position[0] for message in received] == list(range(500))


@pytest.mark.parametrize("way", ["seek", "reset"])
async def test_after_a_jump_a_full_consumer_reads_on(environment: ScriptedEnvironment, way: str) -> None:
    environment.groups.append(*[bytes(1000)] * 500)
    async with await open_consumer_of_t(environment, max_bytes=MAX_BYTES) as consumer:
        await receive_while_possible(consumer, 500)
        if way == "seek":
            await consumer.seek("earliest")
        else:
            (assigned,) = consumer._member._consumer.held.values()
            await assigned.reset(0, "by a test")
        assert (await consumer.receive(PATIENCE_S)).position == (0,)


async def test_a_reader_receives_everything_without_acknowledging(environment: ScriptedEnvironment) -> None:
    environment.groups.append(*[bytes(1000)] * 500)
    queue = Queue("T", "broker-a", 0)
    async with await open_consumer_of_t(
        environment, group="", model=MessageModel.ASSIGNED, queues=(queue,), max_bytes=MAX_BYTES
    ) as consumer:
        budget = consumer._member._consumer.budget
        for number in range(500):
            assert (await consumer.receive(PATIENCE_S)).position == (number,)
            assert budget.held <= MAX_BYTES
        assert stored_bytes_in_memory() <= MAX_BYTES
