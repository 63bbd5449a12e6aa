"""Polls for messages of other processes: damage in one topic neither stops nor misleads the readers of another."""

import asyncio
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter import reading
from mqbridge.errors import ClusterError, GapError, LocalProtocolError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store import database, tails
from mqbridge.log.store.connection import PAGE_BYTES, Connection
from mqbridge.log.store.mark import Mark
from mqbridge.message import Batch, Message, Share
from tests.conformance.arena import numbered, numbers
from tests.kit.conversation import until
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.log.store.log_files import change
from tests.patience import PATIENCE_S

LEAF = 0x0D
"""First byte of a page with rows of a table."""


def counted_reads(cluster: LogCluster, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the partition of each read of the store."""
    reads: list[int] = []
    real = cluster.store.rows

    async def rows(partition: int, *limits: Any) -> Any:
        reads.append(partition)
        return await real(partition, *limits)

    monkeypatch.setattr(cluster.store, "rows", rows)
    return reads


async def test_a_damaged_count_does_not_let_readers_read_without_end(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail of a partition is what its own row says, which has a checksum."""
    writer = await open_log()
    outbound = await outbound_of(writer)
    await outbound.send(0, Share(Batch.of(numbered(0, 3))))
    reader = await open_log()
    await outbound.send(0, Share(Batch.of(numbered(3, 6))))
    change(tmp_path / "log.db", "UPDATE batch SET count = count + 16384 WHERE base = 3")
    reads = counted_reads(reader, monkeypatch)
    _, lane = await lane_of(reader)
    assert numbers((await lane.receive()).messages) == [0, 1, 2]
    with pytest.raises(GapError) as gap:
        await lane.receive()
    assert gap.value.resume == (6,)
    await lane.seek((6,))
    waiting = asyncio.ensure_future(lane.receive())
    await until(lambda: len(reads) > 2)
    assert set(reader.store.tails.known.values()) == {6}
    count = len(reads)
    await outbound.send(0, Share(Batch.of(numbered(6, 7))))
    assert numbers((await asyncio.wait_for(waiting, PATIENCE_S)).messages) == [6]
    assert len(reads) <= count + 3


@pytest.mark.parametrize("value", ["'x'", "x'00'", "1 << 40", "-1"])
async def test_a_damaged_value_does_not_end_the_polls(open_log: OpenLog, tmp_path: Path, value: str) -> None:
    writer = await open_log()
    damaged, healthy = await outbound_of(writer, "damaged"), await outbound_of(writer, "healthy")
    await damaged.send(0, Share(Batch.of(numbered(0, 1))))
    reader = await open_log()
    _, lane = await lane_of(reader, topic="healthy")
    waiting = asyncio.ensure_future(lane.receive())
    await damaged.send(0, Share(Batch.of(numbered(1, 2))))
    change(tmp_path / "log.db", f"UPDATE batch SET count = {value} WHERE base = 1")
    await healthy.send(0, Share(Batch.of(numbered(0, 1))))
    assert numbers((await asyncio.wait_for(waiting, PATIENCE_S)).messages) == [0]


async def test_a_damaged_page_does_not_end_the_polls(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page has rows of another topic that were appended since the last poll."""
    monkeypatch.setattr(tails, "_newest_row", lambda *_: 0)
    (tmp_path / "copy").mkdir()
    path = tmp_path / "copy" / "log.db"
    writer = await open_log()
    await outbound_of(writer, "healthy")
    damaged = await outbound_of(writer, "damaged")
    for number in range(60):
        await damaged.send(0, Share(Batch.of([Message(b"%d damaged" % number + bytes(3000))])))
    await writer.close()
    data = bytearray((tmp_path / "log.db").read_bytes())
    pages = [at for at in range(0, len(data), PAGE_BYTES) if data[at] == LEAF and b" damaged" in data[at : at + PAGE_BYTES]]
    data[pages[len(pages) // 2]] = 0x55
    path.write_bytes(data)
    shutil.copy(tmp_path / "log.db-mark", path.with_name("log.db-mark"))
    reader, writer = await open_log(path=path), await open_log(path=path)
    _, lane = await lane_of(reader, topic="healthy")
    waiting = asyncio.ensure_future(lane.receive())
    await (await outbound_of(writer, "healthy")).send(0, Share(Batch.of(numbered(0, 1))))
    assert numbers((await asyncio.wait_for(waiting, PATIENCE_S)).messages) == [0]
    assert "so all partitions are polled" in caplog.text


async def test_messages_that_were_appended_while_nothing_was_read_are_not_polled(open_log: OpenLog) -> None:
    """Otherwise the first poll with a reader looks at all of them."""
    writer, reader = await open_log(), await open_log()
    outbound = await outbound_of(writer)
    await outbound.send(0, Share(Batch.of(numbered(0, 1))))
    ((newest,),) = await writer.store.read(lambda connection: connection.execute("SELECT max(rowid) FROM batch").fetchall())
    await until(lambda: reader.store.tails._last_row == newest)
    assert reader.store.tails.known == {}


async def test_a_poll_reads_only_the_new_rows(open_log: OpenLog) -> None:
    cluster = await open_log()
    await outbound_of(cluster)
    ((*_, plan),) = await cluster.store.read(
        lambda connection: connection.execute(f"EXPLAIN QUERY PLAN {tails.NEW_BATCHES}", (5,)).fetchall()
    )
    assert plan == "SEARCH batch USING INTEGER PRIMARY KEY (rowid>?)"


async def test_readers_learn_that_the_log_was_closed(open_log: OpenLog) -> None:
    cluster = await open_log()
    await outbound_of(cluster)
    _, lane = await lane_of(cluster)

    async def read() -> None:
        async for _ in reading.read(cluster, "t", "0", (0,)):
            pass

    waiting = [asyncio.ensure_future(lane.receive()), asyncio.ensure_future(read())]
    await until(lambda: lane.caught_up)
    await cluster.close()
    for each in waiting:
        with pytest.raises(LocalProtocolError, match="is not open"):
            await asyncio.wait_for(each, PATIENCE_S)


async def test_a_folder_that_was_moved_stops_the_log_with_the_reason(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log(path=tmp_path / "folder" / "log.db", poll="60s")
    outbound = await outbound_of(cluster)
    (tmp_path / "folder").rename(tmp_path / "moved")
    cluster.store._room._checked_at = float("-inf")
    with pytest.raises(ClusterError, match=r"has stopped: log\.db was deleted or moved"):
        await asyncio.wait_for(outbound.send(0, Share(Batch.of(numbered(0, 1)))), PATIENCE_S)


async def test_a_start_that_is_cancelled_keeps_the_mark_locked_while_a_connection_is_open(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await open_log()).close()
    order: list[str] = []
    closes, real_mark, real_open = Connection.close, Mark.close, database.open_connection
    opening, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def open_slowly(*arguments: Any, **options: Any) -> Connection:
        loop.call_soon_threadsafe(opening.set)
        release.wait(PATIENCE_S)
        return real_open(*arguments, **options)

    def close(connection: Connection) -> None:
        order.append("connection")
        closes(connection)

    def close_mark(mark: Mark) -> None:
        order.append("mark")
        real_mark(mark)

    monkeypatch.setattr(database, "open_connection", open_slowly)
    monkeypatch.setattr(Connection, "close", close)
    monkeypatch.setattr(Mark, "close", close_mark)
    opened = asyncio.ensure_future(open_log())
    await asyncio.wait_for(opening.wait(), PATIENCE_S)
    opened.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opened
    release.set()
    await until(lambda: "mark" in order)
    assert order[-3:] == ["connection", "connection", "mark"]
    assert sqlite3.connect(tmp_path / "log.db").execute("SELECT count(*) FROM topic").fetchone() == (0,)


async def test_a_poll_that_fails_is_repeated(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason: without polls, readers would wait for ever."""
    monkeypatch.setattr(database, "POLL_RETRY_S", 0.01)
    writer, reader = await open_log(), await open_log()
    outbound = await outbound_of(writer)
    _, lane = await lane_of(reader)
    waiting = asyncio.ensure_future(lane.receive())
    real, failures = tails.Tails.find_new, [MemoryError(), KeyError("x"), RuntimeError("y")]

    def find_new(self: tails.Tails, *arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(self, *arguments)

    monkeypatch.setattr(tails.Tails, "find_new", find_new)
    await outbound.send(0, Share(Batch.of(numbered(0, 1))))
    assert numbers((await asyncio.wait_for(waiting, PATIENCE_S)).messages) == [0]
    assert "cannot be polled" in caplog.text
