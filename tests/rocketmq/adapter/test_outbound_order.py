"""An outbound that fails in order stores nothing behind a failed share before its caller knows of the failure."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import Failure
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter import outbound as outbounds
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from tests.kit.chained_futures import layered_aggregator, send_until_told
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import TOPIC, Cluster, cluster, in_turn, refuses, scripted_client, store

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
