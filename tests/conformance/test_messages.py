"""Sent messages arrive: every field, any bytes, any size, in order, with correct positions."""

import asyncio

import pytest

from mqbridge.adapter.cluster import Capabilities, Cluster
from mqbridge.errors import Failure
from mqbridge.message import Batch, Message, Partition, Share, format_position, origin_prefix, parse_position, split_origin
from tests.conformance.arena import SOURCE, Arena, fresh_group, numbered, numbers

EVENT_TIME = 1_700_000_123_456
PAST = 1_600_000_000_000

MESSAGES = {
    "plain": Message(b"body"),
    "binary": Message(bytes(range(256)) * 3),
    "text in many scripts": Message("naïve ünï 試験 🚀\x00\x01".encode()),
    "tombstone": Message(None, key="k"),
    "properties": Message(b"x", (("b", "2"), ("a", "1"), ("b", "3"), ("empty", ""), ("試", "験 🚀"))),
    "awkward properties": Message(
        b"x", (("a,b", "c=d"), ("%2C", "100%"), (" ", " "), ("mqbridge.mine", "kept"), ("x", "\x01\x02"))
    ),
    "text key": Message(b"x", key="schlüssel"),
    "binary key": Message(b"x", key=b"\x00\xff\xfe"),
    "ordering key": Message(b"x", ordering_key=b"\x00\x80order"),
    "keys": Message(b"x", keys=("one", "two, with = all", "drei")),
    "message type": Message(b"x", (("$msgType$", "click"),), msg_type="click"),
    "attribute string": Message(b"x", (("a", "1"), ("b", "2")), attributes=b"a=1,b=2"),
    "odd attribute string": Message(b"x", (("a", "1"),), attributes=b",,a=1,\xff\xfe,b"),
    "event time": Message(b"x", event_time=EVENT_TIME),
    "due long ago": Message(b"x", deliver_at=PAST),
    "all at once": Message(
        b"\x00all",
        (("$msgType$", "view"), ("p", "1"), ("p", "2")),
        key="k",
        ordering_key=b"o",
        keys=("i", "j"),
        msg_type="view",
        event_time=EVENT_TIME,
    ),
}


@pytest.mark.parametrize("stamp_origin", [True, False], ids=["stamped", "unstamped"])
async def test_every_field_arrives(arena: Arena, cluster: Cluster, stamp_origin: bool) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic, stamp_origin=stamp_origin)
    sent = [message.replace(position=(offset,)) for offset, message in enumerate(MESSAGES.values())]
    await arena.send(outbound, 0, sent)
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, len(sent))
    for name, before, after in zip(MESSAGES, sent, received, strict=True):
        for field in arena.harness.carried:
            assert getattr(after, field) == getattr(before, field), f"{name}: {field}"
        assert after.defect is None
        assert after.origin == (origin_prefix(SOURCE) + format_position(before.position) if stamp_origin else None)


async def test_an_empty_payload_arrives(arena: Arena, cluster: Cluster, capabilities: Capabilities) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    receipt = await arena.within(outbound.send(0, Share(Batch.of([Message(b""), Message(b"more")]))))
    refused = [] if capabilities.empty_payload else [0]
    assert [failure.index for failure in receipt.failures] == refused
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, 2 - len(refused))
    assert [message.payload for message in received] == [b"", b"more"][len(refused) :]


async def test_an_outbound_reports_the_bytes_that_it_holds(arena: Arena, cluster: Cluster) -> None:
    outbound = await arena.outbound(cluster, await arena.topic(cluster))
    messages = [Message(bytes(1000)), Message(b""), Message(None, key="k"), Message(bytes(3000), (("p", "1"),))]
    share = Share(Batch.of(messages, SOURCE), edited=messages)
    receipt = outbound.send(0, share)
    assert receipt.done() or share.held_bytes >= sum(len(message.payload or b"") for message in messages)
    await arena.within(receipt)


async def test_a_message_close_to_the_size_limit_arrives(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    payload = bytes(range(256)) * (arena.harness.max_payload // 256)
    await arena.send(outbound, 0, [Message(b"before"), Message(payload), Message(b"after")])
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, 3)
    assert [message.payload for message in received] == [b"before", payload, b"after"]


async def test_refused_messages_are_reported_by_index(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic)
    messages = numbered(0, 5)
    messages[1], messages[3] = Message(b"raw", defect="damaged"), Message(b"raw", defect="damaged")
    receipt = await arena.within(outbound.send(0, Share(Batch.of(messages, SOURCE))))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(1, Failure.REFUSED), (3, Failure.REFUSED)]
    assert all(failure.reason for failure in receipt.failures)
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, 3)
    assert numbers(received) == [0, 2, 4]


async def test_a_too_large_message_is_refused_and_blocks_nothing(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic, options=arena.harness.refusing_options)
    receipt = await arena.within(
        outbound.send(0, Share(Batch.of([Message(b"0"), Message(bytes(17 << 20)), Message(b"2")], SOURCE)))
    )
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(1, Failure.REFUSED)]
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, 2)
    assert numbers(received) == [0, 2]


async def test_order_and_positions_of_each_partition(arena: Arena, cluster: Cluster) -> None:
    partitions, sends, size = 3, 12, 40
    topic = await arena.topic(cluster, partitions)
    outbound = await arena.outbound(cluster, topic)
    assert outbound.partitions == partitions
    receipts = await arena.within(
        asyncio.gather(
            *(
                outbound.send(partition, Share(Batch.of(numbered(number * size, number * size + size), SOURCE)))
                for number in range(sends)
                for partition in range(partitions)
            )
        )
    )
    assert not any(receipt.failures for receipt in receipts)
    inbound = await arena.inbound(cluster, topic, fresh_group())
    indexes = set()
    for _ in range(partitions):
        lane = await arena.lane(inbound)
        indexes.add(lane.partition.index)
        received, batches = await arena.take(lane, sends * size)
        assert numbers(received) == list(range(sends * size))
        for position in [message.position for message in received] + [batch.next for batch in batches]:
            assert parse_position(format_position(position)) == position
    assert indexes == set(range(partitions))


async def test_keys_choose_a_partition(arena: Arena, cluster: Cluster) -> None:
    outbound = await arena.outbound(cluster, await arena.topic(cluster, 3))
    chosen = [outbound.partition_of(b"key-%d" % number) for number in range(60)]
    assert chosen == [outbound.partition_of(b"key-%d" % number) for number in range(60)]
    assert set(chosen) == {0, 1, 2}


async def test_resume_returns_the_last_stored_source_position(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster, 3)
    outbound = await arena.outbound(cluster, topic)
    assert await arena.within(outbound.resume(SOURCE)) == {}
    await arena.send(outbound, 1, numbered(0, 5))
    await arena.send(outbound, 1, numbered(5, 30))
    await arena.send(outbound, 0, numbered(50, 51))
    other = Partition(SOURCE.cluster, SOURCE.topic, "p:1", 1)
    assert not (await arena.within(outbound.send(1, Share(Batch.of(numbered(70, 71), other))))).failures
    await arena.within(arena.harness.settle())
    assert await arena.within(outbound.resume(SOURCE)) == {0: (50,), 1: (29,)}
    assert await arena.within(outbound.resume(other)) == {1: (70,)}
    await arena.within(outbound.close())
    again = await arena.outbound(await arena.cluster(), topic)
    assert await arena.within(again.resume(SOURCE)) == {0: (50,), 1: (29,)}


async def test_resume_does_not_search_before_since(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster, 2)
    outbound = await arena.outbound(cluster, topic)
    await arena.send(outbound, 0, numbered(0, 5))
    bounds, described = await arena.within(cluster.bounds(topic)), await arena.within(cluster.describe(topic))
    assert described is not None
    since = {index: bounds[name].next for index, name in enumerate(described.partitions)}
    assert await arena.within(outbound.resume(SOURCE, since)) == {}
    await arena.send(outbound, 0, numbered(5, 9))
    await arena.send(outbound, 1, numbered(9, 11))
    assert await arena.within(outbound.resume(SOURCE, since)) == {0: (8,), 1: (10,)}


async def test_resume_finds_only_the_messages_of_the_same_writer(arena: Arena, cluster: Cluster) -> None:
    topic, group = await arena.topic(cluster), fresh_group()
    for writer, last in ((None, 9), ("0123456789abcdef", 4), ("0000000000000007", 6)):
        outbound = await arena.outbound(cluster, topic, writer=writer)
        assert await arena.within(outbound.resume(SOURCE)) == {}
        await arena.send(outbound, 0, numbered(0, last + 1))
        await arena.within(arena.harness.settle())
        assert await arena.within(outbound.resume(SOURCE)) == {0: (last,)}
        await arena.within(outbound.close())
    by_url = Partition("pulsar://a:6650,[::1]:6651/x/y", SOURCE.topic, SOURCE.name, 0)
    outbound = await arena.outbound(cluster, topic, writer="0000000000000007")
    assert not (await arena.within(outbound.send(0, Share(Batch.of(numbered(8, 9), by_url))))).failures
    await arena.within(arena.harness.settle())
    assert await arena.within(outbound.resume(by_url)) == {0: (8,)}
    inbound = await arena.inbound(cluster, topic, group)
    received, _ = await arena.take(await arena.lane(inbound), 23)
    for source, stored, position in ((SOURCE, received[21], (6,)), (by_url, received[22], (8,))):
        assert stored.origin == origin_prefix(source, "0000000000000007") + format_position(position)
        assert split_origin(stored.origin) == (source.cluster, source.topic, source.name, position)
        assert stored.hops == 1
        assert not any(name.startswith("mqbridge.") for name, _ in stored.properties)


async def test_a_sender_resumes_after_its_last_stored_message(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster, 2)
    first = await arena.outbound(cluster, topic, sender="job")
    assert await arena.within(first.resume(SOURCE)) == {}
    await arena.send(first, 0, numbered(0, 7))
    await arena.send(first, 1, numbered(7, 9))
    await arena.within(first.close())
    second = await arena.outbound(await arena.cluster(), topic, sender="job")
    assert await arena.within(second.resume(SOURCE)) == {0: (6,), 1: (8,)}
    await arena.send(second, 0, numbered(9, 12))
    assert await arena.within(second.resume(SOURCE)) == {0: (11,), 1: (8,)}
    inbound = await arena.inbound(cluster, topic, fresh_group())
    received = {}
    for _ in range(2):
        lane = await arena.lane(inbound)
        messages, _ = await arena.take(lane, 10 if lane.partition.index == 0 else 2)
        received[lane.partition.index] = numbers(messages)
    assert received == {0: [*range(7), *range(9, 12)], 1: [7, 8]}
