"""A batch that a broker refuses is sent in parts: only a message that is refused alone is reported as refused."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.library.contract import SendReceipt
from mqbridge.message import Batch, Message, Share
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.producer.send_request import OVERSIZED
from mqbridge.rocketmq.library.producer import Producer
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.rocketmq.client.broker import TOPIC, Cluster, Link, cluster, scripted_client, store, until

__all__ = ["cluster"]

QUEUE = Queue(TOPIC, "broker-a", 0)


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()


def limit_sends(cluster: Cluster, max_bytes: int, *, code: int, refused: bytes = b"bad") -> None:
    """Let brokers refuse sends above `max_bytes`, and every send that contains the bytes `refused`."""

    def store_or_refuse(link: Link, request: Command) -> None:
        if len(request.body) > max_bytes or refused in request.body:
            link.answer(request, code, remark=OVERSIZED)
        else:
            store(link, request)

    cluster.on[Code.SEND_BATCH_MESSAGE] = cluster.on[Code.SEND_MESSAGE_V2] = store_or_refuse


def outbound_of(client: ClusterClient, *, in_flight: int = 1) -> RocketMQOutbound:
    producer = client.producer("P", TOPIC, fail_behind=in_flight == 1, in_flight_per_queue=in_flight)
    return RocketMQOutbound(None, producer, OutboundSpec(TOPIC, ordered=in_flight == 1), [QUEUE], max_message_bytes=4 << 20)  # type: ignore[arg-type]


def share(*payloads: bytes) -> Share:
    return Share(Batch.of([Message(payload) for payload in payloads]))


def stored(cluster: Cluster) -> list[bytes]:
    return [body for queue in cluster.stored.values() for body, _ in queue]


@pytest.mark.parametrize("code", [Status.MESSAGE_ILLEGAL, Status.SYSTEM_ERROR])
@pytest.mark.parametrize("in_flight", [1, 4])
async def test_messages_of_a_batch_above_the_brokers_limit_are_stored_in_order(
    cluster: Cluster, client: ClusterClient, code: int, in_flight: int
) -> None:
    limit_sends(cluster, 500, code=code)
    outbound = outbound_of(client, in_flight=in_flight)
    payloads = [b"%03d" % number + b"x" * 100 for number in range(50)]
    first, second = outbound.send(0, share(*payloads[:40])), outbound.send(0, share(*payloads[40:]))
    receipts = [await first, await second]
    assert [receipt.failures for receipt in receipts] == [[], []]
    positions = [position for receipt in receipts for position in receipt.positions]
    assert [stored(cluster)[offset] for (offset,) in positions] == payloads
    if in_flight == 1:
        assert stored(cluster) == payloads


async def test_only_the_message_that_is_refused_alone_is_refused(cluster: Cluster, client: ClusterClient) -> None:
    limit_sends(cluster, 1 << 20, code=Status.MESSAGE_ILLEGAL)
    outbound = outbound_of(client)
    receipt = await outbound.send(0, share(*[b"bad" if number in (3, 11) else b"%d" % number for number in range(20)]))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [
        (3, Failure.REFUSED),
        (11, Failure.REFUSED),
    ]
    assert stored(cluster) == [b"%d" % number for number in range(20) if number not in (3, 11)]
    assert receipt.positions[3] == receipt.positions[11] == ()
    assert receipt.positions[4] == (3,)


async def test_a_message_that_fits_only_without_the_framing_of_a_batch_is_sent_alone(
    cluster: Cluster, client: ClusterClient
) -> None:
    limit_sends(cluster, 1000, code=Status.MESSAGE_ILLEGAL)
    outbound = outbound_of(client)
    receipt = await outbound.send(0, share(b"x" * 1000, b"y" * 1001))
    assert [failure.index for failure in receipt.failures] == [1]
    assert stored(cluster) == [b"x" * 1000]


async def test_a_refusal_while_closing_refuses_no_message(cluster: Cluster, client: ClusterClient) -> None:
    held: list[tuple[Link, Command]] = []
    cluster.on[Code.SEND_BATCH_MESSAGE] = lambda link, request: held.append((link, request))
    outbound = outbound_of(client)
    sending = outbound.send(0, share(b"1", b"2"))
    await until(lambda: held)
    outbound._producer.closing = True
    held[0][0].answer(held[0][1], Status.MESSAGE_ILLEGAL, remark="too large")
    assert {failure.failure_kind for failure in (await sending).failures} == {Failure.RETRY}


async def test_the_library_sends_a_refused_batch_in_parts(cluster: Cluster, client: ClusterClient) -> None:
    limit_sends(cluster, 500, code=Status.MESSAGE_ILLEGAL)
    producer = Producer(client.producer("P", TOPIC))
    payloads = [b"bad" if number == 7 else b"%03d" % number + b"x" * 100 for number in range(20)]
    results = await asyncio.gather(*(producer.send(payload, key="k") for payload in payloads), return_exceptions=True)
    assert [index for index, result in enumerate(results) if isinstance(result, ClusterError)] == [7]
    assert stored(cluster) == [payload for payload in payloads if payload != b"bad"]
    positions = [result.position for result in results if isinstance(result, SendReceipt)]
    assert positions == [(number,) for number in range(19)]
    await producer.close()


async def test_nothing_is_stored_behind_a_batch_that_is_refused_while_closing(cluster: Cluster, client: ClusterClient) -> None:
    held: list[tuple[Link, Command]] = []
    cluster.on[Code.SEND_BATCH_MESSAGE] = lambda link, request: held.append((link, request))
    outbound = outbound_of(client)
    first, second = outbound.send(0, share(b"1", b"2")), outbound.send(0, share(b"3", b"4"))
    await until(lambda: held)
    cluster.on[Code.SEND_BATCH_MESSAGE] = store
    outbound._producer.closing = True
    held[0][0].answer(held[0][1], Status.MESSAGE_ILLEGAL, remark="too large")
    receipts = [await first, await second]
    assert stored(cluster) == []
    assert {failure.failure_kind for receipt in receipts for failure in receipt.failures} == {Failure.RETRY}
