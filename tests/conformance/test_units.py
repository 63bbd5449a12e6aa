"""Units are stored and delivered as they are: their bytes, and so their boundaries, survive."""

import time

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.formats import UnitFormat, batch_of_units
from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.reading import read
from mqbridge.adapter.registry import find_format
from mqbridge.message import Batch, Message, Partition, Share, Unit
from tests.conformance.arena import SOURCE, Arena, fresh_group, numbered
from tests.conformance.unit_samples import SAMPLES

SENDER = Partition("sdk", "producer-7", "0", 0)


def sample(name: str, first: int | None = None) -> tuple[UnitFormat, list[Unit]]:
    """Return the format, and units of it; with `first`, their positions count from there."""
    unit_format, units = find_format(name), SAMPLES[name]()
    assert unit_format is not None
    if first is not None:
        for index, unit in enumerate(units):
            units[index] = unit._replace(position=(first,))
            first += unit.message_count
    return unit_format, units


def formats_of(outbound: Outbound) -> list[str]:
    formats = sorted(set(outbound.formats) & SAMPLES.keys())
    if not formats:
        pytest.skip("stores no units")
    return formats


async def send_units(arena: Arena, outbound: Outbound, name: str) -> list[Message]:
    """Send the sample; return its messages, decoded."""
    unit_format, units = sample(name)
    batch = batch_of_units(unit_format, units)
    receipt = await arena.within(outbound.send(0, Share(batch)))
    assert [failure.reason for failure in receipt.failures] == []
    assert len(receipt.positions) == batch.count
    assert list(receipt.positions) == sorted(set(receipt.positions))
    return list(batch.messages)


async def read_all(arena: Arena, cluster: Cluster, topic: str) -> list[Batch]:
    await arena.within(arena.harness.settle())
    ((name, bounds),) = (await arena.within(cluster.bounds(topic))).items()

    async def batches() -> list[Batch]:
        return [batch async for batch in read(cluster, topic, name, bounds.first, bounds.next)]

    return await arena.within(batches())


def units_of(batches: list[Batch]) -> list[Unit]:
    return [unit for batch in batches for unit in batch.units or ()]


def content(message: Message) -> dict[str, object]:
    return {name: value for name, value in message.as_dict().items() if name not in {"position", "publish_time"}}


async def test_units_are_delivered_as_they_were_stored(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic, keep_units=True)
    for name in formats_of(outbound):
        topic = await arena.topic(cluster)
        outbound = await arena.outbound(cluster, topic, keep_units=True)
        sent = await send_units(arena, outbound, name)
        batches = await read_all(arena, cluster, topic)
        assert {batch.format for batch in batches} == {name}
        found = units_of(batches)
        stored = SAMPLES[name]()
        assert [(unit.data, unit.message_count) for unit in found] == [(unit.data, unit.message_count) for unit in stored]
        messages = [message for batch in batches for message in batch.messages]
        assert [content(message) for message in messages] == [content(message) for message in sent]
        assert [unit.position for unit in found] == [
            messages[sum(unit.message_count for unit in found[:index])].position for index in range(len(found))
        ]
        assert not any(unit.left_out for unit in found)


async def test_a_batch_has_one_format(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic, keep_units=True)
    sent: list[Message] = []
    for index, name in enumerate(formats_of(outbound)):
        await arena.send(outbound, 0, numbered(index, index + 1))
        sent += [*numbered(index, index + 1), *await send_units(arena, outbound, name)]
    await arena.send(outbound, 0, numbered(99, 100))
    payloads = [*(message.payload for message in sent), b"000099"]
    batches = await read_all(arena, cluster, topic)
    assert [message.payload for batch in batches for message in batch.messages] == payloads
    lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
    received, _ = await arena.take(lane, len(payloads))
    assert [message.payload for message in received] == payloads


async def test_reading_inside_a_unit_says_what_is_left_out(arena: Arena, cluster: Cluster) -> None:
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic, keep_units=True)
    for name in formats_of(outbound):
        topic = await arena.topic(cluster)
        outbound = await arena.outbound(cluster, topic, keep_units=True)
        await send_units(arena, outbound, name)
        messages = [message for batch in await read_all(arena, cluster, topic) for message in batch.messages]
        ((partition, bounds),) = (await arena.within(cluster.bounds(topic))).items()
        for skip in range(len(messages)):
            reader = await arena.reader(cluster, topic, partition, messages[skip].position, bounds.next)
            found: list[Batch] = []
            while (batch := await arena.within(reader.receive())) is not None:
                found.append(batch)
            assert [message.payload for batch in found for message in batch.messages] == [m.payload for m in messages[skip:]]
            kept = [index for unit in units_of(found) for index in range(unit.message_count) if not unit.left_out >> index & 1]
            assert len(kept) == len(messages) - skip


async def test_what_is_not_sent_as_it_is_becomes_messages(arena: Arena, cluster: Cluster) -> None:
    """A part of a batch, edited messages, and messages that get an origin."""
    topic = await arena.topic(cluster)
    outbound = await arena.outbound(cluster, topic, keep_units=True)
    for name in formats_of(outbound):
        unit_format, units = sample(name, first=0)
        batch = batch_of_units(unit_format, units)
        edited = [message.replace(payload=b"edited") for message in batch.messages]
        for share, payloads in (
            (Share(batch, [1, 2]), [message.payload for message in batch.messages[1:3]]),
            (Share(batch, None, edited), [b"edited"] * batch.count),
            (Share(batch_of_units(unit_format, units, SOURCE)), [message.payload for message in batch.messages]),
        ):
            topic = await arena.topic(cluster)
            outbound = await arena.outbound(cluster, topic, keep_units=True)
            receipt = await arena.within(outbound.send(0, share))
            assert not receipt.failures
            batches = await read_all(arena, cluster, topic)
            assert [message.payload for batch in batches for message in batch.messages] == payloads


async def test_units_of_a_share_with_a_time_are_delivered_then(arena: Arena, cluster: Cluster) -> None:
    """The system holds them, or tells its consumers the time, which hold them as far as they share a partition."""
    if not cluster.capabilities.delay:
        pytest.skip("delays nothing")
    for name in formats_of(await arena.outbound(cluster, await arena.topic(cluster), keep_units=True)):
        topic = await arena.topic(cluster)
        outbound = await arena.outbound(cluster, topic, keep_units=True)
        lane = await arena.lane(await arena.inbound(cluster, topic, fresh_group()))
        batch = batch_of_units(*sample(name))
        deliver_at = round(time.time() * 1000) + 1500
        receipt = await arena.within(outbound.send(0, Share(batch, deliver_at=deliver_at)))
        assert not receipt.failures
        missing = [message.payload for message in batch.messages]
        while missing:
            received = await arena.receive(lane)
            lane.acknowledge(received)
            for message in received.messages:
                assert message.deliver_at == deliver_at or time.time() * 1000 >= deliver_at
                missing.remove(message.payload)


async def test_units_of_a_sender_are_found_again(arena: Arena, cluster: Cluster) -> None:
    """`resume` finds the last unit. The stamp lies beside the unit, whose bytes do not change, or the messages are stamped."""
    topic = await arena.topic(cluster)
    make_topic = getattr(arena.harness, "deduplicated_topic", arena.harness.topic)
    for name in formats_of(await arena.outbound(cluster, topic, keep_units=True)):
        topic = await arena.within(make_topic(cluster, 1))
        sequence = 100
        for _ in range(2):
            outbound = await arena.outbound(cluster, topic, sender="sdk-7", stamp_origin=False, keep_units=True)
            last = await arena.within(outbound.resume(SENDER))
            assert last == ({} if sequence == 100 else {0: (sequence - 1,)})
            unit_format, units = sample(name, first=sequence)
            batch = batch_of_units(unit_format, units, SENDER)
            receipt = await arena.within(outbound.send(0, Share(batch)))
            assert not receipt.failures
            sequence += batch.count
            await arena.within(outbound.close())
        batches = await read_all(arena, cluster, topic)
        payloads = [message.payload for message in batch.messages]
        assert [message.payload for batch in batches for message in batch.messages] == payloads * 2
        # A system that stamps messages, or needs the sender's own name and numbers in a unit, stores messages instead.
        if name in outbound.formats and getattr(arena.harness, "keeps_foreign_units", True):
            assert [unit.data for unit in units_of(batches)] == [unit.data for _ in range(2) for unit in SAMPLES[name]()]
