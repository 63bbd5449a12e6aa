"""An outbound of a log finds out what a route has stored, also in a damaged file."""

from pathlib import Path

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.message import Batch, Message, Partition, Share
from tests.log.conftest import OpenLog
from tests.log.store.log_files import change

SOURCE = Partition("there", "orders", "0", 0)


async def copied(cluster: LogCluster, first: int, end: int) -> None:
    """Store messages with the positions from `first` to before `end` of the source, one by one."""
    outbound = await cluster.outbound(OutboundSpec("t", stamp_origin=True))
    for position in range(first, end):
        batch = Batch.of([Message(b"%d" % position, position=(position,))], SOURCE)
        assert not (await outbound.send(0, Share(batch))).failures
    await outbound.close()


@pytest.mark.parametrize(("damaged", "expected"), [((4,), 3), ((3, 4), 2), ((1,), 4), ((0, 1, 2, 3, 4), None)])
async def test_messages_in_damaged_batches_count_as_not_stored(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: tuple[int, ...], expected: int | None
) -> None:
    """So a route sends them again, where it would not start at all otherwise."""
    cluster = await open_log()
    await cluster.create("t", 1)
    await copied(cluster, 0, 5)
    await cluster.close()
    change(tmp_path / "log.db", *(f"UPDATE batch SET crc = ~crc WHERE base = {base}" for base in damaged))
    cluster = await open_log()
    outbound = await cluster.outbound(OutboundSpec("t", stamp_origin=True))
    assert await outbound.resume(SOURCE) == ({} if expected is None else {0: (expected,)})
    assert "has lost messages, which may be sent again" in caplog.text
