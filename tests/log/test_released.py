"""What a log has stored is freed at once: the garbage collector comes rarely at full speed, and bytes do not call it."""

import gc
from pathlib import Path

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.cluster import ADAPTER
from mqbridge.log.store.append import Append
from mqbridge.message import Batch, Message, Share


async def test_what_is_stored_is_freed(tmp_path: Path) -> None:
    cluster = ADAPTER.make_cluster("a", ADAPTER.cluster_model(path=tmp_path / "a.db", synchronous="normal"))
    await cluster.connect()
    await cluster.create("t", 1)
    outbound = await cluster.outbound(OutboundSpec("t"))
    gc.collect()
    gc.disable()
    try:
        for _ in range(20):
            assert not (await outbound.send(0, Share(Batch.of([Message(bytes(1000))] * 3)))).failures
        kept = sum(isinstance(one, Append) for one in gc.get_objects())
    finally:
        gc.enable()
    assert kept <= 1, "the last one may still be on its way out"
    await outbound.close()
    await cluster.close()
