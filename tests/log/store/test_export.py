"""An export has every message that lies in undamaged pages, with its offset, whatever else is damaged."""

import asyncio
import logging
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, ConfigError
from mqbridge.log.store.check import check
from mqbridge.log.store.connection import PAGE_BYTES
from mqbridge.log.store.export import export
from mqbridge.log.store.extents import extent_of, write_extents
from mqbridge.log.store.opening import open_log
from mqbridge.log.store.pages import Cell, PageFile, page_bytes_of
from mqbridge.log.store.salvage import _BATCH
from mqbridge.log.store.schema import BatchStamp, batch_crc
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from tests.log.store.log_files import (
    HEADER_BYTES,
    Stored,
    change,
    flip,
    hide_batches,
    no_report,
    open_cluster,
    read_log,
    write_log,
)

TABLE_LEAF = 0x0D
"""First byte of a page with rows of a table."""


def pages_of_batches(path: Path) -> dict[tuple[int, int], set[int]]:
    """Return the pages that contain each batch, by the id of its partition and its base offset."""
    fd = os.open(path, os.O_RDONLY)
    file = PageFile(fd, page_bytes_of(fd) or 0)
    pages: dict[tuple[int, int], set[int]] = {}
    for number in range(1, file.count + 1):
        for cell in file.cells(number):
            values = file.values(cell)
            if values is not None and len(values) == _BATCH:
                pages[values[0], values[1]] = {number, *overflow_pages(file, cell)}  # type: ignore[index]
    os.close(fd)
    return pages


def overflow_pages(file: PageFile, cell: Cell) -> list[int]:
    numbers, missing, number = [], cell.size - len(cell.local), cell.overflow
    while missing > 0:
        numbers.append(number)
        number = int.from_bytes(file.page(number)[:4], "big")
        missing -= file.page_bytes - 4
    return numbers


def exported(path: Path, new: Path, **options: list[str]) -> Stored:
    export(path, new, options.get("only", []), no_report, is_forced=True)
    return read_log(new)


@pytest.mark.parametrize("seed", range(12))
def test_everything_in_undamaged_pages_is_exported(tmp_path: Path, seed: int) -> None:
    path, chance = tmp_path / "log.db", random.Random(seed)
    stored = write_log(path, seed=seed, sends=100, size=chance.choice([100, 3000]))
    pages = pages_of_batches(path)
    count = path.stat().st_size // PAGE_BYTES
    damaged = {chance.randrange(1, count + 1) for _ in range(chance.randrange(1, 12))}
    for page in damaged:
        begin, end = (page - 1) * PAGE_BYTES + (HEADER_BYTES if page == 1 else 0), page * PAGE_BYTES
        for _ in range(chance.choice([1, 3, 50])):
            at = chance.randrange(begin, end)
            flip(path, at, min(chance.randrange(1, 40), end - at))
    found = exported(path, tmp_path / "new.db")
    lost_names = {
        name: topic for topic, name in {"orders": "topic-1", "events": "topic-2"}.items() if any(key[0] == name for key in found)
    }
    found = {(lost_names.get(topic, topic), *rest): payload for (topic, *rest), payload in found.items()}
    assert found.items() <= stored.items()
    ids = {("orders", number): 1 << 20 | number for number in range(3)} | {("events", 0): 2 << 20}
    bases = sorted(pages)
    for key in stored.keys() - found.keys():
        id_ = ids[key[:2]]
        base = max(base for other, base in bases if other == id_ and base <= key[2])
        assert pages[id_, base] & damaged, key


def test_a_healthy_log_is_exported_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    stored = write_log(path, topics={"orders": 2, "empty": 3})
    before = path.read_bytes()
    summary = export(path, tmp_path / "new.db", [], no_report, is_forced=False)
    assert (summary.messages, summary.missing, summary.damaged, summary.notes) == (len(stored), 0, 0, [])
    assert path.read_bytes() == before
    assert check(tmp_path / "new.db", no_report).is_ok
    assert read_log(tmp_path / "new.db") == stored
    with pytest.raises(ConfigError, match="exists"):
        export(path, tmp_path / "new.db", [], no_report, is_forced=False)

    async def look() -> None:
        cluster = await open_cluster(tmp_path / "new.db")
        assert await cluster.topics() == ["empty", "orders"]
        assert len(await cluster.committed("orders", "g")) == 2
        assert len(await cluster.bounds("empty")) == 3
        await cluster.close()

    asyncio.run(look())


def test_only_the_named_topics_are_exported(tmp_path: Path) -> None:
    stored = write_log(tmp_path / "log.db")
    found = exported(tmp_path / "log.db", tmp_path / "new.db", only=["events"])
    assert found == {key: payload for key, payload in stored.items() if key[0] == "events"}
    with pytest.raises(ConfigError, match=r"no topic nosuch.*events, orders"):
        export(tmp_path / "log.db", tmp_path / "other.db", ["nosuch"], no_report, is_forced=False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.db", "log.db-mark", "new.db", "new.db-mark"]


def test_rows_that_the_index_hides_are_exported(tmp_path: Path) -> None:
    stored = write_log(tmp_path / "log.db")
    hide_batches(tmp_path / "log.db", "base < 100")
    assert exported(tmp_path / "log.db", tmp_path / "new.db") == stored


@pytest.mark.parametrize("kept", [0.9, 0.5])
def test_a_truncated_file_gives_what_is_left(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "log.db"
    stored = write_log(path)
    pages = pages_of_batches(path)
    size = int(path.stat().st_size * kept) // PAGE_BYTES * PAGE_BYTES
    os.truncate(path, size)
    found = exported(path, tmp_path / "new.db")
    whole = [key for key, used in pages.items() if max(used) <= size // PAGE_BYTES]
    assert len(whole) > 10
    assert len(found) >= len(whole)
    assert found.items() <= stored.items()


def test_a_file_without_its_header_gives_its_messages(tmp_path: Path) -> None:
    stored = write_log(tmp_path / "log.db")
    flip(tmp_path / "log.db", 0, 100)
    assert exported(tmp_path / "log.db", tmp_path / "new.db") == stored


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"something else" * 5000)
    with pytest.raises(ClusterError, match="nothing in the file looks like a log"):
        export(tmp_path / "log.db", tmp_path / "new.db", [], no_report, is_forced=False)
    with pytest.raises(ClusterError, match="there is no log"):
        export(tmp_path / "missing.db", tmp_path / "new.db", [], no_report, is_forced=False)
    assert [each.name for each in tmp_path.iterdir()] == ["log.db"]


def test_damaged_names_and_bounds_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    stored = write_log(path)
    change(
        path, "UPDATE topic SET name = 'other' WHERE id = 1", "UPDATE partition SET next = 5", "UPDATE meta SET generation = 9"
    )
    summary = export(path, tmp_path / "new.db", [], no_report, is_forced=False)
    assert any("topic-1" in note for note in summary.notes)
    assert any("id of the log is damaged" in note for note in summary.notes)
    renamed = {("topic-1" if topic == "orders" else topic, *rest): payload for (topic, *rest), payload in stored.items()}
    assert read_log(tmp_path / "new.db") == renamed


def test_messages_that_the_retention_dropped_do_not_come_back(tmp_path: Path) -> None:
    """The pages of dropped batches still have them."""

    async def fill() -> None:
        cluster = await open_cluster(tmp_path / "log.db", retention_bytes=200_000)
        await cluster.create("t", 1)
        outbound = await cluster.outbound(OutboundSpec("t"))
        for number in range(200):
            await outbound.send(0, Share(Batch.of([Message(b"%d" % number + bytes(5000))])))
        await cluster.close()

    asyncio.run(fill())
    kept = read_log(tmp_path / "log.db")
    assert 20 < len(kept) < 60
    change(tmp_path / "log.db", "DELETE FROM batch WHERE base % 3 = 1")
    stored = {key: payload for key, payload in kept.items() if key[2] % 3 != 1}
    assert exported(tmp_path / "log.db", tmp_path / "new.db") == stored


def test_an_export_in_the_place_of_its_log_continues_with_its_offsets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.db"
    stored = write_log(path, topics={"t": 1})
    last = max(offset for *_, offset in stored)
    change(path, "DELETE FROM batch WHERE base = (SELECT max(base) FROM batch)")
    export(path, tmp_path / "new.db", [], no_report, is_forced=False)
    (tmp_path / "new.db").rename(path)

    async def append() -> int:
        cluster = await open_cluster(path)
        outbound = await cluster.outbound(OutboundSpec("t"))
        receipt = await outbound.send(0, Share(Batch.of([Message(b"new")])))
        await cluster.close()
        return int(receipt.positions[0][0])

    assert asyncio.run(append()) > last + (1 << 32)
    assert [
        record for record in caplog.records if record.levelno >= logging.WARNING
    ] == []  # the mark tells that nothing is missing


def test_a_log_in_use_is_exported_with_the_messages_in_its_wal(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = await open_cluster(tmp_path / "log.db")
        await cluster.create("t", 1)
        outbound = await cluster.outbound(OutboundSpec("t"))
        await outbound.send(0, Share(Batch.of([Message(b"a")])))
        assert (tmp_path / "log.db-wal").stat().st_size
        summary = await asyncio.to_thread(export, tmp_path / "log.db", tmp_path / "new.db", [], no_report, is_forced=False)
        assert summary.messages == 1
        await outbound.send(0, Share(Batch.of([Message(b"b")])))
        await cluster.close()

    asyncio.run(run())
    assert len(read_log(tmp_path / "log.db")) == 2
    assert len(read_log(tmp_path / "new.db")) == 1


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "log.db", sends=20)
    connect = sqlite3.connect

    def connect_limited(path: object, **options: object) -> sqlite3.Connection:
        connection = connect(path, **options)  # type: ignore[call-overload]
        if "-new" in str(path):
            connection.execute("PRAGMA max_page_count=5").fetchall()
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_limited)
    with pytest.raises(ClusterError, match=r"the disk of .*new\.db has too little room"):
        export(tmp_path / "log.db", tmp_path / "new.db", [], no_report, is_forced=False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.db", "log.db-mark"]


def test_files_of_other_versions_and_programs_are_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "later.db", sends=3)
    change(tmp_path / "later.db", "PRAGMA user_version=99")
    change(tmp_path / "old.db", "CREATE TABLE batch (x)", "PRAGMA user_version=2")
    change(tmp_path / "other.db", "CREATE TABLE batch (x)", "PRAGMA user_version=7")
    for name, text in (("later", "use a later version"), ("old", "open it once with this version"), ("other", "another program")):
        with pytest.raises(ClusterError, match=text):
            export(tmp_path / f"{name}.db", tmp_path / "new.db", [], no_report, is_forced=False)
    assert not (tmp_path / "new.db").exists()


def test_units_of_other_systems_keep_their_stamps(tmp_path: Path) -> None:
    write_log(tmp_path / "log.db", topics={"t": 1}, sends=3)
    partition, stamp = 1 << 20, BatchStamp(5, 6, "pulsar", "sender-\u00e9", 1 << 40)
    query = "SELECT base, count, bytes, appended_ms, age_ms, format, sender, sequence, crc, records FROM batch ORDER BY base"

    def rows_of(path: Path, *, adds: bool = False) -> list[Any]:
        opened = open_log(LogSettings(path=path))
        if adds:
            extent = extent_of(opened.connection, partition)
            row = (partition, extent.next, 7, 5, *stamp, batch_crc(partition, extent.next, 7, stamp, b"bytes"), b"bytes")
            opened.connection.execute(f"INSERT INTO batch VALUES ({', '.join('?' * 11)})", row)
            extent = extent._replace(next=extent.next + 7, bytes=extent.bytes + 5)
            write_extents(opened.connection, [(partition, extent)])
        found = opened.connection.execute(query).fetchall()
        opened.connection.end_job()
        opened.close()
        return found

    rows = rows_of(tmp_path / "log.db", adds=True)
    assert rows[-1][3:8] == stamp
    assert check(tmp_path / "log.db", no_report).is_ok
    export(tmp_path / "log.db", tmp_path / "new.db", [], no_report, is_forced=False)
    assert check(tmp_path / "new.db", no_report).is_ok
    assert rows_of(tmp_path / "new.db") == rows


def test_a_batch_with_the_row_id_of_another_is_exported(tmp_path: Path) -> None:
    """No checksum covers row ids."""
    path = tmp_path / "log.db"
    stored = write_log(path, topics={"t": 1}, sends=12, size=100)
    data, changed = bytearray(path.read_bytes()), 0
    for at in range(0, len(data), PAGE_BYTES):
        if data[at] != TABLE_LEAF:
            continue
        for index in range(int.from_bytes(data[at + 3 : at + 5], "big")):
            cell = at + int.from_bytes(data[at + 8 + 2 * index : at + 10 + 2 * index], "big")
            rowid = cell + (2 if data[cell] & 0x80 else 1)
            if data[rowid] == 5 and data[rowid + 1] in {12, 13, 14}:  # the header of a row of eleven values
                data[rowid] = 6
                changed += 1
    assert changed == 1
    path.write_bytes(data)
    assert exported(path, tmp_path / "new.db") == stored
