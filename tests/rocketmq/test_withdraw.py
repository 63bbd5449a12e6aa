"""Sends that are withdrawn: what waits is never sent, what is on its way is told of by its answer, others go on in order."""

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


class Held:
    """Sends that reached the broker and have no answer."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.requests: list[tuple[Link, Command]] = []
        for code in SENDS:
            cluster.on[code] = lambda link, request: self.requests.append((link, request))

    async def one(self) -> None:
        await until(lambda: self.requests)

    def stored(self) -> None:
        """They are stored, like all that come."""
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


async def test_what_waits_is_taken_back_and_what_is_on_its_way_stays(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    held = Held(cluster)
    moved = [send(outbound, b"1"), send(outbound, b"2", b"3")]
    other = send(outbound, b"4")
    await held.one()
    outbound.withdraw(moved)
    assert failed(await receipt_of(moved[1])) == [(0, Failure.RETRY), (1, Failure.RETRY)]
    await asyncio.sleep(0.01)
    assert not moved[0].done(), "a broker may have it"
    held.stored()
    assert not (await receipt_of(moved[0])).failures
    assert not (await receipt_of(other)).failures
    assert bodies(cluster) == [b"1", b"4"]


async def test_a_send_of_several_requests_is_taken_back_in_part(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    held = Held(cluster)
    moved = send(outbound, b"1", b"2", b"3", b"4")
    await held.one()
    outbound.withdraw([moved])
    await asyncio.sleep(0.01)
    assert not moved.done()
    held.stored()
    assert failed(await receipt_of(moved)) == [(2, Failure.RETRY), (3, Failure.RETRY)]
    assert bodies(cluster) == [b"1", b"2"]


@pytest.mark.parametrize("trouble", [hangs_up, refuses(Status.SYSTEM_BUSY), refuses(Status.NO_PERMISSION)])
async def test_what_is_on_its_way_is_not_sent_again(cluster: Cluster, outbound: RocketMQOutbound, trouble: object) -> None:
    held = Held(cluster)
    moved, other = send(outbound, b"1"), send(outbound, b"2")
    await held.one()
    outbound.withdraw([moved])
    for link, request in held.requests:
        trouble(link, request)  # type: ignore[operator]
    held.requests.clear()
    held.stored()
    assert failed(await receipt_of(moved)) == [(0, Failure.RETRY)]
    assert not (await receipt_of(other)).failures
    assert bodies(cluster) == [b"2"]


async def test_what_waits_to_be_sent_again_is_taken_back(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    """Nothing is kept of it: an outage in which lanes are revoked again and again would fill the memory otherwise."""
    for code in SENDS:
        cluster.on[code] = hangs_up
    stays = send(outbound, b"0")
    await until(lambda: cluster.asked[Code.SEND_BATCH_MESSAGE] or cluster.asked[Code.SEND_MESSAGE_V2])
    cluster.unreachable.add(A)
    for _ in range(20):
        moved = [send(outbound, b"%d" % n) for n in range(3)]
        outbound.withdraw([*moved, *moved])
        assert [failed(receipt) for receipt in await asyncio.gather(*map(receipt_of, moved))] == [[(0, Failure.RETRY)]] * 3
        outbound.withdraw(moved)  # those that are done are ignored
    assert outbound._producer.pending == 1
    assert outbound._pending.keys() == {stays}
    for code in SENDS:
        cluster.on[code] = store
    cluster.unreachable.clear()
    await receipt_of(stays)
    assert bodies(cluster) == [b"0"]
    assert not outbound._pending


async def test_a_refusal_of_everything_is_told_also_of_what_is_withdrawn(cluster: Cluster, outbound: RocketMQOutbound) -> None:
    held = Held(cluster)
    moved = send(outbound, b"x")
    await held.one()
    outbound.withdraw([moved])
    for link, request in held.requests:
        refuses(Status.MESSAGE_ILLEGAL)(link, request)
    assert failed(await receipt_of(moved)) == [(0, Failure.REFUSED)]
