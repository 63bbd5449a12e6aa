"""A backup is the log as it was at one moment, while other processes write, and opens as a new generation."""

import asyncio
import contextlib
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqbridge.errors import ClusterError, ConfigError
from mqbridge.log.store import new_file
from mqbridge.log.store.backup import backup
from mqbridge.log.store.check import check
from mqbridge.log.store.export import export
from mqbridge.log.store.opening import open_log
from mqbridge.log.store.settings import LogSettings
from tests.log.store.log_files import change, no_report, open_cluster, read_log, write_log
from tests.log.store.test_append_kill import WRITER
from tests.patience import SERVER_PATIENCE_S

BACKUPS = 25


def last_acknowledged(receipts: Path) -> int:
    """Return the offset of the last message that the writer has a receipt for, -1 without any."""
    lines = receipts.read_bytes().rpartition(b"\n")[0].splitlines()
    return max((int(line.split()[2]) for line in lines), default=-1)


def wait_acknowledged(receipts: Path, offset: int) -> int:
    """Wait until the writer has a receipt for this offset or a later one; return the last offset."""
    deadline = time.monotonic() + SERVER_PATIENCE_S
    while (last := last_acknowledged(receipts)) < offset:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return last


@contextlib.contextmanager
def writing(path: Path, receipts: Path, *, retention_bytes: int | None = None) -> Iterator[None]:
    """Let a child process append at full speed, as a context."""
    program = WRITER.replace('synchronous="normal"', f'synchronous="normal", retention_bytes={retention_bytes}')
    with receipts.open("wb") as output:
        child = subprocess.Popen([sys.executable, "-c", program, str(path), "0"], stdout=output)
    try:
        wait_acknowledged(receipts, 0)
        yield
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()


def test_backups_during_appends_have_everything_acknowledged_before(tmp_path: Path) -> None:
    path, receipts = tmp_path / "log.db", tmp_path / "receipts"
    copies: list[tuple[Path, int]] = []
    messages = 0
    with writing(path, receipts):
        for number in range(BACKUPS):
            acknowledged = wait_acknowledged(receipts, messages)
            copy = tmp_path / f"backup-{number}.db"
            messages = backup(path, copy, no_report, is_forced=False).messages
            assert messages > acknowledged
            copies.append((copy, messages))
        wait_acknowledged(receipts, messages)
    for number, (copy, messages) in enumerate(copies):
        result = check(copy, no_report)
        assert result.is_ok, result
        assert [(each.first, each.next, each.messages) for each in result.partitions] == [(0, messages, messages)]
        if number % 6 == 0:
            assert [int(payload[:12]) for payload in read_log(copy).values()] == list(range(messages))
        else:
            open_log(LogSettings(path=copy)).close()
        copy.unlink()


@pytest.mark.parametrize("retention_bytes", [None, 1_000_000])
def test_messages_that_come_and_go_during_a_check_or_an_export_are_no_problem(
    tmp_path: Path, retention_bytes: int | None
) -> None:
    path, receipts = tmp_path / "log.db", tmp_path / "receipts"
    with writing(path, receipts, retention_bytes=retention_bytes):
        for number in range(6):
            result = check(path, no_report)
            assert result.is_ok, result
            summary = export(path, tmp_path / f"new-{number}.db", [], no_report, is_forced=False)
            assert (summary.missing, summary.damaged, summary.notes) == (0, 0, [])
            assert summary.messages == summary.partitions[0].next - summary.partitions[0].first
            assert check(tmp_path / f"new-{number}.db", no_report).is_ok
            wait_acknowledged(receipts, summary.partitions[0].next)
    assert (summary.partitions[0].first > 0) == (retention_bytes is not None)


def test_a_restored_backup_tells_what_is_missing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, copy = tmp_path / "log.db", tmp_path / "backup.db"
    first = write_log(path, topics={"t": 1}, sends=5)
    backup(path, copy, no_report, is_forced=False)
    both = write_log(path, topics={"t": 1}, sends=3, seed=2)
    copy.rename(path)
    assert not check(path, no_report).is_ok
    assert read_log(path) == first
    assert f"misses its newest {len(both)} acknowledged messages" in caplog.text
    third = write_log(path, topics={"t": 1}, sends=1, seed=3)
    assert min(offset for *_, offset in third) > len(first) + len(both)
    assert check(path, no_report).is_ok


def test_a_restored_backup_without_a_mark_leaves_offsets_out(tmp_path: Path) -> None:
    path, copy = tmp_path / "log.db", tmp_path / "elsewhere.db"
    first = write_log(path, topics={"t": 1}, sends=5)
    backup(path, copy, no_report, is_forced=False)
    result = check(copy, no_report)
    assert (result.is_ok, len(result.notes)) == (True, 1)
    second = write_log(copy, topics={"t": 1}, sends=1, seed=2)
    assert min(offset for *_, offset in second) >= len(first) + (1 << 32)
    assert read_log(copy) == first | second
    result = check(copy, no_report)
    assert (result.is_ok, result.partitions[0].lost) == (True, [])


def test_a_backup_beside_a_wal_of_another_file_is_refused(tmp_path: Path) -> None:
    """SQLite would move the pages of that WAL into the backup."""
    path, copy = tmp_path / "log.db", tmp_path / "backup.db"
    stored = write_log(path, topics={"t": 1}, sends=5)
    backup(path, copy, no_report, is_forced=False)
    with writing(path, tmp_path / "receipts"):
        pass
    assert (tmp_path / "log.db-wal").stat().st_size
    copy.rename(path)
    with pytest.raises(ClusterError, match=r"is a backup, but log\.db-wal beside it belongs"):
        open_log(LogSettings(path=path))
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"log.db{suffix}").rename(tmp_path / f"old{suffix}")
    assert read_log(path) == stored


def test_a_restored_log_that_was_killed_while_open_is_not_refused(tmp_path: Path) -> None:
    """Its file says that it is a backup until the WAL is moved into it."""
    path, copy = tmp_path / "log.db", tmp_path / "backup.db"
    write_log(path, topics={"t": 1}, sends=5)
    backup(path, copy, no_report, is_forced=False)
    for each in ("log.db", "log.db-mark"):
        (tmp_path / each).unlink()
    copy.rename(path)
    with writing(path, tmp_path / "receipts"):
        pass
    assert (tmp_path / "log.db-wal").stat().st_size
    opened = open_log(LogSettings(path=path))
    opened.close()
    assert check(path, no_report).is_ok


def test_an_earlier_backup_is_replaced_only_on_request(tmp_path: Path) -> None:
    write_log(tmp_path / "log.db", sends=3)
    backup(tmp_path / "log.db", tmp_path / "b.db", no_report, is_forced=False)
    before = (tmp_path / "b.db").stat().st_ino
    with pytest.raises(ConfigError, match="--force"):
        backup(tmp_path / "log.db", tmp_path / "b.db", no_report, is_forced=False)
    backup(tmp_path / "log.db", tmp_path / "b.db", no_report, is_forced=True)
    assert (tmp_path / "b.db").stat().st_ino != before


def test_files_of_the_log_itself_and_open_logs_are_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    write_log(path, sends=3)
    (tmp_path / "link.db").symlink_to(path)
    for name in ("log.db", "link.db", "log.db-wal", "log.db-mark"):
        with pytest.raises(ConfigError, match="belongs to the log"):
            backup(path, tmp_path / name, no_report, is_forced=True)
    with pytest.raises(ConfigError, match=r"the folder .*nosuch does not exist"):
        backup(path, tmp_path / "nosuch" / "b.db", no_report, is_forced=True)

    async def replace_open() -> None:
        cluster = await open_cluster(tmp_path / "other.db")
        with pytest.raises(ConfigError, match="is a log that is open"):
            backup(path, tmp_path / "other.db", no_report, is_forced=True)
        await cluster.close()

    asyncio.run(replace_open())


def test_the_source_is_neither_created_nor_upgraded(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="there is no log"):
        backup(tmp_path / "missing.db", tmp_path / "b.db", no_report, is_forced=False)
    assert not list(tmp_path.iterdir())
    old = tmp_path / "old.db"
    change(old, *(f"CREATE TABLE {name} (x)" for name in ("topic", "partition", "batch", "position", "lease", "member")))
    change(old, "PRAGMA user_version=2")
    before = old.read_bytes()
    with pytest.raises(ClusterError, match="open it once with this version"):
        backup(old, tmp_path / "b.db", no_report, is_forced=False)
    (tmp_path / "foreign.db").write_bytes(b"")
    with pytest.raises(ClusterError, match="another program"):
        backup(tmp_path / "foreign.db", tmp_path / "b.db", no_report, is_forced=False)
    assert old.read_bytes() == before
    assert not (tmp_path / "b.db").exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path / "log.db", sends=20)
    size = (tmp_path / "log.db").stat().st_size
    connect = sqlite3.connect

    def connect_limited(path: Path, **options: object) -> sqlite3.Connection:
        connection = connect(path, **options)
        if "-new" in str(path):
            connection.execute("PRAGMA max_page_count=5").fetchall()
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_limited)
    with pytest.raises(ClusterError, match=rf"too little room: {size} bytes are needed"):
        backup(tmp_path / "log.db", tmp_path / "b.db", no_report, is_forced=False)
    monkeypatch.undo()
    monkeypatch.setattr(new_file, "free_bytes", lambda _: 1000)
    with pytest.raises(ClusterError, match=rf"too little room: {size} bytes are needed, 1000 were free"):
        backup(tmp_path / "log.db", tmp_path / "b.db", no_report, is_forced=False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.db", "log.db-mark"]


def test_a_stopped_backup_leaves_nothing_behind(tmp_path: Path) -> None:
    write_log(tmp_path / "log.db", sends=100)

    def stop(text: str) -> None:
        assert text.startswith("copied")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(tmp_path / "log.db", tmp_path / "b.db", stop, is_forced=False)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.db", "log.db-mark"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everything")
def test_a_log_that_cannot_be_written_is_backed_up(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    write_log(folder / "log.db", sends=3)
    folder.chmod(0o500)
    try:
        backup(folder / "log.db", tmp_path / "b.db", no_report, is_forced=False)
    finally:
        folder.chmod(0o700)
    assert check(tmp_path / "b.db", no_report).is_ok


def test_the_age_clock_and_the_id_are_those_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    write_log(tmp_path / "log.db", sends=3)
    backup(tmp_path / "log.db", tmp_path / "b.db", no_report, is_forced=False)
    log = open_log(LogSettings(path=tmp_path / "log.db"))
    restored = open_log(LogSettings(path=tmp_path / "b.db"))
    query = "SELECT file_id, generation, backup_ms FROM meta"
    (log_id, log_generation, _), (id_, generation, backup_ms) = (
        each.connection.execute(query).fetchone() for each in (log, restored)
    )
    assert (id_, generation, backup_ms) == (log_id, log_generation + 1, None)
    for each in (log, restored):
        each.connection.end_job()
        each.close()
