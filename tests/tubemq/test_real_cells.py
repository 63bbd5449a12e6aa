"""Messages have the same positions each time a range is read, wherever Brokers end their packs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from mqbridge.adapter import reading
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.tools.unit_ranges import split_evenly
from mqbridge.message import Batch, Message, Position, Share
from mqbridge.tubemq.adapter.registration import ADAPTER
from mqbridge.tubemq.client.consumer import stable_range_reader
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_settings import TOKEN
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster

CELL_ENTRIES = 64
COUNT = 300
Found = list[tuple[int, Position]]


@pytest_asyncio.fixture
async def cluster(tubemq: TubeMQ, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(stable_range_reader, "CELL_ENTRIES", CELL_ENTRIES)
    config = ADAPTER.cluster_model(
        masters=tubemq.masters, admin_url=tubemq.admin_url.removesuffix("/webapi.htm"), admin_token=TOKEN, heartbeat="500ms"
    )
    cluster = ADAPTER.make_cluster("c", config)
    await cluster.connect()
    yield cluster
    await cluster.close()


async def fill(cluster: Cluster, topic: str, first: int, count: int) -> None:
    """Send numbered messages to both partitions of a store in turn, twice as many to the first; a hundred fill a pack."""
    outbound = await cluster.outbound(OutboundSpec(topic))
    sends = [
        outbound.send(partition, Share(Batch.of([Message(b"%06d" % number + bytes(5000))])))
        for number in range(first, first + count)
        for partition in ((0, 1) if number % 2 else (0,))
    ]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert not any(receipt.failures for receipt in await asyncio.gather(*sends))
    await outbound.close()


async def read(cluster: Cluster, topic: str, name: str, begin: Position, end: Position) -> tuple[Found, list[Batch]]:
    async with asyncio.timeout(SERVER_PATIENCE_S), aclosing(reading.read(cluster, topic, name, begin, end)) as found:
        batches = [batch async for batch in found]
    for batch in batches:
        assert (batch.first, batch.count) == (batch.messages[0].position, len(batch.messages))
        assert batch.messages[-1].position < batch.next <= end
    return [(int((m.payload or b"")[:6]), m.position) for batch in batches for m in batch.messages], batches


@pytest.mark.parametrize("partition", [0, 1])
async def test_positions_do_not_depend_on_the_start_of_the_read(tubemq: TubeMQ, cluster: Cluster, partition: int) -> None:
    topic = tubemq.take_topic(2)
    await fill(cluster, topic, 0, COUNT // 2)
    described = await cluster.describe(topic)
    assert described is not None
    name = described.partitions[partition]
    early = (await cluster.bounds(topic))[name]
    found, batches = await read(cluster, topic, name, early.first, early.next)
    await fill(cluster, topic, COUNT // 2, COUNT // 2)
    end = (await cluster.bounds(topic))[name].next
    whole, _ = await read(cluster, topic, name, early.first, end)
    assert [number for number, _ in whole] == [number for number in range(COUNT) if number % 2 or not partition]
    assert max(index for _, (_, index) in whole) < CELL_ENTRIES
    rest, _ = await read(cluster, topic, name, batches[-1].next, end)
    assert found + rest == whole
    for index in (1, 40, 63, 64, 65, 100, len(whole) - 1):
        again, _ = await read(cluster, topic, name, whole[index][1], end)
        assert again == whole[index:]
    for first, last in ((0, 70), (3, 65), (64, 130), (50, 52)):
        between, _ = await read(cluster, topic, name, whole[first][1], whole[last][1])
        assert between == whole[first:last]
        unit_ranges = await cluster.measure(topic, name, whole[first][1], whole[last][1])
        pieces = [
            await read(cluster, topic, name, *piece) for piece in split_evenly(unit_ranges, whole[first][1], whole[last][1], 3)
        ]
        assert [number for piece, _ in pieces for number, _ in piece] == [number for number, _ in whole[first:last]]


async def test_positions_counted_from_packs_can_be_read_from(tubemq: TubeMQ, cluster: Cluster) -> None:
    """Lanes count positions from the start of a pack, so an index may exceed the cell of its offset."""
    topic = tubemq.take_topic(2)
    await fill(cluster, topic, 0, COUNT)
    described = await cluster.describe(topic)
    assert described is not None
    name = described.partitions[0]
    bounds = (await cluster.bounds(topic))[name]
    for begin, last in ((10, 250), (200, 201), (0, 90)):
        (offset, _), (end, _) = bounds.first, bounds.first
        found, _ = await read(cluster, topic, name, (offset, begin), (end, last))
        assert [number for number, _ in found] == list(range(begin, last))
