"""The size of a batch whose range begins or ends inside stored rows."""

from contextlib import aclosing
from pathlib import Path

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share


async def test_a_part_of_a_row_counts_in_proportion_to_its_messages(tmp_path: Path) -> None:
    cluster = LogCluster("log", LogSettings(path=tmp_path / "f.db"))
    await cluster.connect()
    try:
        await cluster.create("t", 1)
        outbound = await cluster.outbound(OutboundSpec("t", stamp_origin=False))
        for _ in range(2):
            await outbound.send(0, Share(Batch.of([Message(bytes(1000)) for _ in range(200)])))
        await outbound.close()

        async def sizes(begin: int, end: int) -> list[int]:
            async with aclosing(read(cluster, "t", "0", (begin,), (end,))) as batches:
                return [batch.size async for batch in batches]

        (row_size,) = await sizes(0, 200)
        assert await sizes(10, 15) == [row_size * 5 // 200]
    finally:
        await cluster.close()
