"""With a sender's name, a send whose answer is lost is reported and not sent again: whoever sends asks what is stored."""

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
from tests.rocketmq.client.broker import TOPIC, Cluster, Link, cluster, scripted_client, store
from tests.rocketmq.test_withdraw import QUEUE, SENDS, bodies, receipt_of, send

__all__ = ["cluster"]


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()


def outbound_of(client: ClusterClient, sender: str | None, *, repeats: bool) -> RocketMQOutbound:
    options = RocketMQOutboundOptions(batch_messages=2)
    spec = OutboundSpec(TOPIC, max_elapsed_s=10.0, sender=sender, retries_unanswered=repeats, options=options)
    producer = client.producer("P", TOPIC, fail_behind=True, max_elapsed_s=spec.resend_s)
    return RocketMQOutbound(None, producer, spec, [QUEUE], max_message_bytes=1000)  # type: ignore[arg-type]


def stored_but_not_answered(link: Link, request: Command) -> None:
    store(SimpleNamespace(address=link.address, cluster=link.cluster, answer=lambda *_: None), request)  # type: ignore[arg-type]
    for code in SENDS:
        link.cluster.on[code] = store
    link.drop()


@pytest.mark.parametrize(("sender", "repeats", "times"), [("somebody", True, 1), (None, False, 1), (None, True, 2)])
async def test_a_lost_answer_is_reported_at_once_where_it_is_asked_for(
    cluster: Cluster, client: ClusterClient, sender: str | None, repeats: bool, times: int
) -> None:
    outbound = outbound_of(client, sender, repeats=repeats)
    for code in SENDS:
        cluster.on[code] = stored_but_not_answered
    receipt = await receipt_of(send(outbound, b"1"))
    assert bodies(cluster) == [b"1"] * times
    assert [failure.failure_kind for failure in receipt.failures] == ([Failure.RETRY] if times == 1 else [])
    assert not (await receipt_of(send(outbound, b"2"))).failures
