"""The state file: locked, damaged, in use by another gateway, of another group."""

import asyncio
import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.known_brokers import KnownBrokers
from mqbridge.config.load import from_dict
from mqbridge.delivery.checkpoint import CheckpointKey, Checkpoints
from mqbridge.delivery.held_positions import RoutePositions
from mqbridge.delivery.state_lock import StateLock
from mqbridge.errors import ConfigError
from mqbridge.gateway.run import Gateway
from mqbridge.message import NO_INDEX, Partition
from mqbridge.net.tasks import cancel, spawn
from tests.gateway.world import ADAPTERS, World, committed, fill, named, put, route, run, running, until

PARTITION = Partition("a", "t", "0", 0)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.delivery.checkpoint.WRITE_INTERVAL_S", 0.01)
    monkeypatch.setattr("mqbridge.delivery.checkpoint.BUSY_TIMEOUT_S", 0.01)


def locked(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def positions(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return [position for (position,) in connection.execute("SELECT position FROM delivered ORDER BY partition")]
    finally:
        connection.close()


async def test_positions_are_written_after_a_lock_is_released(
    world: World, tmp_path: Path, short_pauses: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.db"
    fill(world.a, "t", 1, 20)
    async with running(world.config(route("r", "a/t", "b/t"), state=str(path))) as gateway:
        await until(lambda: positions(path) == ["20"])
        lock = locked(path)
        put(world.a, "t", 0, b"20")
        await until(
            lambda: (
                f"the state file {path} cannot be written, retrying until the gateway stops: database is locked" in caplog.text
            )
        )
        lock.close()
        await until(lambda: positions(path) == ["21"])
        await until(lambda: f"the state file {path} can be written again" in caplog.text)
        assert named(gateway, "r").state.error is None


async def test_a_file_locked_at_shutdown_is_logged_and_does_not_block(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.db"
    fill(world.a, "t", 1, 20)
    config = world.config(route("r", "a/t", "b/t"), state=str(path), shutdown_timeout="100ms")
    gateway = Gateway(from_dict(config, adapters=ADAPTERS), ADAPTERS)
    task = spawn(gateway.run(), "gateway", log_errors=False)
    await until(lambda: gateway.ready and path.exists())
    lock = locked(path)
    await until(lambda: committed(world.a, "g-r") == 20)
    gateway.stop()
    await until(task.done)
    lock.close()
    assert task.result().clean
    assert f"the state file {path} could not be written before the shutdown deadline" in caplog.text


async def test_positions_noted_during_a_lock_are_written_at_close(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "state.db")
    lock = locked(tmp_path / "state.db")
    checkpoints.record("r", "g", PARTITION, (7,))
    closing = spawn(checkpoints.close(), "close")
    await until(lambda: checkpoints._last_write_failed)
    lock.close()
    await closing
    assert positions(tmp_path / "state.db") == ["7"]


async def test_what_was_read_last_outlives_the_release_and_the_process(tmp_path: Path, short_pauses: None) -> None:
    key, trace = CheckpointKey.of("r", "g", PARTITION), ((56, 7), (28, 1, 2))
    checkpoints = Checkpoints(tmp_path / "state.db")
    lock = locked(tmp_path / "state.db")
    held = RoutePositions("r", "g", PARTITION.cluster, checkpoints)
    held.record(PARTITION.topic, PARTITION.name, (56, 0), (56, 0), trace)
    held.released(PARTITION.topic, PARTITION.name)
    closing = spawn(checkpoints.close(), "close")
    await until(lambda: checkpoints._last_write_failed)
    lock.close()
    await closing
    again = Checkpoints(tmp_path / "state.db")
    assert again.held(key) is None
    assert RoutePositions("r", "g", PARTITION.cluster, again).trace(PARTITION.topic, PARTITION.name) == trace
    assert RoutePositions("r", "other", PARTITION.cluster, again).trace(PARTITION.topic, PARTITION.name) == ()
    await again.close()


async def test_a_newer_position_is_not_overwritten_by_the_one_that_could_not_be_written(
    tmp_path: Path, short_pauses: None
) -> None:
    checkpoints = Checkpoints(tmp_path / "state.db")
    lock = locked(tmp_path / "state.db")
    writer = spawn(checkpoints.run(), "writer")
    checkpoints.record("r", "g", PARTITION, (7,))
    await until(lambda: checkpoints._last_write_failed)
    checkpoints.record("r", "g", PARTITION, (8,))
    assert checkpoints.load("r", "g", PARTITION) == (8,)
    lock.close()
    await until(lambda: positions(tmp_path / "state.db") == ["8"])
    await cancel(writer)
    await checkpoints.close()


async def test_a_write_that_fails_brings_back_no_older_position(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "state.db")
    write, begun, may_fail = checkpoints._write, threading.Event(), threading.Event()

    def fail_once(*args: Any) -> None:
        if begun.is_set():
            write(*args)
            return
        begun.set()
        may_fail.wait()
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr(checkpoints, "_write", fail_once)
    checkpoints.record("r", "g", PARTITION, (7,))
    first = spawn(checkpoints.flush(), "first")
    await until(begun.is_set)
    checkpoints.record("r", "g", PARTITION, (8,))
    second = spawn(checkpoints.flush(), "second")
    await asyncio.sleep(0)
    may_fail.set()
    await asyncio.gather(first, second)
    await checkpoints.close()
    assert positions(tmp_path / "state.db") == ["8"]


async def test_a_flush_waits_for_a_write_that_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path / "state.db")
    write, begun, may_write = checkpoints._write, threading.Event(), threading.Event()

    def wait_and_write(*args: Any) -> None:
        begun.set()
        may_write.wait()
        write(*args)

    monkeypatch.setattr(checkpoints, "_write", wait_and_write)
    checkpoints.record("r", "g", PARTITION, (7,))
    first = spawn(checkpoints.flush(), "first")
    await until(begun.is_set)
    second = spawn(checkpoints.flush(), "second")
    await asyncio.wait([second], timeout=0.01)
    may_write.set()
    await second
    assert positions(tmp_path / "state.db") == ["7"]
    await first
    await checkpoints.close()


async def test_a_cluster_that_is_connected_again_knows_what_is_not_written_yet(tmp_path: Path, short_pauses: None) -> None:
    checkpoints, known, again = Checkpoints(tmp_path / "state.db"), KnownBrokers(), KnownBrokers()
    checkpoints.keep_brokers("rocket", known)
    known.record("orders", ["broker-a", "broker-b"])
    known.fix_layout("orders", ["broker-a:0", "broker-b:0"])
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        await checkpoints.flush()
        checkpoints.keep_brokers("rocket", again)
    assert again.of("orders") == {"broker-a", "broker-b"}
    assert again.indexes("orders", ["broker-b:0"]) == (1,)
    await checkpoints.close()


async def test_the_layouts_of_a_configuration_that_is_not_used_are_not_kept(tmp_path: Path) -> None:
    checkpoints, running_one, tried = Checkpoints(tmp_path / "state.db"), KnownBrokers(), KnownBrokers(["broker-a", "broker-c"])
    checkpoints.keep_brokers("rocket", running_one)
    running_one.fix_layout("orders", ["broker-a:0", "broker-b:0"])
    checkpoints.keep_brokers("rocket", tried)
    tried.fix_layout("orders", ["broker-a:0", "broker-c:0"])
    tried.fix_layout("events", ["broker-a:0", "broker-c:0"])
    checkpoints.restore_layouts("rocket", running_one)
    await checkpoints.close()
    checkpoints, known = Checkpoints(tmp_path / "state.db"), KnownBrokers()
    checkpoints.keep_brokers("rocket", known)
    assert known.indexes("orders", ["broker-b:1"]) == (3,)
    assert known.layouts.keys() == {"orders"}
    await checkpoints.close()


async def test_a_file_of_an_earlier_version_is_read_and_gets_the_tables_about_brokers(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    partition = Partition("rocket", "orders", "broker-a:0", index=0)
    checkpoints = Checkpoints(path)
    checkpoints.record("r", "g", partition, (7,))
    await checkpoints.close()
    with contextlib.closing(sqlite3.connect(path)) as earlier, earlier:
        earlier.executescript("DROP TABLE seen_broker; DROP TABLE layout")
    for is_new in (True, False):
        checkpoints, known = Checkpoints(path), KnownBrokers()
        checkpoints.keep_brokers("rocket", known)
        checkpoints.keep_brokers("other", KnownBrokers())
        assert checkpoints.load("r", "g", partition) == (7,)
        assert known.of("orders") == (frozenset() if is_new else {"broker-a", "broker-b"})
        assert known.indexes("orders", ["broker-b:0"]) == ((0,) if is_new else (1,))
        known.record("orders", ["broker-a", "broker-b"])
        known.fix_layout("orders", ["broker-a:0", "broker-b:0"])
        await checkpoints.close()


async def test_what_is_known_about_brokers_is_written_although_the_file_was_locked(tmp_path: Path) -> None:
    checkpoints, known = Checkpoints(tmp_path / "state.db"), KnownBrokers()
    checkpoints.keep_brokers("rocket", known)
    known.record("orders", ["broker-a"])
    known.fix_layout("orders", ["broker-a:0"])
    with contextlib.closing(locked(tmp_path / "state.db")):
        await checkpoints.flush()
    await checkpoints.close()
    checkpoints, known = Checkpoints(tmp_path / "state.db"), KnownBrokers()
    checkpoints.keep_brokers("rocket", known)
    assert known.of("orders") == {"broker-a"}
    assert known.indexes("orders", ["broker-a:0", "broker-b:0"]) == (0, NO_INDEX)
    await checkpoints.close()


async def test_a_damaged_file_is_named_before_anything_starts(world: World, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    fill(world.a, "t", 1, 20)
    config = world.config(route("r", "a/t", "b/t"), state=str(path))
    await run(config)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    with pytest.raises(ConfigError, match=f"the state file {path} cannot be used: .*Move it to another folder"):
        await run(config)
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(ConfigError, match=f"the state file {path} cannot be used: .*Move it to another folder"):
        await run(config)


async def test_a_second_gateway_with_the_same_state_file_is_refused(world: World, tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    fill(world.a, "t", 1, 20)
    config = world.config(route("r", "a/t", "b/t"), state=str(path))
    async with running(config):
        with pytest.raises(ConfigError, match=rf"in use by another gateway \(process {os.getpid()} on .*a state file of its own"):
            await run(config)
    assert (await run(config)).clean, "it ends with the one that had it"


def test_the_process_that_holds_a_state_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    code = (
        "import sys, pathlib\nfrom mqbridge.delivery.checkpoint import Checkpoints\n"
        "held = Checkpoints(pathlib.Path(sys.argv[1]))\nprint('open', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        with pytest.raises(ConfigError, match=rf"in use by another gateway \(process {child.pid} on "):
            Checkpoints(path)
        child.kill()
        child.wait()
    Checkpoints(path)._close_database()


async def test_closing_without_a_deadline_uses_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mqbridge.adapter.tools.deadlines.CLOSE_S", 0.2)
    checkpoints = Checkpoints(tmp_path / "state.db")
    lock = locked(tmp_path / "state.db")
    checkpoints.record("r", "g", PARTITION, (7,))
    closing = spawn(checkpoints.close(), "close")
    await until(closing.done)
    lock.close()
    assert "could not be written before the shutdown deadline" in caplog.text


def test_a_full_disk_does_not_prevent_locking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock itself needs no disk space."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", full)
        lock = StateLock(tmp_path / "state.db")
    with pytest.raises(ConfigError, match=r"in use by another gateway\. "):
        StateLock(tmp_path / "state.db")
    lock.release()
    StateLock(tmp_path / "state.db").release()


@pytest.mark.parametrize("what", ["folder", "loop"])
def test_a_file_system_without_locks_is_logged(tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.db"
    if what == "loop":
        path.symlink_to(path)
    else:  # a read-only folder, also for root
        monkeypatch.setattr("os.open", lambda *_: (_ for _ in ()).throw(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(ConfigError, match=f"the state file {path} cannot be used"):
        Checkpoints(path)


def test_a_symbolic_link_locks_the_same_state_file(tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "state.db")
    lock = StateLock(tmp_path / "state.db")
    with pytest.raises(ConfigError, match="in use by another gateway"):
        StateLock(tmp_path / "link.db")
    lock.release()
