"""Units are sent as they are, shares are refused as a whole, and messages of a sender are stamped."""

import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.adapter.formats import batch_of_units
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import Failure
from mqbridge.message import NO_SOURCE, Batch, Message, Partition, Share, Unit
from mqbridge.rocketmq.adapter.outbound import RocketMQOutbound
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.mapping.unit_format import FORMATS, NAME
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.neutral_record import encode_neutral
from mqbridge.rocketmq.wire.record import SysFlag
from tests.rocketmq.client.broker import TOPIC, Cluster, cluster, refuses, scripted_client

__all__ = ["cluster"]

SOURCE = Partition("here", "t", "0", 0)
BLOCK = properties.encode([("DELAY", "3"), ("TRAN_MSG", "true"), ("a", "1"), ("a", "2")])
UNITS = [
    Unit(encode_neutral(b"1", BLOCK, flag=7, born_timestamp=5), 1, None, (10,)),
    Unit(encode_neutral(b"\x78\x9c", sys_flag=SysFlag.COMPRESSED, born_timestamp=6, reconsume_times=2), 1, None, (11,)),
]


@pytest_asyncio.fixture
async def client(cluster: Cluster) -> AsyncIterator[ClusterClient]:
    client = scripted_client()
    await client.connect()
    yield client
    await client.close()


def outbound_of(client: ClusterClient, *, max_batch_bytes: int | None = None, **spec: Any) -> RocketMQOutbound:
    return RocketMQOutbound(
        None,  # type: ignore[arg-type]
        client.producer("P", TOPIC),
        OutboundSpec(TOPIC, **{"keep_units": True, **spec}),
        [Queue(TOPIC, "broker-a", 0)],
        max_message_bytes=4 << 20,
        max_batch_bytes=max_batch_bytes,
    )


def units(source: Partition = NO_SOURCE) -> Batch:
    return batch_of_units(FORMATS[0], UNITS, source)


def strip_id(message: tuple[bytes, str]) -> tuple[bytes, list[tuple[str, str]]]:
    body, block = message
    return body, [pair for pair in properties.decode(block.encode()) if pair[0] != "UNIQ_KEY"]


def stored(cluster: Cluster) -> list[tuple[bytes, str]]:
    return [message for queue in cluster.stored.values() for message in queue]


@pytest.mark.parametrize(("source", "stamp"), [(NO_SOURCE, True), (SOURCE, False)])
async def test_units_are_sent_with_their_properties_and_headers(
    cluster: Cluster, client: ClusterClient, source: Partition, stamp: bool
) -> None:
    outbound = outbound_of(client, stamp_origin=stamp)
    receipt = await outbound.send(0, Share(units(source)))
    assert receipt.failures == []
    assert list(receipt.positions) == [(0,), (1,)]
    assert stored(cluster) == [(b"1", BLOCK.decode()), (b"\x78\x9c", "")]
    headers = cluster.headers(Code.SEND_BATCH_MESSAGE)
    assert [(header.born_timestamp, header.sys_flag, header.reconsume_times) for header in headers] == [
        (5, 0, 0),
        (6, SysFlag.COMPRESSED, 2),
    ]


async def test_units_become_messages_unless_they_are_to_be_kept(cluster: Cluster, client: ClusterClient) -> None:
    """They are encoded by the same function as other messages, with the ids and the event time that a gateway writes."""
    outbound = outbound_of(client, keep_units=False, stamp_origin=False)
    assert outbound.formats == ()
    compressed = encode_neutral(zlib.compress(b"2"), sys_flag=SysFlag.COMPRESSED, born_timestamp=6, reconsume_times=2)
    batch = batch_of_units(FORMATS[0], [UNITS[0], Unit(compressed, 1, None, (11,))], SOURCE)
    for share in (Share(batch), Share(Batch.of(list(batch.messages)))):
        assert not (await outbound.send(0, share)).failures
    as_units, as_messages = stored(cluster)[:2], stored(cluster)[2:]
    assert [strip_id(message) for message in as_units] == [strip_id(message) for message in as_messages]
    assert all("mqbridge." in block and "UNIQ_KEY" in block for _, block in as_units)
    assert len({header.born_timestamp for header in cluster.headers(Code.SEND_BATCH_MESSAGE)}) == 1


async def test_a_sender_or_a_stamp_makes_units_messages(cluster: Cluster, client: ClusterClient) -> None:
    """RocketMQ can record the position of a sender only in the message."""
    for spec in ({"sender": "s", "stamp_origin": False}, {"sender": "s"}, {}):
        outbound = outbound_of(client, **spec)
        assert (NAME in outbound.formats) is not ("sender" in spec)
        batch = batch_of_units(FORMATS[0], UNITS[:1], SOURCE)
        assert not (await outbound.send(0, Share(batch))).failures
    assert len(stored(cluster)) == 3
    for body, block in stored(cluster):
        assert body == b"1"
        assert "mqbridge.origin\x01here|t|0|10\x02" in block
        assert "DELAY\x01" not in block


async def test_units_of_a_share_with_a_time_are_sent_alone_and_have_no_positions(cluster: Cluster, client: ClusterClient) -> None:
    deliver_at = round(time.time() * 1000) + 60_000
    receipt = await outbound_of(client, stamp_origin=False).send(0, Share(units(), deliver_at=deliver_at))
    assert (receipt.failures, list(receipt.positions)) == ([], [(), ()])
    timer = f"TIMER_DELIVER_MS\x01{deliver_at}\x02"
    assert stored(cluster) == [(b"1", "DELAY\x013\x02a\x011\x02a\x012\x02"), (b"\x78\x9c", timer)]
    headers = cluster.headers(Code.SEND_MESSAGE_V2)
    assert [(header.born_timestamp, header.flag, header.sys_flag, header.reconsume_times) for header in headers] == [
        (5, 7, 0, 0),
        (6, 0, SysFlag.COMPRESSED, 2),
    ]


@pytest.mark.parametrize("is_edited", [False, True])
async def test_units_that_become_messages_are_delayed_until_the_time_of_the_share(
    cluster: Cluster, client: ClusterClient, is_edited: bool
) -> None:
    deliver_at = round(time.time() * 1000) + 60_000
    batch = batch_of_units(FORMATS[0], UNITS[:1])
    share = Share(batch, None, [Message(b"1")] if is_edited else None, deliver_at=deliver_at)
    assert not (await outbound_of(client, stamp_origin=False, keep_units=is_edited).send(0, share)).failures
    ((body, block),) = stored(cluster)
    pairs = properties.decode(block.encode())
    assert body == b"1"
    assert ("TIMER_DELIVER_MS", str(deliver_at)) in pairs
    assert "DELAY" not in dict(pairs)


async def test_a_refused_unit_that_is_sent_again_alone_has_no_effects(cluster: Cluster, client: ClusterClient) -> None:
    """A broker would delay it once more, or hide it as a half message."""
    cluster.on[Code.SEND_BATCH_MESSAGE] = refuses(Status.MESSAGE_ILLEGAL)
    assert not (await outbound_of(client).send(0, Share(batch_of_units(FORMATS[0], UNITS[:1])))).failures
    assert stored(cluster) == [(b"1", "a\x011\x02a\x012\x02")]
    (header,) = cluster.headers(Code.SEND_MESSAGE_V2)
    assert (header.flag, header.batch) == (7, False)


async def test_a_refused_unit_whose_properties_are_no_text_is_not_changed(cluster: Cluster, client: ClusterClient) -> None:
    cluster.on[Code.SEND_BATCH_MESSAGE] = refuses(Status.MESSAGE_ILLEGAL)
    unit = Unit(encode_neutral(b"1", b"a\x01\xff\x02", born_timestamp=5), 1, None)
    receipt = await outbound_of(client).send(0, Share(batch_of_units(FORMATS[0], [unit])))
    assert [failure.failure_kind for failure in receipt.failures] == [Failure.REFUSED]
    assert stored(cluster) == []


async def test_a_share_is_refused_whole_if_a_message_exceeds_what_the_brokers_report(
    cluster: Cluster, client: ClusterClient
) -> None:
    outbound = outbound_of(client, max_batch_bytes=2000, whole_shares=True)
    share = Share(Batch.of([Message(b"1"), Message(bytes(2001)), Message(b"3")]))
    receipt = await outbound.send(0, share)
    assert [failure.index for failure in receipt.failures] == [0, 1, 2]
    assert {failure.failure_kind for failure in receipt.failures} == {Failure.REFUSED}
    damaged = batch_of_units(FORMATS[0], [*UNITS, Unit(b"damaged", 1, None)])
    assert [failure.index for failure in (await outbound.send(0, Share(damaged))).failures] == [0, 1, 2]
    assert stored(cluster) == []
    assert not (await outbound.send(0, Share(Batch.of([Message(b"1"), Message(bytes(2000))])))).failures
    assert [len(body) for body, _ in stored(cluster)] == [1, 2000]
