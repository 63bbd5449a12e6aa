"""The function `read` works with readers, and with adapters that were written before there were readers."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

import pytest
import pytest_asyncio

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.message import Batch, Message, Position, Share
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from mqbridge.testing.memory.broker import delete_broker


class SecondEdition:
    """A cluster that has the generator `read`, and no reader."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        async with aclosing(read(self._cluster, topic, partition, begin, end)) as batches:
            async for batch in batches:
                yield batch


@pytest_asyncio.fixture
async def memory() -> AsyncIterator[MemoryCluster]:
    cluster = MemoryCluster("reading", MemoryConfig(batch_messages=3))
    await cluster.create("t", 1)
    outbound = await cluster.outbound(OutboundSpec("t"))
    await outbound.send(0, Share(Batch.of([Message(b"%d" % number) for number in range(10)])))
    await outbound.close()
    yield cluster
    delete_broker("reading")


@pytest.mark.parametrize("edition", [2, 3])
async def test_a_range_is_read_from_adapters_of_both_editions(memory: MemoryCluster, edition: int) -> None:
    cluster: Cluster = cast(Cluster, SecondEdition(memory)) if edition == 2 else memory
    found = [message.payload async for batch in read(cluster, "t", "0", (2,), (9,)) for message in batch.messages]
    assert found == [b"%d" % number for number in range(2, 9)]


async def test_a_reader_is_closed_when_the_generator_is(memory: MemoryCluster) -> None:
    (stored,) = memory.broker.topics["t"]
    async with aclosing(read(memory, "t", "0", (0,))) as batches:
        assert (await anext(batches)).count == 3
        assert len(stored.readers) == 1
    assert not stored.readers
