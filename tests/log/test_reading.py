"""What a range tells of its size where it cuts the rows that are stored."""

from contextlib import aclosing
from pathlib import Path

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share


async def test_a_row_that_is_cut_counts_as_much_as_of_it_is_read(tmp_path: Path) -> None:
    cluster = LogCluster("log", LogSettings(path=tmp_path / "f.db"))
    await cluster.connect()
    try:
        await cluster.create("t", 1)
        outbound = await cluster.outbound(OutboundSpec("t", stamp_origin=False))
        for _ in range(2):
            await outbound.send(0, Share(Batch.of([Message(bytes(1000)) for _ in range(200)])))
        await outbound.close()

        async def sizes(begin: int, end: int) -> list[int]:
            async with aclosing(cluster.read("t", "0", (begin,), (end,))) as batches:
                return [batch.size async for batch in batches]

        (whole,) = await sizes(0, 200)
        assert await sizes(10, 15) == [whole * 5 // 200]
    finally:
        await cluster.close()
