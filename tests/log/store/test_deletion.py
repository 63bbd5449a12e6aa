"""Deleted topics: gone at once for everybody, their batches a little later, and their ids for ever."""

import asyncio
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reading import read
from mqbridge.errors import ClusterError, Failure, GapError, TopicChanged
from mqbridge.log.adapter import outbound as outbound_module
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store import database, deletion, retention
from mqbridge.log.store.backup import backup
from mqbridge.log.store.check import check
from mqbridge.log.store.check_result import CheckResult
from mqbridge.log.store.export import export
from mqbridge.log.store.extents import Extent, extent_of, write_extents
from mqbridge.log.store.repair import repair
from mqbridge.log.store.schema import DELETED_BYTES, deleted_bytes
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.net.tasks import spawn
from tests.conformance.arena import numbered, numbers
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.log.store.log_files import change, no_report
from tests.patience import PATIENCE_S


def rows(path: Path, query: str, *arguments: object) -> list[Any]:
    connection = sqlite3.connect(path)
    found = connection.execute(query, arguments).fetchall()
    connection.close()
    return found


async def send(cluster: LogCluster, topic: str, begin: int, end: int, partitions: int = 1) -> None:
    await cluster.create(topic, partitions)
    outbound = await cluster.outbound(OutboundSpec(topic))
    for number in range(begin, end):
        assert not (await outbound.send(0, Share(Batch.of(numbered(number, number + 1))))).failures
    await outbound.close()


async def stored(cluster: LogCluster, topic: str) -> list[int]:
    """Return the numbers of all messages in partition 0, read from offset 0 on."""
    end = (await cluster.bounds(topic, "0"))["0"].next
    return numbers([m async for batch in read(cluster, topic, "0", (0,), end) for m in batch.messages])


def problems(path: Path) -> CheckResult:
    result = check(path, no_report)
    assert result.problems == []
    assert not any(each.problems or each.lost for each in result.partitions)
    return result


async def test_nothing_of_a_deleted_topic_is_left_but_its_id(open_log: OpenLog, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    cluster = await open_log()
    await send(cluster, "other", 0, 3)
    await send(cluster, "t", 0, 700, partitions=3)
    inbound, lane = await lane_of(cluster)
    lane.acknowledge(await lane.receive())
    await inbound.close()
    await cluster.delete("t")
    await cluster.delete("t")
    assert await cluster.topics() == ["other"]
    assert await cluster.describe("t") is None
    (deleted_id,) = {id_ >> 20 for (id_,) in rows(path, "SELECT id FROM partition WHERE bytes = ?", deleted_bytes("t"))}
    for table, column in (
        ("position", "partition >> 20"),
        ("lease", "partition >> 20"),
        ("jump", "partition >> 20"),
        ("member", "topic"),
        ("topic", "id"),
    ):
        assert rows(path, f"SELECT * FROM {table} WHERE {column} = ?", deleted_id) == []
    left = rows(path, "SELECT format, records FROM batch WHERE partition >> 20 = ?", deleted_id)
    assert left == [("log.deleted", b"")], "the newest row of the file keeps its id"
    await send(cluster, "t", 0, 2)
    assert await stored(cluster, "t") == [0, 1]
    assert await cluster.operations.groups("t") == []
    (new_id,) = rows(path, "SELECT id FROM topic WHERE name = 't'")[0]
    assert new_id > deleted_id
    await cluster.delete("t")
    problems(path)
    await cluster.close()
    problems(path)


async def test_an_id_is_not_given_again_after_a_restart(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = await open_log()
    await send(cluster, "t", 0, 5)
    await cluster.delete("t")
    await cluster.close()
    cluster = await open_log()
    await send(cluster, "u", 0, 2)
    await cluster.close()
    await (await open_log()).close()
    assert rows(tmp_path / "log.db", "SELECT id, name FROM topic") == [(2, "u")]
    assert "misses" not in caplog.text
    problems(tmp_path / "log.db")


async def test_a_topic_that_is_made_again_has_none_of_its_old_offsets(open_log: OpenLog) -> None:
    """A position that was kept elsewhere would skip as many of the new messages."""
    cluster = await open_log()
    await send(cluster, "t", 0, 5, partitions=2)
    await cluster.delete("t")
    await send(cluster, "t", 10, 16)
    await cluster.create("t", 2)
    assert (await cluster.bounds("t", "1"))["1"].next > (1 << 32,)
    assert await stored(cluster, "t") == [10, 11, 12, 13, 14, 15], "a reader from the beginning has missed nothing"
    inbound, lane = await lane_of(cluster)
    assert numbers((await lane.receive()).messages)[0] == 10
    await inbound.close()
    reader = await cluster.reader("t", "0", (3,))
    with pytest.raises(GapError):
        await reader.receive()


async def test_a_topic_of_another_name_than_the_deleted_ones_begins_at_zero(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    await send(cluster, "t", 0, 5)
    await cluster.delete("t")
    await cluster.create("u", 1)
    assert (await cluster.bounds("u", "0"))["0"].next == (0,)
    change(tmp_path / "log.db", f"UPDATE partition SET bytes = {DELETED_BYTES} WHERE bytes < 0")
    await cluster.create("v", 1)
    assert (await cluster.bounds("v", "0"))["0"].next > (1 << 32,), "an earlier version did not keep which topic was deleted"


async def test_an_outbound_of_a_deleted_topic_does_not_resume_in_the_new_one(open_log: OpenLog) -> None:
    cluster, other = await open_log(), await open_log()
    await cluster.create("t", 1)
    source = Partition("there", "orders", "0", 0)
    plain, named = OutboundSpec("t"), OutboundSpec("t", sender="sdk")
    outbounds = [await each.outbound(spec) for each in (cluster, other) for spec in (plain, named)]
    await cluster.delete("t")
    for made_again in (False, True):
        if made_again:
            await cluster.create("t", 1)
            await (await cluster.outbound(named)).send(0, Share(Batch.of(numbered(0, 1), source)))
        for outbound in outbounds:
            with pytest.raises(TopicChanged, match="deleted"):
                await outbound.resume(source)


async def test_a_topic_that_is_deleted_during_a_resume_is_noticed(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)

    async def replace(*_: object) -> dict[int, tuple[int]]:
        await cluster.delete("t")
        await cluster.create("t", 1)
        return {0: (9,)}

    monkeypatch.setattr(outbound_module, "last_stored", replace)
    with pytest.raises(TopicChanged, match="deleted"):
        await outbound.resume(Partition("there", "orders", "0", 0))


async def test_a_member_of_a_deleted_topic_ends(open_log: OpenLog) -> None:
    """It was taken for dead, or the topic was deleted while it joined."""
    cluster = await open_log(lease="0.4s")
    await send(cluster, "t", 0, 3)
    inbound, _ = await lane_of(cluster)
    await cluster.store.write(lambda connection: connection.execute("DELETE FROM member"))
    await cluster.delete("t")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(TopicChanged, match="'t', which was deleted"):
            await anext(inbound.lanes())
    await inbound.close()
    cluster.check_inbound = no_check  # type: ignore[method-assign]
    with pytest.raises(TopicChanged, match="'t', which was deleted"):
        await cluster.inbound(InboundSpec(("t",), "g"))


async def no_check(_: InboundSpec) -> None:
    pass


async def test_readers_and_outbounds_of_a_deleted_topic_end(open_log: OpenLog) -> None:
    """Those of another process learn it from their next poll."""
    cluster, other = await open_log(), await open_log()
    outbound = await outbound_of(cluster)
    outbounds = [outbound, await outbound_of(other)]
    await outbound.send(0, Share(Batch.of(numbered(0, 3))))
    readers = [await each.reader("t", "0", (3,)) for each in (cluster, other)]
    waiting = [spawn(reader.receive(), "receive") for reader in readers]
    await asyncio.sleep(0.05)
    assert not any(task.done() for task in waiting)
    await cluster.delete("t")
    async with asyncio.timeout(PATIENCE_S):
        for task in waiting:
            with pytest.raises(TopicChanged, match="deleted"):
                await task
        for each in outbounds:
            with pytest.raises(TopicChanged, match="deleted"):
                await each.send(0, Share(Batch.of(numbered(3, 4))))
    await cluster.create("t", 1)
    for reader in readers:
        with pytest.raises(TopicChanged):
            await reader.receive()
        await reader.close()


async def test_a_deletion_between_two_sends_of_one_transaction_concerns_one_topic(open_log: OpenLog) -> None:
    cluster = await open_log()
    gone, kept = await outbound_of(cluster), await outbound_of(cluster, "u")
    await cluster.delete("t")
    sends = [outbound.send(0, Share(Batch.of(numbered(0, 1)))) for outbound in (kept, gone, kept)]
    assert not (await sends[0]).failures
    with pytest.raises(TopicChanged):
        await sends[1]
    assert (await sends[2]).positions == [(1,)]


async def test_a_topic_with_members_is_not_deleted(open_log: OpenLog) -> None:
    cluster = await open_log()
    await send(cluster, "t", 0, 3)
    inbound, lane = await lane_of(cluster)
    other = await open_log()
    with pytest.raises(ClusterError, match="'t' is read by members of 'g'") as raised:
        await other.delete("t")
    assert raised.value.failure is Failure.FATAL
    assert numbers((await lane.receive()).messages) == [0, 1, 2]
    await inbound.close()
    await other.delete("t")
    assert await cluster.topics() == []


async def test_a_member_that_was_taken_for_dead_ends_if_one_of_its_topics_is_gone(open_log: OpenLog) -> None:
    """Whoever runs it learns that it does not read all that it should; another one may go on with the topics that are left."""
    cluster = await open_log(lease="0.4s")
    await send(cluster, "t", 0, 3)
    await send(cluster, "u", 0, 3)
    inbound = await cluster.inbound(InboundSpec(("t", "u"), "g"))
    lanes = inbound.lanes()
    by_topic = {lane.partition.topic: lane for lane in [await anext(lanes), await anext(lanes)]}
    await cluster.store.write(lambda connection: connection.execute("DELETE FROM member"))
    await cluster.delete("t")
    async with asyncio.timeout(PATIENCE_S):
        batch = await by_topic["u"].receive()
        by_topic["u"].acknowledge(batch)
        with pytest.raises(TopicChanged, match="'t', which was deleted"):
            [_ async for _ in lanes]
    await inbound.close()
    assert await cluster.committed("u", "g") == {"0": (3,)}


async def test_a_deletion_that_was_interrupted_is_finished_by_the_next_start(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    cluster = await open_log()
    await send(cluster, "t", 0, 600)
    await send(cluster, "u", 0, 3)
    interrupt_deletions(monkeypatch)
    with pytest.raises(ClusterError, match="the disk is gone"):
        await cluster.delete("t")
    assert await cluster.topics() == ["u"]
    monkeypatch.undo()
    assert rows(path, "SELECT count(*) FROM batch WHERE partition >> 20 = 1") == [(344,)]
    problems(path)
    export(path, tmp_path / "export.db", (), no_report, is_forced=False)
    assert rows(tmp_path / "export.db", "SELECT count(*) FROM batch") == [(3,)]
    await cluster.close()
    cluster = await open_log()
    await no_rows_of_topic(path, 1)
    await cluster.close()


async def test_retention_leaves_a_deletion_in_progress_alone(open_log: OpenLog, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    cluster = await open_log()
    await send(cluster, "t", 0, 600)
    await send(cluster, "u", 0, 3)
    outbound = await outbound_of(cluster)
    store, everything = cluster.store, retention.Limits(None, 1 << 60)
    (partition,) = await store.write(deletion.begin, store.observer, "t")
    for limits in (everything, retention.Limits(0, None)):
        assert await store.write(retention.trim, partition, limits) == (0, True)
    assert (await store.read(extent_of, partition)).is_deleted
    with pytest.raises(TopicChanged):
        await outbound.send(0, Share(Batch.of(numbered(0, 1))))
    await store.write(write_extents, [(partition, Extent(256, 600, -1000))])
    await cluster.close()
    await cluster.connect()
    await no_rows_of_topic(path, 1)
    await cluster.close()
    problems(path)


async def test_a_deletion_that_was_interrupted_is_finished_when_it_is_repeated(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.db"
    cluster = await open_log()
    await send(cluster, "t", 0, 600)
    await send(cluster, "u", 0, 3)
    interrupt_deletions(monkeypatch)
    with pytest.raises(ClusterError, match="the disk is gone"):
        await cluster.delete("t")
    monkeypatch.undo()
    assert rows(path, "SELECT count(*) FROM batch WHERE partition >> 20 = 1") == [(344,)]
    await cluster.delete("t")
    assert rows(path, "SELECT count(*) FROM batch WHERE partition >> 20 = 1") == [(0,)]


async def test_a_deletion_that_was_interrupted_is_finished_by_the_next_pass(
    open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another topic was deleted meanwhile, and if what is left cannot be found at first."""
    path = tmp_path / "log.db"
    monkeypatch.setattr(database, "RETENTION_INTERVAL_S", 0.3)
    cluster = await open_log()
    for topic, end in (("t", 600), ("u", 3), ("v", 1)):
        await send(cluster, topic, 0, end)
    with monkeypatch.context() as patched:
        interrupt_deletions(patched)
        with pytest.raises(ClusterError, match="the disk is gone"):
            await cluster.delete("t")
    with monkeypatch.context() as patched:
        patched.setattr(deletion, "find_left", interrupt)
        await cluster.delete("u")
        await asyncio.sleep(0.5)
        assert rows(path, "SELECT count(*) FROM batch WHERE partition >> 20 = 1") == [(344,)]
    await no_rows_of_topic(path, 1)


def interrupt(*_: object) -> bool:
    raise ClusterError("the disk is gone")


def interrupt_deletions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let deletions fail after their first step."""
    original, calls = deletion.delete_batches, 0

    def fail_later(*arguments: Any) -> bool:
        nonlocal calls
        calls += 1
        return interrupt() if calls > 1 else original(*arguments)

    monkeypatch.setattr(deletion, "delete_batches", fail_later)


async def no_rows_of_topic(path: Path, topic_id: int) -> None:
    """Wait until the log has deleted all batches of a topic."""
    async with asyncio.timeout(PATIENCE_S):
        while rows(path, "SELECT count(*) FROM batch WHERE partition >> 20 = ?", topic_id) != [(0,)]:
            await asyncio.sleep(0.01)


async def test_polls_find_new_messages_after_the_newest_ones_were_deleted(open_log: OpenLog) -> None:
    """Polls look for batches with higher ids than before, so no id may be given again."""
    cluster, other = await open_log(), await open_log(poll="1ms")
    await send(cluster, "u", 0, 1)
    reader = await other.reader("u", "0", (1,))
    for number in range(1, 30):
        await send(cluster, "t", 0, 3)
        waiting = spawn(reader.receive(), "receive")
        await asyncio.sleep(0.005)
        await cluster.delete("t")
        await send(cluster, "u", number, number + 1)
        async with asyncio.timeout(PATIENCE_S):
            batch = await waiting
        assert batch is not None
        assert numbers(batch.messages) == [number]
    await reader.close()


async def test_copies_of_a_log_know_what_was_deleted(open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log.db"
    cluster = await open_log()
    await send(cluster, "t", 0, 5)
    await send(cluster, "u", 0, 3)
    await cluster.delete("t")
    backup(path, tmp_path / "backup.db", no_report, is_forced=False)
    summary = export(path, tmp_path / "export.db", (), no_report, is_forced=False)
    assert (summary.messages, summary.missing, summary.notes) == (3, 0, [])
    await cluster.close()
    for copy in ("backup.db", "export.db"):
        assert [each.topic for each in problems(tmp_path / copy).partitions] == ["u"]
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        shutil.copyfile(tmp_path / copy, path)
        cluster = await open_log()
        assert await cluster.topics() == ["u"]
        await cluster.create("v", 1)
        assert rows(path, "SELECT id FROM topic WHERE name = 'v'") == [(3,)]
        await cluster.close()
        problems(path)
    assert "misses its newest" not in caplog.text
    assert repair(path, no_report) == ["rebuilt all indexes from their tables"]


async def test_a_topic_that_was_lost_with_the_wal_is_reported_once(open_log: OpenLog, tmp_path: Path) -> None:
    """The rows of its partitions, which are made when the log is opened, tell that its loss is known."""
    path = tmp_path / "log.db"
    cluster = await open_log()
    await send(cluster, "t", 0, 1)
    await cluster.close()
    cluster = await open_log()
    before = path.read_bytes()
    await cluster.delete("t")
    await send(cluster, "t", 0, 7)
    marked = (tmp_path / "log.db-mark").read_bytes()
    await cluster.close()
    path.write_bytes(before)
    (tmp_path / "log.db-mark").write_bytes(marked)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    assert "7 acknowledged messages are missing" in "".join(check(path, no_report).problems)
    for _ in range(2):
        await (await open_log()).close()
        assert check(path, no_report).problems == []


async def test_a_part_of_a_log_knows_nothing_of_deleted_topics(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    await send(cluster, "t", 0, 5)
    await send(cluster, "u", 0, 3)
    await cluster.delete("t")
    summary = export(tmp_path / "log.db", tmp_path / "part.db", ("u",), no_report, is_forced=False)
    assert summary.messages == 3
    assert rows(tmp_path / "part.db", "SELECT id FROM partition") == [(2 << 20,)]


async def test_a_backup_from_before_the_deletion_brings_the_topic_back(open_log: OpenLog, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    cluster = await open_log()
    await send(cluster, "t", 0, 5)
    backup(path, tmp_path / "backup.db", no_report, is_forced=False)
    await cluster.delete("t")
    await cluster.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(tmp_path / "backup.db", path)
    cluster = await open_log()
    assert numbers([m async for batch in read(cluster, "t", "0", (0,), (5,)) for m in batch.messages]) == list(range(5))


async def test_a_size_that_damage_made_negative_deletes_nothing(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log()
    await send(cluster, "t", 0, 5)
    await cluster.close()
    change(tmp_path / "log.db", "UPDATE partition SET bytes = -1")
    cluster = await open_log()
    await asyncio.sleep(0.1)
    assert numbers([m async for batch in read(cluster, "t", "0", (0,), (5,)) for m in batch.messages]) == list(range(5))


async def test_a_large_topic_is_deleted_in_small_steps(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for _ in range(10):
        await outbound.send(0, Share(Batch.of([Message(bytes(100_000))])))
    monkeypatch.setattr(deletion, "DROPPED_BYTES", 250_000)
    steps: list[bool] = []
    original = deletion.delete_batches

    def count(*arguments: Any) -> bool:
        steps.append(original(*arguments))
        return steps[-1]

    monkeypatch.setattr(deletion, "delete_batches", count)
    await cluster.delete("t")
    assert steps == [False, False, False, False, True]


async def test_a_group_is_deleted_in_one_topic(open_log: OpenLog) -> None:
    cluster = await open_log()
    for topic in ("t", "u"):
        await send(cluster, topic, 0, 3)
        inbound, lane = await lane_of(cluster, topic=topic)
        lane.acknowledge(await lane.receive())
        await inbound.close()
    inbound, _ = await lane_of(cluster)
    with pytest.raises(ClusterError, match="then delete the group"):
        await cluster.operations.delete_group("t", "g")  # type: ignore[attr-defined]
    await inbound.close()
    await cluster.operations.delete_group("t", "g")  # type: ignore[attr-defined]
    assert await cluster.committed("t", "g") == {}
    assert await cluster.committed("u", "g") == {"0": (3,)}
