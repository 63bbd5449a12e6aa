"""Withdrawn sends: queued requests are never sent, requests on the wire await their responses, other sends keep their order."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import Failure
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter.config import RocketMQOutboundOptions
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import TOPIC, A, Cluster, Link, cluster, hangs_up, refuses, scripted_client, store, until

__all__ = ["cluster"]

QUEUE = Queue(TOPIC, "broker-a", 0)
SENDS = (Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE)


class HeldRequests:
    """Holds all send requests at the brokers without a response."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.requests: list[tuple[Link, Command]] = []
        for code in SENDS:
            cluster.on[code] = lambda link, request: self.requests.append((link, request))

    async def wait_for_one(self) -> None:
        await until(lambda: self.requests)

    def store_all(self) -> None:
        """Store and answer the held requests, and all later ones."""
        for link, request in self.requests:
            store(link, request)
        for code in SENDS:
            self.cluster.on[code] = store


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()


@pytest_asyncio.fixture
async def outbound(client: ClusterClient) -> RocketMQOutbound:
    producer = client.producer("P", TOPIC, fail_behind=True)
    options = RocketMQOutboundOptions(batch_messages=2)
    return RocketMQOutbound(None, producer, OutboundSpec(TOPIC, options=options), [QUEUE], max_message_bytes=1000)  # type: ignore[arg-type]


def send(outbound: RocketMQOutbound, *payloads: bytes) -> "asyncio.Future[Receipt]":
    return outbound.send(0, Share(Batch.of([Message(payload) for payload in payloads])))


def bodies(cluster: Cluster) -> list[bytes]:
    return [body for body, _ in cluster.stored[A, 0]]


async def receipt_of(send: "asyncio.Future[Receipt]") -> Receipt:
    return await asyncio.wait_for(asyncio.shield(send), PATIENCE_S)


def failed(receipt: Receipt) -> list[tuple[int, Failure]]:
    return [(failure.index, failure.failure_kind) for failure in receipt.failures]


async def test_queued_sends_are_withdrawn_and_sends_on_the_wire_are_not(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    held = HeldRequests(cluster)
    withdrawn = [send(outbound, b"1"), send(outbound, b"2", b"3")]
    other = send(outbound, b"4")
    await held.wait_for_one()
    outbound.withdraw(withdrawn)
    assert failed(await receipt_of(withdrawn[1])) == [(0, Failure.RETRY), (1, Failure.RETRY)]
    await asyncio.sleep(0.01)
    assert not withdrawn[0].done(), "a broker may have it"
    held.store_all()
    assert not (await receipt_of(withdrawn[0])).failures
    assert not (await receipt_of(other)).failures
    assert bodies(cluster) == [b"1", b"4"]


async def test_the_queued_requests_of_a_send_are_withdrawn(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    held = HeldRequests(cluster)
    withdrawn = send(outbound, b"1", b"2", b"3", b"4")
    await held.wait_for_one()
    outbound.withdraw([withdrawn])
    await asyncio.sleep(0.01)
    assert not withdrawn.done()
    held.store_all()
    assert failed(await receipt_of(withdrawn)) == [(2, Failure.RETRY), (3, Failure.RETRY)]
    assert bodies(cluster) == [b"1", b"2"]


@pytest.mark.parametrize("failure", [hangs_up, refuses(Status.SYSTEM_BUSY), refuses(Status.NO_PERMISSION)])
async def test_a_withdrawn_send_is_not_retried(cluster: Cluster, outbound: RocketMQOutbound, failure: object) -> None:
    held = HeldRequests(cluster)
    withdrawn, other = send(outbound, b"1"), send(outbound, b"2")
    await held.wait_for_one()
    outbound.withdraw([withdrawn])
    for link, request in held.requests:
        failure(link, request)  # type: ignore[operator]
    held.requests.clear()
    held.store_all()
    assert failed(await receipt_of(withdrawn)) == [(0, Failure.RETRY)]
    assert not (await receipt_of(other)).failures
    assert bodies(cluster) == [b"2"]


async def test_sends_that_wait_for_a_retry_are_withdrawn(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    """They are forgotten at once; otherwise an outage with repeated revocations would fill the memory."""
    for code in SENDS:
        cluster.on[code] = hangs_up
    kept = send(outbound, b"0")
    await until(lambda: cluster.requests[Code.SEND_BATCH_MESSAGE] or cluster.requests[Code.SEND_MESSAGE_V2])
    cluster.unreachable.add(A)
    for _ in range(20):
        withdrawn = [send(outbound, b"%d" % n) for n in range(3)]
        outbound.withdraw([*withdrawn, *withdrawn])
        assert [failed(receipt) for receipt in await asyncio.gather(*map(receipt_of, withdrawn))] == [[(0, Failure.RETRY)]] * 3
        outbound.withdraw(withdrawn)  # finished sends are ignored
    assert outbound._producer.pending == 1
    for code in SENDS:
        cluster.on[code] = store
    cluster.unreachable.clear()
    await receipt_of(kept)
    assert bodies(cluster) == [b"0"]
    assert not outbound._producer.pending


async def test_a_withdrawn_send_still_reports_a_refusal(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    held = HeldRequests(cluster)
    withdrawn = send(outbound, b"x" * 980)  # sent alone: a refused batch would only be sent in parts
    await held.wait_for_one()
    outbound.withdraw([withdrawn])
    for link, request in held.requests:
        refuses(Status.MESSAGE_ILLEGAL)(link, request)
    assert failed(await receipt_of(withdrawn)) == [(0, Failure.REFUSED)]


async def test_a_refusal_of_a_withdrawn_batch_refuses_no_message(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    held = HeldRequests(cluster)
    withdrawn = send(outbound, b"x", b"y")
    await held.wait_for_one()
    outbound.withdraw([withdrawn])
    for link, request in held.requests:
        refuses(Status.MESSAGE_ILLEGAL)(link, request)
    assert failed(await receipt_of(withdrawn)) == [(0, Failure.RETRY), (1, Failure.RETRY)]
