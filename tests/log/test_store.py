import asyncio
import gc
import sqlite3
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure, GapError, LocalProtocolError, Unreachable
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.encoding import MAX_ROW_BYTES, MAX_ROW_MESSAGES
from mqbridge.log.adapter.registration import ADAPTER
from mqbridge.log.store import append, connection, database
from mqbridge.log.store.append import write_group
from mqbridge.log.store.opening import LogFile, open_log
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from mqbridge.net.tasks import cancel
from tests.conformance.arena import numbered, numbers
from tests.kit.conversation import until
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.patience import PATIENCE_S


def rows(cluster: LogCluster, statement: str) -> list[tuple[object, ...]]:
    """Run an SQL statement in another connection to the file; return its rows."""
    connection = sqlite3.connect(cluster.store.config.path)
    try:
        result = connection.execute(statement).fetchall()
        connection.commit()
        return result
    finally:
        connection.close()


async def test_stored_messages_are_read_after_reopening(open_log: OpenLog) -> None:
    first = await open_log()
    outbound = await outbound_of(first)
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    await outbound.close()
    await first.close()
    _, lane = await lane_of(await open_log())
    assert numbers((await lane.receive()).messages) == list(range(10))


async def test_a_connection_that_opens_after_the_cancellation_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway was stopped while it started. The thread continues: it opens the file when another process unlocks it."""
    is_opening, may_open, connections = threading.Event(), threading.Event(), list[sqlite3.Connection]()

    def open_slowly(settings: LogSettings) -> LogFile:
        is_opening.set()
        assert may_open.wait(PATIENCE_S)
        opened = open_log(settings)
        connections.append(opened.connection)
        return opened

    monkeypatch.setattr(database, "open_log", open_slowly)
    cluster = LogCluster("log", LogSettings(path=tmp_path / "f.db"))
    connecting = asyncio.ensure_future(cluster.connect())
    await until(is_opening.is_set)
    await cancel(connecting)
    await cluster.close()
    may_open.set()
    await until(lambda: connections and is_closed(connections[0]))


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.total_changes  # noqa: B018 - raises if it is closed
    except sqlite3.ProgrammingError:
        return True
    return False


async def test_stored_messages_are_freed_without_garbage_collection(open_log: OpenLog) -> None:
    """Reference cycles would keep large messages in memory until the next garbage collection, which runs seldom."""
    outbound = await outbound_of(await open_log())
    gc.collect()
    gc.disable()
    try:
        sent = outbound.send(0, Share(Batch.of(numbered(0, 10))))
        kept = weakref.ref(sent)
        assert not (await sent).failures  # a route does not ask for the positions
        del sent
        await until(lambda: kept() is None)
    finally:
        gc.enable()


async def test_sends_of_one_loop_iteration_share_a_transaction(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    group_sizes = []

    def record_group(group: list[append.Append], *arguments: Any) -> Any:
        group_sizes.append(len(group))
        return write_group(group, *arguments)

    monkeypatch.setattr(append, "write_group", record_group)
    outbound = await outbound_of(await open_log())
    receipts = await asyncio.gather(*(outbound.send(0, Share(Batch.of(numbered(index, index + 1)))) for index in range(50)))
    assert group_sizes == [50]
    assert [receipt.highest_position for receipt in receipts] == [(index,) for index in range(50)]


async def test_large_sends_are_stored_as_several_rows_and_small_rows_read_as_one_batch(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    receipt = await outbound.send(0, Share(Batch.of(numbered(0, MAX_ROW_MESSAGES * 2 + 1))))
    assert receipt.highest_position == (MAX_ROW_MESSAGES * 2,)
    assert [count for (count,) in rows(cluster, "SELECT count FROM batch ORDER BY base")] == [
        MAX_ROW_MESSAGES,
        MAX_ROW_MESSAGES,
        1,
    ]
    for index in range(5):
        await outbound.send(0, Share(Batch.of(numbered(index, index + 1))))
    _, lane = await lane_of(cluster)
    assert [(await lane.receive()).count for _ in range(3)] == [MAX_ROW_MESSAGES, MAX_ROW_MESSAGES, 6]
    await outbound.send(0, Share(Batch.of([Message(bytes(MAX_ROW_BYTES // 2))] * 3 + [Message(bytes(MAX_ROW_BYTES * 3))])))
    assert [(await lane.receive()).count for _ in range(4)] == [1, 1, 1, 1]


async def test_a_seek_into_a_row_continues_at_its_offset(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    _, lane = await lane_of(cluster)
    await lane.seek((4,))
    batch = await lane.receive()
    assert (batch.first, batch.next, batch.count) == ((4,), (10,), 6)
    assert numbers(batch.messages) == list(range(4, 10))
    assert [message.position for message in batch.messages] == [(offset,) for offset in range(4, 10)]


@pytest.mark.parametrize("settings", [{"retention_bytes": 2500}, {"retention": "0.001ms"}], ids=["size", "age"])
async def test_retention_drops_whole_batches_and_readers_get_a_gap(open_log: OpenLog, settings: dict[str, float]) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for index in range(10):
        await outbound.send(0, Share(Batch.of([Message(b"%06d" % index + bytes(1000))])))
    _, lane = await lane_of(cluster)
    limited = await open_log(**settings)
    first = (8,) if "retention_bytes" in settings else (9,)
    async with asyncio.timeout(PATIENCE_S):
        while (bounds := (await cluster.bounds("t"))["0"]).first != first:
            await limited.store.trim()
    assert await limited.store.trim() == 0
    assert bounds.next == (10,)
    with pytest.raises(GapError, match="offsets 0 to"):
        await lane.receive()
    with pytest.raises(GapError) as gap:
        await lane.receive()
    assert gap.value.resume == bounds.first
    await lane.seek(gap.value.resume)
    received = (await lane.receive()).messages
    assert [message.position for message in received] == [(offset,) for offset in range(bounds.first[0], 10)]
    assert rows(cluster, "SELECT bytes FROM partition") == rows(cluster, "SELECT sum(bytes) FROM batch")
    await outbound.send(0, Share(Batch.of(numbered(10, 11))))
    assert (await lane.receive()).first == (10,)


async def test_a_damaged_batch_is_a_gap_and_the_others_are_read(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for index in range(3):
        await outbound.send(0, Share(Batch.of(numbered(index, index + 1))))
    rows(cluster, "UPDATE batch SET records = zeroblob(length(records)) WHERE base = 1")
    _, lane = await lane_of(cluster)
    assert numbers((await lane.receive()).messages) == [0]
    with pytest.raises(GapError, match=r"contains offset 1 is damaged \(CRC32C\)") as gap:
        await lane.receive()
    assert gap.value.resume == (2,)
    await lane.seek(gap.value.resume)
    assert numbers((await lane.receive()).messages) == [2]


@pytest.mark.parametrize("damage", ["count = 2", "base = 11", "crc = crc + 1"])  # the row is the last one
async def test_a_row_with_changed_columns_is_a_gap(open_log: OpenLog, damage: str) -> None:
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 1))))
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(1, 2))))
    rows(cluster, f"UPDATE batch SET {damage} WHERE base = 1")
    _, lane = await lane_of(cluster)
    assert (await lane.receive()).next == (1,)
    with pytest.raises(GapError, match="damaged") as gap:
        await lane.receive()
    assert gap.value.resume == (2,)


async def test_a_row_that_is_missing_is_a_gap(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for index in range(4):
        await outbound.send(0, Share(Batch.of(numbered(index, index + 1))))
    rows(cluster, "DELETE FROM batch WHERE base = 1")
    _, lane = await lane_of(cluster)
    assert (await lane.receive()).next == (1,)
    with pytest.raises(GapError, match="damaged"):
        await lane.receive()


async def test_a_position_beyond_the_end_is_a_gap(open_log: OpenLog) -> None:
    cluster = await open_log()
    await outbound_of(cluster)
    _, lane = await lane_of(cluster)
    await lane.seek((5,))
    with pytest.raises(GapError, match="beyond the end") as gap:
        await lane.receive()
    assert gap.value.resume is None


async def test_appends_wait_in_order_while_the_disk_is_full(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    pages = await cluster.store.write(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    await cluster.store.write(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchone())
    big = outbound.send(0, Share(Batch.of([Message(bytes(100_000))])))
    small = outbound.send(0, Share(Batch.of(numbered(1, 2))))
    await asyncio.sleep(0.3)
    assert not big.done()
    assert not small.done()
    await cluster.store.write(lambda connection: connection.execute("PRAGMA max_page_count=1000000").fetchone())
    assert [receipt.highest_position for receipt in await asyncio.gather(big, small)] == [(0,), (1,)]


async def test_retries_end_at_the_deadline_of_the_send(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster, max_elapsed_s=0.2)
    pages = await cluster.store.write(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    await cluster.store.write(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchone())
    receipt = await outbound.send(0, Share(Batch.of([Message(bytes(100_000)), Message(b"x")])))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(0, Failure.RETRY), (1, Failure.RETRY)]
    assert receipt.highest_position == ()


async def test_no_send_overtakes_one_that_failed_permanently(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    original, calls = append.write_group, 0

    def fail_once(*arguments: Any) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ClusterError("the file is read only", Failure.FATAL)
        return original(*arguments)

    monkeypatch.setattr(append, "write_group", fail_once)
    first = outbound.send(0, Share(Batch.of(numbered(0, 1))))
    await asyncio.sleep(0)  # the transaction of the first send runs now
    second = outbound.send(0, Share(Batch.of(numbered(1, 2))))
    for sent in (first, second):
        with pytest.raises(ClusterError, match="read only"):
            await sent
    assert (await cluster.bounds("t"))["0"].next == (0,)


async def test_a_failed_transaction_is_rolled_back(open_log: OpenLog) -> None:
    cluster = await open_log()

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO topic (name) VALUES ('half')")
        connection.execute("INSERT INTO topic (name) VALUES (NULL)")

    with pytest.raises(ClusterError, match="NOT NULL"):
        await cluster.store.write(fail)
    await cluster.create("whole", 1)
    assert await cluster.topics() == ["whole"]


@pytest.mark.parametrize("when", ["before the close", "after it"])
async def test_sends_to_a_closed_log_fail(open_log: OpenLog, when: str) -> None:
    """Sends that wait for a retry when the log is closed fail, as well as sends after it."""

    def full(*_: Any) -> Any:
        raise ClusterError("the disk is full")

    cluster = await open_log()
    outbound = await outbound_of(cluster)
    early = []
    if when == "before the close":
        cluster.store._run_job = full  # type: ignore[method-assign]
        early = [outbound.send(0, Share(Batch.of(numbered(0, 5)))) for _ in range(2)]
        await asyncio.sleep(0)
    await cluster.close()
    for sent in [*early, outbound.send(0, Share(Batch.of(numbered(5, 10))))]:
        with pytest.raises(ClusterError, match="is closed") as raised:
            await asyncio.wait_for(sent, PATIENCE_S)
        assert raised.value.failure is Failure.FATAL
    await outbound.close()


async def test_two_writers_append_in_the_order_of_their_sends(open_log: OpenLog) -> None:
    outbounds = [await outbound_of(await open_log()) for _ in range(2)]
    sends = [outbound.send(0, Share(Batch.of(numbered(index, index + 1)))) for index in range(100) for outbound in outbounds]
    positions = [receipt.highest_position[0] for receipt in await asyncio.gather(*sends)]
    assert sorted(positions) == list(range(200))
    assert positions[::2] == sorted(positions[::2])
    assert positions[1::2] == sorted(positions[1::2])


def test_opening_a_file_waits_for_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's busy timeout does not apply to the switch to WAL mode."""
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(connection.time, "sleep", lambda _: other.rollback())
    connection.open_connection(tmp_path / "log.db", "NORMAL", PATIENCE_S).close()
    assert not other.in_transaction, "the first attempt was refused"
    other.close()


def test_opening_a_file_fails_after_the_busy_timeout(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("CREATE TABLE t (x)")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        connection.open_connection(tmp_path / "log.db", "NORMAL", 0.05)
    other.close()


async def test_a_file_of_another_format_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"something else entirely" * 100)
    cluster = LogCluster("log", ADAPTER.cluster_model(path=tmp_path / "log.db"))
    with pytest.raises(ClusterError, match="not a database") as raised:
        await cluster.connect()
    assert raised.value.failure is Failure.FATAL


async def test_a_folder_that_cannot_be_created_is_unreachable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cluster = LogCluster("log", ADAPTER.cluster_model(path=tmp_path / "file" / "log.db"))
    with pytest.raises(Unreachable):
        await cluster.connect()


async def test_a_later_schema_is_refused(open_log: OpenLog) -> None:
    cluster = await open_log()
    await cluster.close()
    rows(cluster, "PRAGMA user_version=99")
    with pytest.raises(ClusterError, match="schema version 99"):
        await open_log()


async def test_a_request_before_connect_names_the_missing_call(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match="connect"):
        await LogCluster("log", ADAPTER.cluster_model(path=tmp_path / "log.db")).topics()


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
async def test_the_configured_durability_is_set(open_log: OpenLog, synchronous: str, level: int) -> None:
    cluster = await open_log(synchronous=synchronous)
    pragma = await cluster.store.write(lambda connection: connection.execute("PRAGMA synchronous").fetchone())
    assert pragma == (level,)


async def test_batches_from_before_a_seek_never_count_again(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for _ in range(3):
        await outbound.send(0, Share(Batch.of([Message(bytes(MAX_ROW_BYTES // 20))] * 10)))
    _, lane = await lane_of(cluster)
    before = [await lane.receive() for _ in range(2)]
    await lane.seek((0,))
    again = [await lane.receive() for _ in range(2)]
    lane.reject(again[1])
    lane.acknowledge(before[0])
    lane.acknowledge(before[1])
    assert lane.acknowledged == 0
    lane.reject(before[0])
    assert (await lane.receive()).first == again[1].first
