"""What connections share: offsets, message ids, topics and damaged messages, with a listener over the embedded log."""

import asyncio

import pytest

from mqbridge.message import Unit
from mqbridge.tubemq.mapping.unit_format import unit_of_data
from mqbridge.tubemq.server.broker import INDEX_BYTES
from mqbridge.tubemq.server.refusals import CodedRefusal
from tests.patience import PATIENCE_S
from tests.tubemq.server.serving import DEAD_LETTERS, TOPIC, bodies_of, serving


async def test_offsets_count_index_entries_and_are_rounded_down() -> None:
    async with serving() as served:
        broker = served.broker
        assert [broker.offset(number) for number in (0, 1, 7)] == [0, INDEX_BYTES, 7 * INDEX_BYTES]
        assert [broker.number(offset) for offset in (0, 27, 28, 29, 56)] == [0, 0, 1, 1, 2]
        with pytest.raises(CodedRefusal) as refused:
            broker.position(1 << 63)
        assert refused.value.code == 400


async def test_message_ids_are_the_same_at_every_look_and_differ_within_a_partition() -> None:
    async with serving() as served:
        topic = await served.create(partitions=2)
        ids = [*served.broker.message_ids(topic, 0, range(1000))]
        assert ids == [*served.broker.message_ids(topic, 0, range(1000))]
        assert len(set(ids)) == 1000
        assert all(0 <= each < 1 << 63 for each in ids)
        assert ids[0] != served.broker.message_ids(topic, 1, (0,))[0]


async def test_the_version_of_the_brokers_depends_on_the_address_only() -> None:
    async with serving() as served:
        broker = served.broker
        assert broker.checksum("10.0.0.1:8715") == broker.checksum("10.0.0.1:8715")
        assert broker.checksum("10.0.0.1:8715") != broker.checksum("10.0.0.1:8716")
        assert broker.checksum("10.0.0.1:8715") >= 0


async def test_a_partition_that_does_not_exist_is_refused() -> None:
    async with serving(create_partitions=None) as served:
        await served.create(partitions=2)
        assert (await served.broker.partition_topic(TOPIC, 1)).name == TOPIC
        for name, partition in ((TOPIC, 2), (TOPIC, -1), ("other", 0)):
            with pytest.raises(CodedRefusal) as refused:
                await served.broker.partition_topic(name, partition)
            assert refused.value.code == 403
        await served.create(partitions=3)
        assert 2 in (await served.broker.partition_topic(TOPIC, 2)).partitions, "it is looked for again"


async def test_a_damaged_message_is_a_dead_letter_and_the_others_are_delivered() -> None:
    async with serving() as served:
        await served.create()
        client = await served.connect()
        await client.join()
        await client.own()
        await served.append(unit_of_data(b"a", 0), Unit(b"\1", 1, None, ()), unit_of_data(b"b", 0))
        assert await client.read(2) == [b"a", b"b"]
        assert (await client.confirm()).currOffset == 3 * INDEX_BYTES
        async with asyncio.timeout(PATIENCE_S):
            while not (letters := await served.stored(DEAD_LETTERS)):
                await asyncio.sleep(0.01)
        assert len(letters) == 1
        assert bodies_of(await client.get(consumed=True)) == []
