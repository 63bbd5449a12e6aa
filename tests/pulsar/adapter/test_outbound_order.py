"""An outbound that fails in order stores nothing behind a failed share before its caller knows of the failure."""

import asyncio
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import Failure
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.pulsar.adapter import outbound as outbounds
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.producer import entry_producer
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.kit.chained_futures import layered_aggregator, send_until_told
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, silent, until


@pytest_asyncio.fixture
async def outbound(client: ClusterClient, monkeypatch: pytest.MonkeyPatch) -> PulsarOutbound:
    monkeypatch.setattr(entry_producer, "EXPIRY_CHECK_S", 0.01)
    target, topics = Partition("c", "target", "-1", 0), Topics(client, "c", "public/default")
    return PulsarOutbound(None, client, topics, OutboundSpec("target", max_elapsed_s=0.05), [target], 1 << 20)  # type: ignore[arg-type]


def send(outbound: PulsarOutbound) -> "asyncio.Future[Any]":
    return outbound.send(0, Share(Batch.of([Message(b"x")])))


def failures(receipt: Any) -> list[Failure]:
    return [failure.failure_kind for failure in receipt.failures]


@pytest.mark.parametrize("layers", range(5))
async def test_nothing_is_stored_before_the_caller_knows_of_a_failure(
    broker: Broker, outbound: PulsarOutbound, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    """However many layers the result passes."""
    responses: list[asyncio.Future[Any]] = []
    monkeypatch.setattr(outbounds, "ReceiptAggregator", layered_aggregator(layers, responses))
    broker.on[BaseCommand.SEND] = silent
    told = send(outbound)
    await until(lambda: broker.asked[BaseCommand.SEND])
    late = send_until_told(told, responses[0], lambda: send(outbound))
    broker.on[BaseCommand.SEND] = broker.store
    assert failures(await told) == [Failure.RETRY]
    assert len(late) >= layers
    assert [failures(receipt) for receipt in await asyncio.gather(*late)] == [[Failure.RETRY]] * len(late)
    assert broker.entries == 0
    attempts = 1
    async with asyncio.timeout(PATIENCE_S):
        while failures(await send(outbound)):  # also because a slow machine takes longer than `max_elapsed_s`
            attempts += 1
            await asyncio.sleep(0)
    assert 1 <= broker.entries <= attempts
    await outbound.close()
