import asyncio
import gc
import sqlite3
import weakref
from pathlib import Path
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure, GapError, LocalProtocolError, Unreachable
from mqbridge.log.adapter import ADAPTER
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.outbound import MAX_ROW_BYTES, MAX_ROW_MESSAGES
from mqbridge.log.store import append, schema
from mqbridge.log.store.append import write_group
from mqbridge.message import Batch, Message, Share
from tests.conformance.arena import numbered, numbers
from tests.kit.conversation import until
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.patience import PATIENCE_S


def rows(cluster: LogCluster, what: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(cluster.store.config.path)
    try:
        found = connection.execute(what).fetchall()
        connection.commit()
        return found
    finally:
        connection.close()


async def test_what_is_stored_is_there_after_reopening(open_log: OpenLog) -> None:
    first = await open_log()
    outbound = await outbound_of(first)
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    await outbound.close()
    await first.close()
    _, lane = await lane_of(await open_log())
    assert numbers((await lane.receive()).messages) == list(range(10))


async def test_what_is_stored_leaves_memory_at_once(open_log: OpenLog) -> None:
    """Garbage is looked for seldom: large messages would be kept until then, however many."""
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


async def test_sends_of_one_turn_share_a_transaction(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = []

    def count(connection: sqlite3.Connection, group: list[append.Append], appended_ms: int) -> list[int]:
        groups.append(len(group))
        return write_group(connection, group, appended_ms)

    monkeypatch.setattr(append, "write_group", count)
    outbound = await outbound_of(await open_log())
    receipts = await asyncio.gather(*(outbound.send(0, Share(Batch.of(numbered(turn, turn + 1)))) for turn in range(50)))
    assert groups == [50]
    assert [receipt.highest_position for receipt in receipts] == [(turn,) for turn in range(50)]


async def test_long_sends_are_cut_and_short_ones_merged(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    receipt = await outbound.send(0, Share(Batch.of(numbered(0, MAX_ROW_MESSAGES * 2 + 1))))
    assert receipt.highest_position == (MAX_ROW_MESSAGES * 2,)
    assert [count for (count,) in rows(cluster, "SELECT count FROM batch ORDER BY base")] == [
        MAX_ROW_MESSAGES,
        MAX_ROW_MESSAGES,
        1,
    ]
    for turn in range(5):
        await outbound.send(0, Share(Batch.of(numbered(turn, turn + 1))))
    _, lane = await lane_of(cluster)
    assert [(await lane.receive()).count for _ in range(3)] == [MAX_ROW_MESSAGES, MAX_ROW_MESSAGES, 6]
    await outbound.send(0, Share(Batch.of([Message(bytes(MAX_ROW_BYTES // 2))] * 3 + [Message(bytes(MAX_ROW_BYTES * 3))])))
    assert [(await lane.receive()).count for _ in range(4)] == [1, 1, 1, 1]


async def test_seek_into_the_middle_of_a_row(open_log: OpenLog) -> None:
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
async def test_retention_drops_whole_batches_and_readers_hear_of_it(open_log: OpenLog, settings: dict[str, float]) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for turn in range(10):
        await outbound.send(0, Share(Batch.of([Message(b"%06d" % turn + bytes(1000))])))
    _, lane = await lane_of(cluster)
    strict = await open_log(**settings)
    first = (8,) if "retention_bytes" in settings else (9,)
    async with asyncio.timeout(PATIENCE_S):
        while (bounds := (await cluster.bounds("t"))["0"]).first != first:
            await strict.store.trim()
    assert await strict.store.trim() == 0
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


async def test_a_damaged_batch_is_a_gap_and_what_is_whole_is_read(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for turn in range(3):
        await outbound.send(0, Share(Batch.of(numbered(turn, turn + 1))))
    rows(cluster, "UPDATE batch SET records = zeroblob(length(records)) WHERE base = 1")
    _, lane = await lane_of(cluster)
    assert numbers((await lane.receive()).messages) == [0]
    with pytest.raises(GapError, match=r"contains offset 1 is damaged \(CRC32C\)") as gap:
        await lane.receive()
    assert gap.value.resume == (2,)
    await lane.seek(gap.value.resume)
    assert numbers((await lane.receive()).messages) == [2]


@pytest.mark.parametrize("damage", ["count = 2", "base = 11", "crc = crc + 1"])  # the row is the last one
async def test_a_row_that_says_something_else_than_was_stored_is_a_gap(open_log: OpenLog, damage: str) -> None:
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
    for turn in range(4):
        await outbound.send(0, Share(Batch.of(numbered(turn, turn + 1))))
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


async def test_a_full_disk_holds_appends_up_in_order_until_there_is_space(open_log: OpenLog) -> None:
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


async def test_retries_end_when_their_time_is_up(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster, max_elapsed_s=0.2)
    pages = await cluster.store.write(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
    await cluster.store.write(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchone())
    receipt = await outbound.send(0, Share(Batch.of([Message(bytes(100_000)), Message(b"x")])))
    assert [(failure.index, failure.failure_kind) for failure in receipt.failures] == [(0, Failure.RETRY), (1, Failure.RETRY)]
    assert receipt.highest_position == ()


async def test_nothing_overtakes_what_the_file_refused(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    real, calls = append.write_group, 0

    def refuses_once(*arguments: Any) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ClusterError("the file is read only", Failure.FATAL)
        return real(*arguments)

    monkeypatch.setattr(append, "write_group", refuses_once)
    first = outbound.send(0, Share(Batch.of(numbered(0, 1))))
    await asyncio.sleep(0)  # it is being written
    second = outbound.send(0, Share(Batch.of(numbered(1, 2))))
    for sent in (first, second):
        with pytest.raises(ClusterError, match="read only"):
            await sent
    assert (await cluster.bounds("t"))["0"].next == (0,)


async def test_a_transaction_that_fails_leaves_nothing(open_log: OpenLog) -> None:
    cluster = await open_log()

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO topic (name) VALUES ('half')")
        connection.execute("INSERT INTO topic (name) VALUES (NULL)")

    with pytest.raises(ClusterError, match="NOT NULL"):
        await cluster.store.write(fail)
    await cluster.create("whole", 1)
    assert await cluster.topics() == ["whole"]


@pytest.mark.parametrize("when", ["before the close", "after it"])
async def test_what_is_sent_to_a_closed_log_fails(open_log: OpenLog, when: str) -> None:
    """Whether its first transaction failed for a while before, or it was never begun."""

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


async def test_two_writers_interleave(open_log: OpenLog) -> None:
    outbounds = [await outbound_of(await open_log()) for _ in range(2)]
    sends = [outbound.send(0, Share(Batch.of(numbered(turn, turn + 1)))) for turn in range(100) for outbound in outbounds]
    positions = [receipt.highest_position[0] for receipt in await asyncio.gather(*sends)]
    assert sorted(positions) == list(range(200))
    assert positions[::2] == sorted(positions[::2])
    assert positions[1::2] == sorted(positions[1::2])


def test_a_new_file_that_another_connection_writes_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when two processes open a new log at the same moment: SQLite's busy timeout does not hold for what they ask."""
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(schema.time, "sleep", lambda _: other.rollback())
    schema.open_connection(tmp_path / "log.db", "NORMAL", PATIENCE_S).close()
    assert not other.in_transaction, "the first attempt was refused"
    other.close()


def test_a_new_file_that_another_connection_keeps_is_refused_in_time(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ClusterError, match="another process is writing for too long") as refused:
        schema.open_connection(tmp_path / "log.db", "NORMAL", 0.05)
    assert refused.value.failure is Failure.RETRY
    other.close()


async def test_a_file_that_is_no_log_is_fatal(tmp_path: Path) -> None:
    (tmp_path / "log.db").write_bytes(b"something else entirely" * 100)
    cluster = LogCluster("log", ADAPTER.cluster_model(path=tmp_path / "log.db"))
    with pytest.raises(ClusterError, match="not a database") as raised:
        await cluster.connect()
    assert raised.value.failure is Failure.FATAL


async def test_a_folder_that_cannot_be_made_is_unreachable(tmp_path: Path) -> None:
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


async def test_use_before_connect_says_so(tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError, match="connect"):
        await LogCluster("log", ADAPTER.cluster_model(path=tmp_path / "log.db")).topics()


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
async def test_the_durability_asked_for_is_set(open_log: OpenLog, synchronous: str, level: int) -> None:
    cluster = await open_log(synchronous=synchronous)
    pragma = await cluster.store.write(lambda connection: connection.execute("PRAGMA synchronous").fetchone())
    assert pragma == (level,)
