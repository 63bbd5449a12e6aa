"""A send whose response is lost. With a `sender`, or without `retries_unanswered`, it is reported instead of repeated."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import Failure
from mqbridge.rocketmq.adapter.config import RocketMQOutboundOptions
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.command import Command
from tests.rocketmq.adapter.test_outbound_withdraw import QUEUE, SENDS, bodies, receipt_of, send
from tests.rocketmq.client.broker import TOPIC, Cluster, Link, cluster, scripted_client, store

__all__ = ["cluster"]


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()


def open_outbound(client: ClusterClient, sender: str | None, *, retries_unanswered: bool) -> RocketMQOutbound:
    options = RocketMQOutboundOptions(batch_messages=2)
    spec = OutboundSpec(TOPIC, max_elapsed_s=10.0, sender=sender, retries_unanswered=retries_unanswered, options=options)
    producer = client.producer("P", TOPIC, fail_behind=True, max_elapsed_s=spec.resend_s)
    return RocketMQOutbound(None, producer, spec, [QUEUE], max_message_bytes=1000)  # type: ignore[arg-type]


def store_without_response(link: Link, request: Command) -> None:
    store(SimpleNamespace(address=link.address, cluster=link.cluster, answer=lambda *_: None), request)  # type: ignore[arg-type]
    for code in SENDS:
        link.cluster.on[code] = store
    link.drop()


@pytest.mark.parametrize(
    ("sender", "retries_unanswered", "expected_sends"), [("somebody", True, 1), (None, False, 1), (None, True, 2)]
)
async def test_a_send_without_a_response_is_repeated_only_if_that_is_allowed(
    cluster: Cluster, client: ClusterClient, sender: str | None, retries_unanswered: bool, expected_sends: int
) -> None:
    outbound = open_outbound(client, sender, retries_unanswered=retries_unanswered)
    for code in SENDS:
        cluster.on[code] = store_without_response
    receipt = await receipt_of(send(outbound, b"1"))
    assert bodies(cluster) == [b"1"] * expected_sends
    assert [failure.failure_kind for failure in receipt.failures] == ([Failure.RETRY] if expected_sends == 1 else [])
    assert not (await receipt_of(send(outbound, b"2"))).failures
