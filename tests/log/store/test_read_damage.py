"""Damage is a property of a row: it delays nothing else, what is valid around it is delivered, and what is lost is said."""

import asyncio
import gc
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from mqbridge.adapter.inbound import InboundSpec, Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, GapError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.connection import PAGE_BYTES, open_connection
from mqbridge.log.store.extents import _is_intact_batch, rebuilt_extent
from mqbridge.log.store.repair import repair
from mqbridge.log.store.schema import partition_id
from mqbridge.message import Batch, Message, Share
from tests.conformance.arena import numbered, numbers
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.log.store.log_files import change, no_report, write_log
from tests.patience import PATIENCE_S


async def send_each(cluster: LogCluster, topic: str, count: int, first: int = 0) -> None:
    """Send numbered messages to a topic, each as a batch of its own."""
    outbound = await outbound_of(cluster, topic)
    for number in range(first, first + count):
        await outbound.send(0, Share(Batch.of(numbered(number, number + 1))))
    await outbound.close()


async def test_a_damaged_row_does_not_freeze_other_partitions(open_log: OpenLog, tmp_path: Path) -> None:
    """The error is kept, as a route keeps it: with it, the unfinished query would keep its snapshot."""
    cluster = await open_log()
    await send_each(cluster, "bad", 3)
    await send_each(cluster, "good", 1)
    change(tmp_path / "log.db", f"UPDATE batch SET crc = crc + 1 WHERE base = 1 AND partition = {partition_id(1, 0)}")
    _, bad = await lane_of(cluster, "g1", "bad")
    _, good = await lane_of(cluster, "g2", "good")
    assert (await bad.receive()).count == 1
    kept = await asyncio.gather(bad.receive(), return_exceptions=True)
    assert isinstance(kept[0], GapError)
    assert (await good.receive()).count == 1
    await send_each(cluster, "good", 5, first=1)
    async with asyncio.timeout(PATIENCE_S):
        assert numbers((await good.receive()).messages)[0] == 1
    assert (await cluster.bounds("good"))["0"].next == (6,)
    gc.collect()


async def test_no_transaction_is_open_after_a_job_that_fails(open_log: OpenLog) -> None:
    cluster = await open_log()
    await send_each(cluster, "t", 3)

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN")
        connection.execute("SELECT base FROM batch").fetchone()
        raise ClusterError("failed")

    with pytest.raises(ClusterError, match="failed"):
        await cluster.store.read(fail)
    assert not await cluster.store.read(lambda connection: connection.in_transaction)


@pytest.fixture
async def damaged_page(open_log: OpenLog, tmp_path: Path) -> Callable[[], None]:
    """Store 40 messages, one of 120 kB with overflow pages, and 19 more; return a function that damages one of these pages."""
    cluster = await open_log()
    await send_each(cluster, "t", 40)
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of([Message(b"BIGONE" * 20_000)])))
    await send_each(cluster, "t", 19, first=41)
    await cluster.close()

    def damage() -> None:
        data = bytearray((tmp_path / "log.db").read_bytes())
        pages = range(0, len(data), PAGE_BYTES)
        overflow = next(at for at in pages if data[at + 10 : at + 4000].count(b"BIGONE") > 600)
        data[overflow : overflow + 4] = (0x7FFFFF00).to_bytes(4, "big")  # the number of the next overflow page
        (tmp_path / "log.db").write_bytes(data)

    return damage


async def test_valid_messages_around_a_damaged_page_are_delivered(open_log: OpenLog, damaged_page: Callable[[], None]) -> None:
    damaged_page()
    _, lane = await lane_of(await open_log())
    assert numbers((await lane.receive()).messages) == list(range(40))
    with pytest.raises(GapError, match="offset 40 is damaged") as gap:
        await lane.receive()
    assert gap.value.resume == (41,)
    await lane.seek(gap.value.resume)
    assert numbers((await lane.receive()).messages) == list(range(41, 60))


async def test_damage_in_one_partition_does_not_stop_the_retention_of_others(
    open_log: OpenLog, damaged_page: Callable[[], None]
) -> None:
    damaged_page()
    cluster = await open_log()
    await send_each(cluster, "other", 30)
    limited = await open_log(retention_bytes=10)
    for _ in range(3):
        try:
            await limited.store.trim()
        except ClusterError:
            continue
    assert (await cluster.bounds("other"))["0"].first == (29,)


async def test_a_gap_covers_all_damaged_rows_in_a_row(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    await send_each(cluster, "t", 10)
    change(tmp_path / "log.db", "UPDATE batch SET crc = 0 WHERE base BETWEEN 3 AND 7")
    _, lane = await lane_of(cluster)
    assert (await lane.receive()).next == (3,)
    with pytest.raises(GapError, match="offsets 3 to 7 are lost") as gap:
        await lane.receive()
    assert gap.value.resume == (8,)


@pytest.mark.parametrize(
    "column", ["base = 'x'", "count = NULL", "records = 5", "age_ms = 'late'", "bytes = 1", "sender = x'00'"]
)
async def test_a_column_of_another_type_is_a_gap(open_log: OpenLog, tmp_path: Path, column: str) -> None:
    cluster = await open_log()
    await send_each(cluster, "t", 3)
    change(
        tmp_path / "log.db",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'batch'",
        "PRAGMA writable_schema = RESET",
        f"UPDATE batch SET {column} WHERE base = 1",
    )
    _, lane = await lane_of(cluster)
    assert (await lane.receive()).next == (1,)
    with pytest.raises(GapError) as gap:
        await lane.receive()
    assert gap.value.resume == (2,)


async def test_a_flipped_bit_in_the_index_delivers_no_message_of_another_topic(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    for number, topic in enumerate(("first", "a", "b")):  # the id of a's row is 2, that of b's is 3
        await send_each(cluster, topic, 1, first=number)
    await cluster.close()
    data = (tmp_path / "log.db").read_bytes()
    # An entry of the index: sizes of its header, partition (3 bytes), base (0), row (1 byte), then partition and row.
    entry = b"\x04\x03\x08\x01" + partition_id(2, 0).to_bytes(3, "big") + b"\x02"
    assert data.count(entry) == 1
    (tmp_path / "log.db").write_bytes(data.replace(entry, entry[:-1] + b"\x03"))
    cluster = await open_log()
    _, lane = await lane_of(cluster, topic="a")
    with pytest.raises(GapError, match="offset 0 is damaged") as gap:
        await lane.receive()
    assert gap.value.resume == (1,)
    _, lane = await lane_of(cluster, "g2", "b")
    assert numbers((await lane.receive()).messages) == [2]


async def test_damaged_bounds_of_a_partition_are_rebuilt_and_offsets_are_not_reused(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await open_log()
    await send_each(cluster, "t", 5)
    change(tmp_path / "log.db", "UPDATE partition SET next = 2")
    outbound = await cluster.outbound(OutboundSpec("t"))
    receipt = await outbound.send(0, Share(Batch.of(numbered(5, 6))))
    assert receipt.positions == [(5,)]
    assert caplog.text.count("the bounds of partition 0") >= 1
    assert (await cluster.bounds("t"))["0"] == Bounds((0,), (6,), last=(5,))
    _, lane = await lane_of(cluster)
    assert numbers((await lane.receive()).messages) == list(range(6))


@pytest.mark.parametrize("damage", ["UPDATE position SET next = next + 2", "UPDATE position SET grp = 'h'"])
async def test_a_damaged_position_delivers_again_instead_of_skipping(
    open_log: OpenLog, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await open_log()
    await send_each(cluster, "t", 5)
    inbound, lane = await lane_of(cluster)
    await lane.seek((3,))
    await inbound.close()
    change(tmp_path / "log.db", damage)
    inbound = await cluster.inbound(InboundSpec(("t",), "g", Start.LATEST))  # type: ignore[assignment]
    lane = await anext(inbound.lanes())
    assert numbers((await lane.receive()).messages) == list(range(5))
    assert "committed offsets are damaged" in caplog.text


@pytest.mark.parametrize("damage", ["name = 'u'", "partitions = 2", "crc = 1"])
async def test_a_damaged_topic_is_unknown_and_never_made_again(open_log: OpenLog, tmp_path: Path, damage: str) -> None:
    cluster = await open_log()
    await cluster.create("other", 1)
    await send_each(cluster, "t", 5)
    change(tmp_path / "log.db", f"UPDATE topic SET {damage} WHERE name = 't'")
    for call in (cluster.bounds("t"), cluster.create("t", 1), cluster.inbound(InboundSpec(("t",), "g")), cluster.topics()):
        with pytest.raises(ClusterError, match="table of topics is damaged"):
            await call
    assert (await cluster.bounds("other"))["0"].next == (0,)


@pytest.mark.parametrize(
    ("column", "value", "tail"),
    [
        ("count", "'x'", 7),
        ("count", "1 << 40", 7),
        ("count", "5", 11),
        ("base", "x'00'", 6),
        ("bytes", "'x'", 9),
        ("bytes", "1.5", 9),
    ],
)
async def test_bounds_are_rebuilt_from_intact_batches(
    open_log: OpenLog, tmp_path: Path, column: str, value: str, tail: int
) -> None:
    """Values of a damaged batch behind them may be anything."""
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for first in (0, 3, 6):
        await outbound.send(0, Share(Batch.of(numbered(first, first + 3))))
    await cluster.close()
    path = tmp_path / "log.db"
    change(path, "UPDATE partition SET crc = ~crc", f"UPDATE batch SET {column} = {value} WHERE base = 6")
    path.with_name("log.db-mark").unlink()
    shutil.copytree(tmp_path, tmp_path / "repaired")
    repair(tmp_path / "repaired" / "log.db", no_report)
    for each in (path, tmp_path / "repaired" / "log.db"):
        cluster = await open_log(path=each)
        assert (await cluster.bounds("t"))["0"].next == (tail,)
        receipt = await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 1))))
        assert receipt.positions == [(tail,)]
        batch = await anext(read(cluster, "t", "0", (0,), (6,)))
        assert numbers(batch.messages) == list(range(6))
        await cluster.close()


async def test_bounds_are_rebuilt_behind_all_damaged_batches_and_not_where_a_group_was_moved(
    open_log: OpenLog, tmp_path: Path
) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for first in (0, 3, 6, 9):
        await outbound.send(0, Share(Batch.of(numbered(first, first + 3))))
    inbound, lane = await lane_of(cluster)
    await lane.seek((1 << 61,))
    await inbound.close()
    await cluster.close()
    path = tmp_path / "log.db"
    change(path, "UPDATE partition SET crc = ~crc", "UPDATE batch SET count = 1 << 40 WHERE base >= 6")
    path.with_name("log.db-mark").unlink()
    cluster = await open_log()
    assert (await cluster.bounds("t"))["0"].next == (10,)
    assert (await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 1))))).positions == [(10,)]


def test_a_row_to_which_a_damaged_index_entry_leads_is_not_taken_for_another(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    stored = write_log(path, topics={"t": 1}, sends=8)
    end = max(offset for *_, offset in stored) + 1
    connection = open_connection(path, "off", 1.0)
    ((rowid, base),) = connection.execute("SELECT rowid, max(base) FROM batch")
    assert _is_intact_batch(connection, rowid, partition_id(1, 0), base)
    assert not _is_intact_batch(connection, rowid, partition_id(1, 0), base - 3)
    assert not _is_intact_batch(connection, rowid, partition_id(1, 1), base)
    assert rebuilt_extent(connection, partition_id(1, 0)).next == end
    connection.close()
