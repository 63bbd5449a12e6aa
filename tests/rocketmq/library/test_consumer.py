"""The public consumer, without sockets: seeks, redelivery, damaged pulls, and opening while the client closes."""

import asyncio
from typing import Any

import pytest

from mqbridge.errors import ClusterError, RemoteProtocolError
from mqbridge.rocketmq.library.client import RocketMQClient
from mqbridge.rocketmq.library.consumer import Consumer
from mqbridge.rocketmq.library.group_member import GroupMember
from tests.patience import PATIENCE_S
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
