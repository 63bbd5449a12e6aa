"""Opening a log: acknowledged messages that are missing are said, and their offsets are never given again."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mqbridge.adapter import reading
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, GapError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store import jumps
from mqbridge.log.store import mark as marks
from mqbridge.log.store.backup import backup
from mqbridge.log.store.check import check
from mqbridge.log.store.clocks import now_ms
from mqbridge.log.store.export import export
from mqbridge.log.store.jumps import Jump
from mqbridge.log.store.mark import HEADER_BYTES, SLOT_BYTES, Mark, Marked
from mqbridge.log.store.schema import JUMP_LOST, JUMP_RESTORED, SCHEMA_VERSION, partition_id, read_meta, write_meta
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.wire.records import checksum, encode_record, encode_row
from mqbridge.message import Batch, Share
from tests.conformance.arena import numbered, numbers
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.log.store.log_files import no_report

CHILD = """
import asyncio, os, sys
from pathlib import Path
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share

async def main():
    cluster = LogCluster("log", LogSettings(path=Path(sys.argv[1])))
    await cluster.connect()
    await cluster.create("t", 2)
    outbound = await cluster.outbound(OutboundSpec("t"))
    for number in range(20):
        await outbound.send(0, Share(Batch.of([Message(b"%d" % number)])))
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return the path of a log to which a process had sent 20 messages, one by one, when it was killed."""
    subprocess.run([sys.executable, "-c", CHILD, str(tmp_path / "log.db")], check=False)
    return tmp_path / "log.db"


async def next_offset(cluster: LogCluster) -> int:
    (offset,) = (await cluster.bounds("t"))["0"].next
    return offset


async def test_a_kill_loses_nothing_and_says_nothing(killed: Path, open_log: OpenLog, caplog: pytest.LogCaptureFixture) -> None:
    cluster = await open_log()
    assert await next_offset(cluster) == 20
    assert caplog.text == ""


async def test_a_damaged_wal_is_said_and_its_offsets_are_not_given_again(
    killed: Path, open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    wal = killed.with_name("log.db-wal")
    data = bytearray(wal.read_bytes())
    data[len(data) // 2] ^= 1
    wal.write_bytes(data)
    killed.with_name("log.db-shm").unlink()
    cluster = await open_log()
    assert "misses its newest" in caplog.text
    assert await next_offset(cluster) == 20
    receipt = await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(20, 21))))
    assert receipt.positions == [(20,)]
    _, lane = await lane_of(cluster)
    received = numbers((await lane.receive()).messages)
    assert received == list(range(len(received)))
    with pytest.raises(GapError, match="lost with the log's WAL") as gap:
        await lane.receive()
    assert gap.value.resume == (20,)
    await lane.seek((20,))
    assert (await lane.receive()).first == (20,)


async def test_a_missing_wal_is_said_and_the_topic_is_not_made_at_the_old_offsets(
    killed: Path, open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The topic itself was only in the WAL."""
    for suffix in ("-wal", "-shm"):
        killed.with_name("log.db" + suffix).unlink()
    cluster = await open_log()
    assert "misses its newest 20 acknowledged messages, in 1 partitions" in caplog.text
    assert await cluster.describe("t") is None
    await cluster.create("t", 1)
    assert await next_offset(cluster) > 1 << 32
    assert await cluster.operations.newest("t", 1) == {"0": (0,)}
    with pytest.raises(GapError, match="may have been given after the backup"):
        await anext(reading.read(cluster, "t", "0", (19,), (20,)))
    caplog.clear()
    await cluster.close()
    await open_log()
    assert caplog.text == ""


async def test_an_older_copy_in_the_place_of_the_log_is_said(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of(numbered(0, 5))))
    await cluster.close()
    shutil.copy(tmp_path / "log.db", tmp_path / "old")
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(5, 9))))
    await cluster.close()
    shutil.copy(tmp_path / "old", tmp_path / "log.db")
    cluster = await open_log()
    assert "misses its newest 4 acknowledged messages" in caplog.text
    assert await next_offset(cluster) == 9


async def test_a_copy_without_its_mark_is_said(open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A copy of the main file of an open log may miss everything that is still in the WAL."""
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 5))))
    assert caplog.text == ""
    (tmp_path / "copy").mkdir()
    shutil.copy(tmp_path / "log.db", tmp_path / "copy")
    copy = LogCluster("log", LogSettings(path=tmp_path / "copy" / "log.db"))
    await copy.connect()
    await copy.close()
    assert "has no mark of its own" in caplog.text


async def make_backup(open_log: OpenLog, path: Path) -> None:
    """Store five messages, read by the group g, and turn the file into a backup without a mark."""
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 5))))
    inbound, lane = await lane_of(cluster)
    lane.acknowledge(await lane.receive())
    await inbound.close()

    await make_backup_of(cluster, path)


async def make_backup_of(cluster: LogCluster, path: Path) -> None:
    """Close the log and turn its file into a backup without a mark."""

    def mark_as_backup(connection: sqlite3.Connection) -> None:
        meta = read_meta(connection)
        assert meta is not None
        write_meta(connection, meta._replace(backup_ms=1))

    await cluster.store.write(mark_as_backup)
    await cluster.close()
    path.with_name("log.db-mark").unlink()


async def test_a_restored_file_opens_as_a_new_generation(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Readers that keep their position elsewhere come to a gap, the file's own groups go on, and no lag is invented."""
    await make_backup(open_log, tmp_path / "log.db")
    cluster = await open_log()
    assert "was restored from a backup" in caplog.text
    jump = await next_offset(cluster)
    assert jump > 1 << 32
    assert await cluster.operations.backlog("t", "g") == {"0": 0}
    receipt = await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(5, 7))))
    assert receipt.positions == [(jump,), (jump + 1,)]
    assert await cluster.operations.backlog("t", "g") == {"0": 2}
    _, lane = await lane_of(cluster)
    assert numbers((await lane.receive()).messages) == [5, 6]
    with pytest.raises(GapError, match="after the backup") as gap:
        await anext(reading.read(cluster, "t", "0", (8,), (9,)))
    assert gap.value.resume == (jump,)
    read = [batch async for batch in reading.read(cluster, "t", "0", (0,), (jump + 2,))]
    assert [(batch.first, batch.count) for batch in read] == [((0,), 5), ((jump,), 2)]
    units = await cluster.measure("t", "0", (0,), (jump + 2,))
    assert [(unit_range.first, unit_range.count) for unit_range in units] == [((0,), 5), ((jump,), 2)]
    await cluster.close()
    caplog.clear()
    cluster = await open_log()
    assert (await next_offset(cluster), caplog.text) == (jump + 2, "")


async def test_a_lane_goes_on_behind_the_jump_of_a_restored_file(open_log: OpenLog, tmp_path: Path) -> None:
    await make_backup(open_log, tmp_path / "log.db")
    cluster = await open_log()
    inbound = await cluster.inbound(InboundSpec(("t",), "new"))
    lane = await anext(inbound.lanes())
    assert numbers((await lane.receive()).messages) == list(range(5))
    assert await lane.confirm_caught_up()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(5, 6))))
    assert numbers((await lane.receive()).messages) == [5]


def test_a_mark_is_read_back_with_the_highest_offset_of_each_partition(tmp_path: Path) -> None:
    path, file_id = tmp_path / "mark", bytes(range(16))
    mark = Mark.open(path, 1.0)
    assert mark.is_alone
    mark.rewrite(file_id, {1: Marked(10)})
    mark.share()
    other = Mark.open(path, 1.0)
    assert not other.is_alone
    jump = Jump(3, 7, JUMP_RESTORED)
    mark.record([(1, 11), (2, 5)], lambda _: [])
    other.record([(1, 12), (3, 9)], lambda id_: [Jump(1, 2, JUMP_LOST), jump] if id_ == 3 else [])
    mark.record([(2, 6)], lambda _: [])
    assert mark.read(file_id) == {1: Marked(12, []), 2: Marked(6, []), 3: Marked(9, [jump])}
    mark.rewrite(file_id, mark.read(file_id) or {})
    assert (mark.read(file_id) or {})[3] == Marked(9, [jump])
    assert mark.read(bytes(16)) is None
    mark.close()
    other.close()


@pytest.mark.parametrize("damage", ["header", "slot", "zeros", "cut"])
def test_a_damaged_mark_invents_no_offsets(tmp_path: Path, damage: str) -> None:
    path, file_id = tmp_path / "mark", bytes(range(16))
    mark = Mark.open(path, 1.0)
    mark.rewrite(file_id, {1: Marked(10), 2: Marked(20)})
    mark.close()
    data = bytearray(path.read_bytes())
    match damage:
        case "header":
            data[3] ^= 1
        case "slot":
            data[HEADER_BYTES + 8] ^= 1
        case "zeros":
            data += bytes(SLOT_BYTES)
        case "cut":
            data = data[: HEADER_BYTES + SLOT_BYTES + 7]
    path.write_bytes(data)
    mark = Mark.open(path, 1.0)
    expected = {"header": None, "slot": {2: 20}, "zeros": {1: 10, 2: 20}, "cut": {1: 10}}
    found = mark.read(file_id)
    assert (None if found is None else {id_: each.next for id_, each in found.items()}) == expected[damage]
    mark.close()


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (0, [(0, 3, JUMP_LOST), (3, 7, JUMP_RESTORED), (7, 9, JUMP_LOST)]),
        (3, [(3, 7, JUMP_RESTORED), (7, 9, JUMP_LOST)]),
        (5, [(5, 7, JUMP_RESTORED), (7, 9, JUMP_LOST)]),
        (8, [(8, 9, JUMP_LOST)]),
        (9, []),
        (20, []),
    ],
)
def test_offsets_that_a_restore_left_out_are_not_missing(tail: int, expected: list[tuple[int, int, int]]) -> None:
    assert Marked(9, [Jump(3, 7, JUMP_RESTORED)]).missing_behind(tail) == expected


def test_a_mark_that_another_process_keeps_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Mark.open(tmp_path / "mark", 1.0)
    monkeypatch.setattr(marks, "LOCK_POLL_S", 0.001)
    with pytest.raises(ClusterError, match="another process has been opening the log for too long"):
        Mark.open(tmp_path / "mark", 0.01)
    first.close()


OLD_TABLES = """
CREATE TABLE topic (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE partition (
    id INTEGER PRIMARY KEY, topic INTEGER NOT NULL, number INTEGER NOT NULL,
    first INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, UNIQUE (topic, number)
);
CREATE TABLE batch (
    partition INTEGER NOT NULL, base INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
    appended_ms INTEGER NOT NULL, crc INTEGER NOT NULL, records BLOB NOT NULL
);
CREATE UNIQUE INDEX batch_place ON batch (partition, base);
CREATE TABLE position (
    grp TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (grp, partition)
) WITHOUT ROWID;
CREATE TABLE lease (
    grp TEXT NOT NULL, partition INTEGER NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (grp, partition)
) WITHOUT ROWID;
CREATE TABLE member (grp TEXT NOT NULL, topic INTEGER NOT NULL, id TEXT NOT NULL, PRIMARY KEY (grp, topic, id)) WITHOUT ROWID;
"""


def make_old_file(path: Path, version: int, *, damaged: bool = False, copy_to: Path | None = None) -> None:
    """Make a file of an earlier version: topic t has two partitions with offsets 10 to 39; the group g has read to 15 in one."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(f"PRAGMA journal_mode=WAL; {OLD_TABLES} PRAGMA user_version = {version}")
    connection.execute("INSERT INTO topic VALUES (7, 't')")
    for id_, number in ((3, 1), (4, 0)):
        connection.execute("INSERT INTO partition VALUES (?, 7, ?, 10, 40, 0)", (id_, number))
    for base in range(10, 40, 3):
        for id_ in (3, 4):
            records = encode_row(encode_record(message, None) for message in numbered(base, base + 3))
            crc = checksum(base, 3, records) + (damaged and base == 16)
            connection.execute(
                "INSERT INTO batch VALUES (?, ?, 3, ?, ?, ?, ?)", (id_, base, len(records), now_ms(), crc, records)
            )
    connection.execute("INSERT INTO position VALUES ('g', 3, 15)")
    if copy_to is not None:  # as a kill leaves it
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", copy_to)
    connection.close()


@pytest.mark.parametrize("version", [1, 2])
async def test_a_file_of_an_earlier_version_is_upgraded(
    open_log: OpenLog, tmp_path: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    make_old_file(tmp_path / "log.db", version)
    cluster = await open_log()
    for name in ("0", "1"):
        read = [message async for batch in reading.read(cluster, "t", name, (10,), (40,)) for message in batch.messages]
        assert numbers(read) == list(range(10, 40))
    assert await cluster.committed("t", "g") == {"1": (15,)}
    assert (await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(40, 41))))).positions == [(40,)]
    version_now = await cluster.store.read(lambda connection: connection.execute("PRAGMA user_version").fetchone())
    assert version_now == (SCHEMA_VERSION,)
    assert [record.levelname for record in caplog.records if record.levelno > 20] == []


async def test_an_upgrade_that_was_interrupted_goes_on(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_old_file(tmp_path / "log.db", 2, damaged=True)
    monkeypatch.setattr("mqbridge.log.store.upgrade.STEP_BYTES", 1)

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr("mqbridge.log.store.upgrade._finish", fail)
        with pytest.raises(ClusterError, match="interrupted"):
            await open_log()
    cluster = await open_log()
    first = [message async for batch in reading.read(cluster, "t", "0", (10,), (16,)) for message in batch.messages]
    assert numbers(first) == list(range(10, 16))
    with pytest.raises(GapError) as gap:
        await anext(reading.read(cluster, "t", "0", (16,), (40,)))
    assert gap.value.resume == (19,)
    assert partition_id(7, 0) in {row.id for row in await cluster.existing_partitions("t")}


@pytest.mark.parametrize("name", ["log.db-new", "log.db-newer"])
async def test_creating_a_log_leaves_others_of_similar_names_alone(open_log: OpenLog, tmp_path: Path, name: str) -> None:
    (tmp_path / "log.db-newer").write_bytes(b"another file")
    (tmp_path / name).write_bytes(b"another file")
    await open_log()
    assert (tmp_path / "log.db-newer").read_bytes() == b"another file"


async def test_a_loss_is_said_once(killed: Path, open_log: OpenLog, caplog: pytest.LogCaptureFixture) -> None:
    """Also that of a topic which is not known any more."""
    for suffix in ("-wal", "-shm"):
        killed.with_name("log.db" + suffix).unlink()
    for count in (1, 1, 1):
        await (await open_log()).close()
        assert caplog.text.count("misses its newest") == count


async def test_a_damaged_topic_is_no_loss_of_its_messages(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 5))))
    await cluster.close()
    connection = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    connection.execute("UPDATE topic SET crc = crc + 1")
    await (await open_log()).close()
    connection.execute("UPDATE topic SET crc = crc - 1")
    connection.close()
    _, lane = await lane_of(await open_log())
    assert numbers((await lane.receive()).messages) == list(range(5))
    assert "misses" not in caplog.text


async def test_what_is_lost_stays_a_gap_after_the_file_was_restored(open_log: OpenLog, tmp_path: Path) -> None:
    path = tmp_path / "copy" / "log.db"
    await lose_newest(open_log, path)
    cluster = await open_log(path=path)
    assert await next_offset(cluster) == 5
    await lane_of(cluster)
    await make_backup_of(cluster, path)
    cluster = await open_log(path=path)
    _, lane = await lane_of(cluster)
    assert numbers((await lane.receive()).messages) == [0, 1]
    with pytest.raises(GapError, match="offsets 2 to 4 were acknowledged and are lost with the log's WAL") as gap:
        await lane.receive()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(5, 6))))
    assert gap.value.resume is not None
    await lane.seek(gap.value.resume)
    assert numbers((await lane.receive()).messages) == [5]


async def lose_newest(open_log: OpenLog, path: Path) -> None:
    """Make a log with its mark at this path that misses the last three of its five messages, which were in the WAL."""
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 2))))
    await cluster.close()
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(2, 5))))
    copy_without_wal(cluster.store.config.path, path)
    await cluster.close()


def copy_without_wal(source: Path, destination: Path) -> None:
    """Copy an open log and its mark, but not its WAL, to a new folder: a log that has lost its WAL."""
    destination.parent.mkdir()
    for suffix in ("", "-mark"):
        shutil.copy(source.with_name(source.name + suffix), destination.with_name(destination.name + suffix))


async def acknowledged_after(open_log: OpenLog, first: int) -> list[int]:
    """Open the log, send two messages, and return their offsets."""
    cluster = await open_log()
    receipt = await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(first, first + 2))))
    await cluster.close()
    return [position[0] for position in receipt.positions]


@pytest.mark.parametrize("keeps_mark", [True, False], ids=["an-older-mark", "no-mark"])
async def test_a_backup_that_is_restored_twice_gives_no_offset_twice(
    open_log: OpenLog, tmp_path: Path, keeps_mark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark that lies beside the restored file may be that of a standby, older than the log that was lost."""
    path, given = tmp_path / "log.db", list[int]()
    given += await acknowledged_after(open_log, 0)
    shutil.copy(tmp_path / "log.db-mark", tmp_path / "old-mark")
    given += await acknowledged_after(open_log, 2)
    backup(path, tmp_path / "backup", no_report, is_forced=False)
    given += await acknowledged_after(open_log, 4)
    for life in range(3):
        monkeypatch.setattr(jumps.time, "time", lambda life=life: 1_800_000_000.0 + life)
        shutil.copy(tmp_path / "backup", path)
        path.with_name("log.db-mark").unlink()
        if keeps_mark:
            shutil.copy(tmp_path / "old-mark", tmp_path / "log.db-mark")
        given += await acknowledged_after(open_log, 6 + 2 * life)
    assert len(set(given)) == len(given)


async def test_a_mark_that_is_older_than_the_restored_file_is_said(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.db"
    await acknowledged_after(open_log, 0)
    shutil.copy(tmp_path / "log.db-mark", tmp_path / "old-mark")
    await acknowledged_after(open_log, 2)
    backup(path, tmp_path / "backup", no_report, is_forced=False)
    shutil.copy(tmp_path / "backup", path)
    shutil.copy(tmp_path / "old-mark", tmp_path / "log.db-mark")
    await open_log()
    assert "no mark tells what was appended after it" in caplog.text


async def test_topics_that_were_made_after_the_backup_get_other_offsets(open_log: OpenLog, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await acknowledged_after(open_log, 0)
    backup(path, tmp_path / "backup", no_report, is_forced=False)
    cluster = await open_log()
    await cluster.create("t", 2)
    grown = await cluster.outbound(OutboundSpec("t"))
    await grown.send(1, Share(Batch.of(numbered(0, 5))))
    await (await outbound_of(cluster, "later")).send(0, Share(Batch.of(numbered(0, 5))))
    await cluster.close()
    shutil.copy(tmp_path / "backup", path)
    path.with_name("log.db-mark").unlink()
    cluster = await open_log()
    await cluster.create("t", 2)
    await cluster.create("later", 1)
    for topic, partition in (("t", "1"), ("later", "0")):
        assert (await cluster.bounds(topic))[partition].next > (1 << 32,)
        with pytest.raises(GapError, match="may have been given after the backup"):
            await anext(reading.read(cluster, topic, partition, (5,), (6,)))
    _, lane = await lane_of(cluster, topic="later")
    await (await outbound_of(cluster, "later")).send(0, Share(Batch.of(numbered(7, 8))))
    assert numbers((await lane.receive()).messages) == [7]
    assert await cluster.operations.backlog("later", "g") == {"0": 1}


async def test_a_lost_topic_gives_its_id_to_no_other(open_log: OpenLog, tmp_path: Path) -> None:
    """Otherwise the other one would begin with the gap of the lost messages."""
    cluster = await open_log()
    await cluster.create("a", 1)
    await cluster.close()
    cluster = await open_log()
    await (await outbound_of(cluster, "b")).send(0, Share(Batch.of(numbered(0, 5))))
    copy_without_wal(tmp_path / "log.db", tmp_path / "copy" / "log.db")
    copy = await open_log(path=tmp_path / "copy" / "log.db")
    await (await outbound_of(copy, "c")).send(0, Share(Batch.of(numbered(0, 1))))
    _, lane = await lane_of(copy, topic="c")
    assert numbers((await lane.receive()).messages) == [0]


async def test_the_newest_messages_of_a_restored_log_are_found(open_log: OpenLog, tmp_path: Path) -> None:
    await make_backup(open_log, tmp_path / "log.db")
    cluster = await open_log()
    jump = await next_offset(cluster)
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(5, 7))))
    newest = [(await cluster.operations.newest("t", count))["0"] for count in (1, 2, 3, 7, 100)]
    assert newest == [(jump + 1,), (jump,), (4,), (0,), (0,)]


async def test_a_log_of_an_earlier_version_that_was_killed_is_upgraded(open_log: OpenLog, tmp_path: Path) -> None:
    """Its tables are only in its WAL."""
    (tmp_path / "old").mkdir()
    make_old_file(tmp_path / "old" / "log.db", 2, copy_to=tmp_path)
    cluster = await open_log()
    assert (await cluster.bounds("t"))["0"].next == (40,)


@pytest.mark.parametrize("appended", [0, 2])
async def test_a_second_restore_with_the_mark_counts_only_what_was_appended(
    open_log: OpenLog, tmp_path: Path, appended: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The offsets that the first one left out were never acknowledged."""
    path, kept = tmp_path / "log.db", tmp_path / "backup"
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 5))))
    inbound, lane = await lane_of(cluster)
    lane.acknowledge(await lane.receive())
    await inbound.close()
    await cluster.close()
    backup(path, kept, no_report, is_forced=False)
    shutil.copy(kept, path)
    if appended:
        await acknowledged_after(open_log, 5)
    else:
        await (await open_log()).close()
    shutil.copy(kept, path)
    checked = check(path, no_report)
    assert checked.lost_newest == appended
    export(path, tmp_path / "exported", [], no_report, is_forced=False)
    caplog.clear()
    cluster = await open_log()
    assert ("misses its newest 2 acknowledged messages" in caplog.text) == bool(appended)
    assert bool([record for record in caplog.records if record.levelname == "ERROR"]) == bool(appended)
    assert await cluster.operations.backlog("t", "g") == {"0": appended}
    assert (await cluster.bounds("t"))["0"].message_count == 5
    tail = (await cluster.bounds("t"))["0"].next
    committed = (await cluster.committed("t", "g"))["0"]
    assert (5,) < committed <= tail  # behind what was left out
    assert (committed == tail) == (not appended)  # but not behind a loss
    assert sum(each.count for each in await cluster.measure("t", "0", (0,), tail)) == 5 + appended
    assert await cluster.operations.warnings("t", "g") == []


async def test_a_power_failure_after_a_restore_loses_nothing(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark is on the disk, but with `synchronous: normal`, the WAL with the new generation may not be."""
    path = tmp_path / "log.db"
    await acknowledged_after(open_log, 0)
    backup(path, tmp_path / "backup", no_report, is_forced=False)
    shutil.copy(tmp_path / "backup", path)
    cluster = await open_log(synchronous="normal")
    (tmp_path / "after").mkdir()
    shutil.copy(tmp_path / "log.db-mark", tmp_path / "after")
    shutil.copy(tmp_path / "backup", tmp_path / "after" / "log.db")
    await cluster.close()
    caplog.clear()
    cluster = await open_log(path=tmp_path / "after" / "log.db")
    assert "ERROR" not in {record.levelname for record in caplog.records}
    batches = [batch async for batch in reading.read(cluster, "t", "0", (0,), (await cluster.bounds("t"))["0"].next)]
    assert [number for batch in batches for number in numbers(batch.messages)] == [0, 1]


async def test_a_topic_of_a_restored_log_that_is_lost_with_the_wal_counts_its_messages(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark also knows the offsets that a new partition of a later generation left out."""
    path = tmp_path / "log.db"
    await acknowledged_after(open_log, 0)
    backup(path, tmp_path / "backup", no_report, is_forced=False)
    shutil.copy(tmp_path / "backup", path)
    await (await open_log()).close()
    cluster = await open_log()
    await (await outbound_of(cluster, "later")).send(0, Share(Batch.of(numbered(0, 5))))
    copy_without_wal(tmp_path / "log.db", tmp_path / "copy" / "log.db")
    copy = await open_log(path=tmp_path / "copy" / "log.db")
    assert "misses its newest 5 acknowledged messages, in 1 partitions" in caplog.text
    await copy.close()
    summary = export(tmp_path / "copy" / "log.db", tmp_path / "exported", [], no_report, is_forced=False)
    assert {each.topic for each in summary.partitions} == {"t"}


async def test_groups_without_messages_before_them_are_not_late(open_log: OpenLog, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await make_backup(open_log, path)
    cluster = await open_log()
    await cluster.create("new", 1)
    for topic in ("t", "new"):
        inbound = await cluster.inbound(InboundSpec((topic,), f"group of {topic}"))
        lane = await anext(inbound.lanes())
        if topic == "t":
            lane.acknowledge(await lane.receive())
        await inbound.close()
        assert await cluster.operations.backlog(topic, f"group of {topic}") == {"0": 0}
        assert await cluster.operations.warnings(topic, f"group of {topic}") == []


def test_a_clock_far_in_the_future_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets stay below 2**53, which programs that read JSON can represent."""
    for year in (1970, 2026, 2106, 2500, 9999):
        monkeypatch.setattr(jumps.time, "time", lambda year=year: (year - 1970) * 365.25 * 86400)
        assert 1 << 32 <= jumps.unused_offset(0) < 1 << 53
        assert jumps.unused_offset(0) != jumps.unused_offset(0)
