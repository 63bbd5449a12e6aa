"""The files under a log: what cannot be safe is refused, and what changes under an open log stops it with the reason."""

import asyncio
import logging
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from pydantic import ValidationError

from mqbridge.adapter.reading import read
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store import file_guard
from mqbridge.log.store.file_guard import MARK_SUFFIX, SHM_SUFFIX, WAL_SUFFIX, beside
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Share
from tests.conformance.arena import numbered
from tests.kit.conversation import until
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.patience import PATIENCE_S


def unlink(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_name("moved"))


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").replace(path)


def link(path: Path) -> None:
    os.link(path, path.with_name("link"))


@pytest.mark.parametrize("how", [unlink, move, replace, link])
@pytest.mark.parametrize("suffix", ["", WAL_SUFFIX, SHM_SUFFIX, MARK_SUFFIX])
async def test_a_change_under_an_open_log_stops_it(
    open_log: OpenLog, tmp_path: Path, how: object, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of(numbered(0, 3))))
    _, lane = await lane_of(cluster)
    assert (await lane.receive()).count == 3
    waiting = asyncio.ensure_future(lane.receive())
    how(beside(tmp_path / "log.db", suffix))  # type: ignore[operator]
    with pytest.raises(ClusterError, match=r"has stopped: log\.db") as stopped:  # a poll notices it
        await asyncio.wait_for(waiting, PATIENCE_S)
    assert stopped.value.failure is Failure.FATAL
    with pytest.raises(ClusterError, match="has stopped"):
        await outbound.send(0, Share(Batch.of(numbered(3, 4))))
    assert caplog.text.count("has stopped") == 1


async def test_nothing_is_acknowledged_after_the_file_was_deleted(open_log: OpenLog, tmp_path: Path) -> None:
    """Not even before the next poll, if the last check of the files is some milliseconds old."""
    cluster = await open_log(poll="60s")
    outbound = await outbound_of(cluster)
    (tmp_path / "log.db").unlink()
    await asyncio.sleep(0.02)
    with pytest.raises(ClusterError, match="was deleted or moved"):
        await outbound.send(0, Share(Batch.of(numbered(0, 1))))


async def test_a_file_with_two_names_is_refused(open_log: OpenLog, tmp_path: Path) -> None:
    await (await open_log()).close()
    link(tmp_path / "log.db")
    for name in ("log.db", "link"):
        with pytest.raises(ClusterError, match="2 names"):
            await LogCluster("log", LogSettings(path=tmp_path / name)).connect()


async def test_a_file_that_is_a_mount_point_is_refused(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await (await open_log()).close()
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 98:0 /log.db {tmp_path / 'log.db'} rw,noatime master:1 - ext4 /dev/root rw\n")
    monkeypatch.setattr(file_guard, "MOUNT_TABLE", table)
    with pytest.raises(ClusterError, match="mount its folder instead"):
        await open_log()


async def test_a_link_to_the_file_is_another_way_to_the_same_log(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "log.db").symlink_to(tmp_path / "log.db")
    other = LogCluster("log", LogSettings(path=tmp_path / "elsewhere" / "log.db"))
    await other.connect()
    await cluster.create("t", 1)
    assert await other.topics() == ["t"]
    await other.close()
    assert os.listdir(tmp_path / "elsewhere") == ["log.db"]  # noqa: PTH208


async def test_an_empty_file_is_no_new_log(tmp_path: Path) -> None:
    (tmp_path / "log.db").touch()
    with pytest.raises(ClusterError, match="is empty: something has truncated it") as refused:
        await LogCluster("log", LogSettings(path=tmp_path / "log.db")).connect()
    assert refused.value.failure is Failure.FATAL


@pytest.mark.parametrize("version", [0, 2, 3])
async def test_a_database_of_another_program_is_refused_and_stays_as_it_is(tmp_path: Path, version: int) -> None:
    connection = sqlite3.connect(tmp_path / "log.db")
    connection.executescript(f"CREATE TABLE customers (name); PRAGMA user_version = {version}")
    connection.close()
    before = (tmp_path / "log.db").read_bytes()
    with pytest.raises(ClusterError, match="database of another program"):
        await LogCluster("log", LogSettings(path=tmp_path / "log.db")).connect()
    assert (tmp_path / "log.db").read_bytes() == before


def test_a_log_in_memory_is_refused() -> None:
    with pytest.raises(ValidationError, match="a log is a file on a disk"):
        LogSettings(path=Path(":memory:"))


async def test_a_missing_file_is_no_new_log_while_its_mark_is_there(open_log: OpenLog, tmp_path: Path) -> None:
    await (await open_log()).close()
    (tmp_path / "log.db").unlink()
    with pytest.raises(ClusterError, match="although its mark"):
        await open_log()
    (tmp_path / "log.db-mark").unlink()
    await open_log()


async def test_a_creation_that_was_killed_is_repeated(open_log: OpenLog, tmp_path: Path) -> None:
    (tmp_path / "log.db-new").write_bytes(b"half")
    (tmp_path / "log.db-new-wal").write_bytes(b"half")
    await (await open_log()).create("t", 1)
    assert [name for name in os.listdir(tmp_path) if "new" in name] == []  # noqa: PTH208


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operating system say that nothing below the folder can be written."""
    monkeypatch.setattr("mqbridge.log.store.opening.os.access", lambda _, mode: mode == os.R_OK)


async def test_a_log_that_cannot_be_written_can_be_read(open_log: OpenLog, request: pytest.FixtureRequest) -> None:
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 3))))
    await cluster.close()
    request.getfixturevalue("read_only")
    cluster = await open_log()
    assert [batch.count async for batch in read(cluster, "t", "0", (0,), (3,))] == [3]
    with pytest.raises(ClusterError, match=r"readonly|read-only"):
        await cluster.create("u", 1)


async def test_a_log_with_messages_in_its_wal_cannot_be_read_without_writing(
    open_log: OpenLog, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 3))))
    (tmp_path / "copy").mkdir()
    for suffix in ("", WAL_SUFFIX):
        shutil.copy(beside(tmp_path / "log.db", suffix), tmp_path / "copy")
    request.getfixturevalue("read_only")
    with pytest.raises(ClusterError, match=r"newest messages are still in log\.db-wal"):
        await LogCluster("log", LogSettings(path=tmp_path / "copy" / "log.db")).connect()


async def test_opening_is_not_disturbed_by_others_that_open_the_file(open_log: OpenLog, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clusters = await asyncio.gather(*(open_log() for _ in range(8)))
    await clusters[0].create("t", 1)
    await until(lambda: all(cluster.store.is_open for cluster in clusters))
    assert [await cluster.topics() for cluster in clusters] == [["t"]] * 8
    assert caplog.text == ""
