"""What an ordered outbound stores before earlier messages: nothing, neither after a failure nor when queues change."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import Failure
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter import outbound as outbounds
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.kit.chained_futures import layered_aggregator, send_until_told
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import TOPIC, A, B, Cluster, Link, cluster, in_turn, refuses, scripted_client, store, until

__all__ = ["cluster"]


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()


def send(outbound: RocketMQOutbound) -> "asyncio.Future[Any]":
    return outbound.send(0, Share(Batch.of([Message(b"x")])))


def failures(receipt: Any) -> list[Failure]:
    return [failure.failure_kind for failure in receipt.failures]


@pytest.mark.parametrize("layers", range(5))
async def test_nothing_is_stored_before_the_caller_knows_of_a_failure(
    cluster: Cluster, client: ClusterClient, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    """However many layers the result passes."""
    responses: list[asyncio.Future[Any]] = []
    monkeypatch.setattr(outbounds, "ReceiptAggregator", layered_aggregator(layers, responses))
    producer = client.producer("P", TOPIC, fail_behind=True, max_elapsed_s=0.0)
    queue = Queue(TOPIC, "broker-a", 0)
    outbound = RocketMQOutbound(None, producer, OutboundSpec(TOPIC), [queue], max_message_bytes=1000)  # type: ignore[arg-type]
    cluster.on[Code.SEND_MESSAGE_V2] = cluster.on[Code.SEND_BATCH_MESSAGE] = in_turn(refuses(Status.SYSTEM_ERROR), store)
    told = send(outbound)
    late = send_until_told(told, responses[0], lambda: send(outbound))
    assert failures(await told) == [Failure.RETRY]
    assert len(late) >= layers
    assert [failures(receipt) for receipt in await asyncio.gather(*late)] == [[Failure.RETRY]] * len(late)
    assert sum(map(len, cluster.stored.values())) == 0
    async with asyncio.timeout(PATIENCE_S):
        while failures(await send(outbound)):
            await asyncio.sleep(0)
    assert sum(map(len, cluster.stored.values())) == 1
    await outbound.close()


def route_to(*queues: Queue) -> TopicRoute:
    return TopicRoute(TOPIC, {"broker-a": {0: A}, "broker-b": {0: B}}, queues, queues)


async def test_a_queue_that_comes_back_with_others_gets_nothing_before_earlier_messages_are_stored(
    cluster: Cluster, client: ClusterClient
) -> None:
    """While it was gone, another queue got its messages, and one of these has no receipt yet."""
    kept, gone, new = Queue(TOPIC, "broker-a", 0), Queue(TOPIC, "broker-a", 1), Queue(TOPIC, "broker-b", 0)
    held: list[tuple[Link, Command]] = []
    cluster.on[Code.SEND_MESSAGE_V2] = cluster.on[Code.SEND_BATCH_MESSAGE] = lambda link, request: held.append((link, request))
    producer = client.producer("P", TOPIC, fail_behind=True)
    here: Any = SimpleNamespace(name="here")
    outbound = RocketMQOutbound(here, producer, OutboundSpec(TOPIC), [kept, gone], max_message_bytes=1000)

    def send_to_index_1(body: bytes) -> "asyncio.Future[Any]":
        return outbound.send(outbound.indexed[1], Share(Batch.of([Message(body)])))

    outbound.on_route(route_to(kept))
    first = send_to_index_1(b"1")
    await until(lambda: held)
    outbound.on_route(route_to(kept, gone, new))
    assert outbound.partitions == 3
    second = send_to_index_1(b"2")
    cluster.on[Code.SEND_MESSAGE_V2] = cluster.on[Code.SEND_BATCH_MESSAGE] = store
    for _ in range(20):
        await asyncio.sleep(0)
    assert not second.done(), "it must not be stored before the first one"
    store(*held[0])
    assert [failures(await each) for each in (first, second)] == [[], []]
    assert not failures(await send_to_index_1(b"3"))
    assert [(key, [body for body, _ in stored]) for key, stored in cluster.stored.items()] == [
        ((A, 0), [b"1", b"2"]),
        ((A, 1), [b"3"]),
    ]
    await outbound.close()
