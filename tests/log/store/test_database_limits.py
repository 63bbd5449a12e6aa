"""A log never fills its disk, keeps its bounds at each append, and says at once why it cannot be written."""

import asyncio
import logging
import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.adapter.inbound import LogInbound
from mqbridge.log.store import database, disk_room, retention, topics
from mqbridge.log.store.connection import LOCK_WAIT_S, PAGE_BYTES, WAL_KEPT_BYTES, Connection, open_connection
from mqbridge.log.store.mark import Mark
from mqbridge.log.store.retention import Limits
from mqbridge.message import Batch, Message, Share
from tests.kit.conversation import until
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.patience import PATIENCE_S


def one(payload: bytes) -> Share:
    return Share(Batch.of([Message(payload)]))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list with the free bytes of the disk, which the test may change."""
    free = [1 << 40]
    real = os.statvfs

    def statvfs(path: Path) -> os.statvfs_result:
        result = list(real(path))
        return os.statvfs_result((1, 1, 1 << 40, free[0], free[0], *result[5:]))

    monkeypatch.setattr(disk_room.os, "statvfs", statvfs)
    monkeypatch.setattr(disk_room, "CHECK_S", 0.0)
    return free


async def test_a_full_disk_is_read_committed_to_and_trimmed_and_ends_by_itself(open_log: OpenLog, disk: list[int]) -> None:
    cluster = await open_log(reserve="1MiB")
    outbound = await outbound_of(cluster)
    for number in range(10):
        await outbound.send(0, one(b"%d" % number + bytes(1000)))
    disk[0] = 1 << 20
    waiting = outbound.send(0, one(b"waits"))
    inbound, lane = await lane_of(cluster)
    batch = await lane.receive()
    lane.acknowledge(batch)
    await inbound.close()
    assert (await cluster.committed("t", "g"))["0"] == (10,)
    limited = await open_log(retention_bytes=10)
    assert await limited.store.trim() == 9
    assert not waiting.done()
    disk[0] = 1 << 30
    assert (await asyncio.wait_for(waiting, PATIENCE_S)).positions == [(10,)]


async def test_a_full_disk_gets_what_the_retention_has_dropped(
    open_log: OpenLog, tmp_path: Path, disk: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if only a small part of the file is free, which stays in the file otherwise."""
    cluster = await open_log(reserve="1MiB")
    outbound = await outbound_of(cluster)
    for _ in range(40):
        await outbound.send(0, one(bytes(1 << 20)))
    await cluster.close()
    path = tmp_path / "log.db"
    used = path.stat().st_size
    cluster = await open_log(reserve="1MiB")
    outbound = await outbound_of(cluster)
    fake = disk_room.os.statvfs
    monkeypatch.setattr(disk_room.os, "statvfs", lambda each: _with_free(fake(each), disk, used - path.stat().st_size))
    disk[0] = (1 << 20) + 100_000
    waiting = outbound.send(0, one(bytes(1 << 20)))
    await until(lambda: outbound.send_failure is not None)
    partition = (await cluster.existing_partitions("t"))[0].id
    await cluster.store.write(retention.trim, partition, Limits(36 << 20, None))
    assert (await cluster.bounds("t"))["0"].first == (5,)
    assert (await asyncio.wait_for(waiting, PATIENCE_S)).positions == [(40,)]


def _with_free(result: os.statvfs_result, disk: list[int], more: int) -> os.statvfs_result:
    free = disk[0] + more
    return os.statvfs_result((1, 1, 1 << 40, free, free, *list(result)[5:]))


async def test_sends_that_wait_are_logged_at_once_with_the_reason(
    open_log: OpenLog, disk: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    disk[0] = 1000
    waiting = outbound.send(0, one(b"x"))
    await until(lambda: outbound.send_failure is not None)
    assert "1 sends wait" in caplog.text
    assert "is full: 1000 bytes are free" in caplog.text
    disk[0] = 1 << 30
    await asyncio.wait_for(waiting, PATIENCE_S)
    assert "can be written again" in caplog.text


async def test_a_file_that_another_process_keeps_locked_is_the_reason(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await open_log(busy_timeout="50ms")
    outbound = await outbound_of(cluster)
    lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    waiting = outbound.send(0, one(b"x"))
    await until(lambda: "another process is writing for too long; is one of them stopped" in caplog.text)
    lock.execute("ROLLBACK")
    lock.close()
    await asyncio.wait_for(waiting, PATIENCE_S)


async def test_a_full_log_waits_for_room(open_log: OpenLog) -> None:
    cluster = await open_log(max_bytes="64MiB")
    outbound = await outbound_of(cluster)
    sends = [outbound.send(0, one(bytes(8_000_000))) for _ in range(20)]
    stored = 0
    async with asyncio.timeout(PATIENCE_S):
        while outbound.send_failure is None:
            await asyncio.sleep(0.01)
            stored = sum(send.done() for send in sends)
    assert 0 <= stored < 20
    assert "`max_bytes` is 67108864" in outbound.send_failure.reason  # type: ignore[union-attr]
    await outbound.close(asyncio.get_running_loop().time())


async def test_a_send_that_could_never_be_stored_is_refused(open_log: OpenLog) -> None:
    cluster = await open_log(max_bytes="64MiB", max_message_bytes="64MiB")
    outbound = await outbound_of(cluster)
    receipt = await asyncio.wait_for(outbound.send(0, one(bytes(33 << 20))), PATIENCE_S)
    (failure,) = receipt.failures
    assert (failure.failure_kind, receipt.positions) == (Failure.REFUSED, [()])
    assert "at most a half of its `max_bytes` (67108864)" in failure.reason
    assert (await outbound.send(0, one(bytes(31 << 20)))).failures == []


async def test_the_size_of_a_partition_is_bounded_at_each_append(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "RETENTION_INTERVAL_S", 3600.0)
    cluster = await open_log(retention_bytes=50_000)
    outbound = await outbound_of(cluster)
    for _ in range(50):
        await outbound.send(0, one(bytes(10_000)))
        ((size,),) = await cluster.store.read(lambda connection: connection.execute("SELECT bytes FROM partition").fetchall())
        assert size <= 61_000
    assert (await cluster.bounds("t"))["0"].next == (50,)


async def test_trimming_writes_no_freed_bytes_and_gives_the_file_back(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "DROPPED_BYTES", 4 << 20)
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for _ in range(20):
        await outbound.send(0, one(bytes(2 << 20)))
    await cluster.close()
    before = (tmp_path / "log.db").stat().st_size
    cluster = await open_log(retention_bytes=1 << 20)
    await cluster.store.trim()
    assert (await cluster.bounds("t"))["0"].first == (19,)
    assert (tmp_path / "log.db-wal").stat().st_size < 24 << 20
    await cluster.close()
    assert (tmp_path / "log.db").stat().st_size < before // 4


async def test_giving_space_back_waits_for_another_writer(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for _ in range(20):
        await outbound.send(0, one(bytes(2 << 20)))
    await cluster.close()
    cluster = await open_log(retention_bytes=1 << 20, busy_timeout="60s")
    for partition in await cluster.store.read(topics.partitions, "t"):
        while not (await cluster.store.write(retention.trim, partition.id, Limits(1 << 20, None))).is_complete:
            pass
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    trim = asyncio.ensure_future(cluster.store.trim())
    done, _ = await asyncio.wait([trim], timeout=LOCK_WAIT_S * 4)
    assert not done
    other.execute("ROLLBACK")
    other.close()
    await asyncio.wait_for(trim, PATIENCE_S)
    ((free,),) = await cluster.store.read(lambda connection: connection.execute("PRAGMA freelist_count").fetchall())
    assert free < retention.VACUUM_PAGES


async def test_a_damaged_list_of_free_pages_leaves_no_transaction_open(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for _ in range(40):
        await outbound.send(0, one(bytes(30_000)))
    (partition,) = await cluster.existing_partitions("t")
    await cluster.store.write(retention.trim, partition.id, Limits(1, None))
    await cluster.close()
    path = tmp_path / "log.db"
    data = bytearray(path.read_bytes())
    trunk = int.from_bytes(data[32:36], "big")
    begin = (trunk - 1) * PAGE_BYTES
    data[begin + 4 : begin + 8] = b"\xff" * 4
    data[PAGE_BYTES : 2 * PAGE_BYTES] = b"\x55" * PAGE_BYTES
    path.write_bytes(data)
    connection = open_connection(path, "normal", 1.0)
    with pytest.raises(sqlite3.DatabaseError):
        retention.give_back(connection, 1.0, is_urgent=True)
    assert not connection.in_transaction
    connection.close()


async def test_a_pass_goes_on_behind_the_partition_that_failed(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    await cluster.create("t", 3)
    outbound = await outbound_of(cluster)
    outbound = await cluster.outbound(outbound._spec)  # type: ignore[assignment]
    for partition in range(3):
        for _ in range(2):
            await outbound.send(partition, one(bytes(100)))
    limited = await open_log(retention_bytes=10)
    real = retention.trim

    def fail_in_the_first(connection: object, partition: int, limits: object) -> object:
        if not partition % 3:
            raise ClusterError("damaged")
        return real(connection, partition, limits)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(retention, "trim", fail_in_the_first)
        for _ in range(2):
            try:
                await limited.store.trim()
            except ClusterError:
                continue
    firsts = [bounds.first for bounds in (await cluster.bounds("t")).values()]
    assert sorted(firsts) in ([(0,), (1,), (1,)], [(0,), (0,), (1,)])


async def test_the_wal_is_bounded_and_cut(open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAL_BYTES", 4 << 20)
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    await outbound.send(0, one(bytes(15 << 20)))
    for _ in range(10):
        await outbound.send(0, one(bytes(1 << 20)))
        await asyncio.sleep(0.02)
    assert (tmp_path / "log.db-wal").stat().st_size <= min(WAL_KEPT_BYTES, 8 << 20)


async def test_many_queued_sends_do_not_freeze_the_event_loop(open_log: OpenLog) -> None:
    """Each round of the queue takes time in proportion to the sends that it stores."""
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    times = {}
    for count in (1000, 8000):
        began = time.process_time()
        await asyncio.gather(*(outbound.send(0, one(b"x")) for _ in range(count)))
        times[count] = time.process_time() - began
    assert times[8000] < 24 * times[1000]  # eight times as much work; with the square it would be 64 times


async def test_a_cancelled_connect_leaves_nothing_open(open_log: OpenLog) -> None:
    await (await open_log()).close()
    cluster = await open_log()
    await cluster.close()
    for delay in range(20):
        connecting = asyncio.ensure_future(cluster.connect())
        await asyncio.sleep(delay * 0.0002)
        connecting.cancel()
        await asyncio.gather(connecting, return_exceptions=True)
        await cluster.connect()
        assert await cluster.topics() == []
        await cluster.close()


async def test_a_cluster_that_is_opened_again_waits_for_new_messages(open_log: OpenLog) -> None:
    """It knows nothing of the file as it was before."""
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    await outbound.send(0, one(b"x"))
    await cluster.close()
    cluster.store.tails.known[next(iter(cluster.store.tails.known))] = 10**6
    await cluster.connect()
    assert cluster.store.tails.known == {}


async def test_a_cancelled_join_leaves_no_member(open_log: OpenLog) -> None:
    cluster = await open_log(lease="3600s")
    await cluster.create("t", 1)
    joins = 0
    for delay in range(20):
        joining = asyncio.ensure_future(cluster.inbound(InboundSpec(("t",), "g")))
        await asyncio.sleep(delay * 0.0002)
        joining.cancel()
        (joined,) = await asyncio.gather(joining, return_exceptions=True)
        if isinstance(joined, LogInbound):
            joins += 1
            await joined.close()
    assert joins < 20
    assert await cluster.operations.members("t", "g") == []


async def test_a_checkpoint_that_fails_after_a_commit_does_not_repeat_the_send(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    real = Connection.execute

    def fail(self: Connection, statement: str, *arguments: object) -> sqlite3.Cursor:
        if "wal_checkpoint" in statement:
            raise sqlite3.OperationalError("disk I/O error")
        return real(self, statement, *arguments)

    monkeypatch.setattr(database, "WAL_BYTES", 0)
    monkeypatch.setattr(database, "GUARD_S", 0.0)
    monkeypatch.setattr(Connection, "execute", fail)
    cluster.store._guarded_until = 0.0
    assert (await outbound.send(0, one(b"x"))).positions == [(0,)]
    assert (await outbound.send(0, one(b"x"))).positions == [(1,)]
    assert (await cluster.bounds("t"))["0"].next == (2,)
    assert "could not be moved into its file" in caplog.text


async def test_a_cancelled_close_closes_everything(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    closing = asyncio.ensure_future(cluster.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            mark = Mark.open(tmp_path / "log.db-mark", 1.0)
            is_alone = mark.is_alone
            mark.close()
            if is_alone:
                break
            await asyncio.sleep(0.01)


async def test_the_mark_is_locked_until_the_reading_connection_is_closed(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise this process would take itself for the only one that has the log open."""
    cluster = await open_log()
    closed: list[object] = []
    for kind in (Connection, Mark):
        close = kind.close
        monkeypatch.setattr(kind, "close", lambda self, close=close: (close(self), closed.append(type(self))))
    may_end = threading.Event()
    reading = cluster.store.read(lambda _: may_end.wait(PATIENCE_S))
    await cluster.close(asyncio.get_running_loop().time())
    for _ in range(30):  # a writing thread that does not wait for the reading one closes the mark by now
        await asyncio.sleep(0.01)
    may_end.set()
    assert await reading
    await until(lambda: len(closed) == 3)
    assert closed == [Connection, Connection, Mark]
