"""Offsets that a loss or a restore left out, in reads, in counts, and when their rows are damaged."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.reading import read
from mqbridge.errors import GapError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store import jumps
from mqbridge.log.store.backup import backup
from mqbridge.log.store.check import check
from mqbridge.log.store.export import export
from mqbridge.log.store.jumps import RESTORED_JUMP, Jump, messages_between, newest, parts_between, write_jumps
from mqbridge.log.store.repair import repair
from mqbridge.log.store.retention import Limits, trim
from mqbridge.log.store.schema import JUMP_LOST, JUMP_RESTORED, partition_id, read_meta, write_meta
from mqbridge.message import Batch, Share
from tests.conformance.arena import numbered, numbers
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.log.store.log_files import change, no_report


@st.composite
def drawn_jumps(draw: st.DrawFn) -> list[Jump]:
    """Draw jumps, in ascending order, some of them side by side."""
    drawn, at = list[Jump](), 0
    for _ in range(draw(st.integers(0, 4))):
        first = at + draw(st.integers(0, 5))
        at = first + draw(st.integers(1, 6))
        drawn.append(Jump(first, at, draw(st.sampled_from([JUMP_LOST, JUMP_RESTORED]))))
    return drawn


@given(drawn_jumps(), st.integers(0, 50), st.integers(0, 50))
def test_offsets_that_a_restore_left_out_do_not_count(drawn: list[Jump], begin: int, end: int) -> None:
    """Only the first offset of a range counts in any case: a reader that is inside a jump has to get the gap."""
    left_out = {offset for jump in drawn if jump.is_restored for offset in range(jump.first, jump.next)}
    inside = {begin} if any(jump.is_restored and jump.first < begin < jump.next for jump in drawn) else set()
    expected = (set(range(begin, end)) - left_out) | (inside & set(range(begin, end)))
    parts = parts_between(drawn, begin, end)
    assert [offset for part in parts for offset in range(*part)] == sorted(expected)
    assert messages_between(drawn, begin, end) == len(expected)


@given(drawn_jumps(), st.integers(0, 20), st.integers(1, 60))
def test_the_newest_messages_are_counted_without_the_offsets_that_were_left_out(drawn: list[Jump], more: int, count: int) -> None:
    end = (drawn[-1].next if drawn else 0) + more
    left_out = {offset for jump in drawn if jump.is_restored for offset in range(jump.first, jump.next)}
    offsets = [offset for offset in range(end) if offset not in left_out]
    expected = offsets[-count] if len(offsets) >= count else 0
    assert newest(drawn, 0, end, count) == expected


@pytest.fixture(autouse=True)
def _slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let jumps be of RESTORED_JUMP."""
    monkeypatch.setattr(jumps, "OFFSETS_PER_S", 0)
    monkeypatch.setattr(jumps.secrets, "randbelow", lambda _: 0)


async def restore(cluster: LogCluster, path: Path) -> None:
    """Close the log and turn its file into a backup without a mark."""

    def mark_as_backup(connection: object) -> None:
        meta = read_meta(connection)  # type: ignore[arg-type]
        assert meta is not None
        write_meta(connection, meta._replace(backup_ms=1))  # type: ignore[arg-type]

    await cluster.store.write(mark_as_backup)
    await cluster.close()
    path.with_name("log.db-mark").unlink()


async def restored_twice(open_log: OpenLog, path: Path) -> LogCluster:
    """Return a log that was restored after its messages 0 and 1, twice after 2, and that has message 3, too."""
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 2))))
    await restore(cluster, path)
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(2, 3))))
    for _ in range(2):
        await restore(cluster, path)
        cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(3, 4))))
    return cluster


FIRST, SECOND = RESTORED_JUMP + 2, 3 * RESTORED_JUMP + 3
"""Offsets of the messages 2 and 3."""


async def test_a_log_that_was_restored_more_than_once_is_read_through(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await restored_twice(open_log, tmp_path / "log.db")
    for begin, expected in ((0, [0, 1, 2, 3]), (2, [2, 3]), (FIRST, [2, 3]), (FIRST + 1, [3]), (2 * RESTORED_JUMP + 3, [3])):
        batches = [batch async for batch in read(cluster, "t", "0", (begin,), (SECOND + 1,))]
        assert [number for batch in batches for number in numbers(batch.messages)] == expected
        units = await cluster.measure("t", "0", (begin,), (SECOND + 1,))
        assert sum(each.count for each in units) == len(expected)
    _, lane = await lane_of(cluster)
    received: list[int] = []
    while len(received) < 4:
        received += numbers((await lane.receive()).messages)
    assert received == [0, 1, 2, 3]
    assert await cluster.operations.backlog("t", "g") == {"0": 4}
    positions = [(await cluster.operations.newest("t", count))["0"] for count in (1, 2, 3, 9)]
    assert positions == [(SECOND,), (FIRST,), (1,), (0,)]
    await cluster.close()
    checked = check(tmp_path / "log.db", no_report)
    assert checked.is_ok
    assert len(checked.partitions[0].notes) == 3


async def test_a_reader_inside_a_jump_gets_the_gap_and_a_small_range(open_log: OpenLog, tmp_path: Path) -> None:
    """It has read messages that were appended after the backup, so others may be lost."""
    cluster = await restored_twice(open_log, tmp_path / "log.db")
    units = await cluster.measure("t", "0", (7,), (SECOND + 1,))
    assert [(each.first, each.count) for each in units] == [((7,), 1), ((FIRST,), 1), ((SECOND,), 1)]
    with pytest.raises(GapError, match="after the backup") as gap:
        await anext(read(cluster, "t", "0", (7,), (8,)))
    assert gap.value.resume == (FIRST,)


async def test_a_damaged_jump_counts_as_lost_messages(
    open_log: OpenLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "log.db"
    await (await restored_twice(open_log, path)).close()
    change(path, f"UPDATE jump SET next = next - 1 WHERE first = 2 AND partition = {partition_id(1, 0)}")
    found = check(path, no_report)
    assert "1 rows of the table `jump` are damaged: the offsets count as lost messages" in found.problems
    assert found.partitions[0].lost == [(2, FIRST)]
    cluster = await open_log()
    with pytest.raises(GapError, match="are lost: their batches are damaged") as gap:
        await anext(read(cluster, "t", "0", (2,), (3,)))
    assert gap.value.resume == (FIRST,)
    assert "1 rows of offsets that were left out are damaged" in caplog.text
    await cluster.close()
    assert [line for line in repair(path, no_report) if "left out" in line]
    assert check(path, no_report).problems == []


async def test_a_gap_before_a_jump_ends_where_the_jump_begins(open_log: OpenLog, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    await (await restored_twice(open_log, path)).close()
    change(path, "UPDATE batch SET crc = ~crc WHERE base = 0")
    cluster = await open_log()
    with pytest.raises(GapError, match="offsets 0 to 1 are lost") as gap:
        await anext(read(cluster, "t", "0", (0,), (1,)))
    assert gap.value.resume == (2,)


async def test_an_export_keeps_jumps(open_log: OpenLog, tmp_path: Path) -> None:
    path, exported = tmp_path / "log.db", tmp_path / "exported.db"
    await (await restored_twice(open_log, path)).close()
    summary = export(path, exported, (), no_report, is_forced=False)
    assert (summary.messages, summary.missing, summary.notes) == (4, 0, [])
    cluster = await open_log(path=exported)
    tail = (await cluster.bounds("t"))["0"].next
    batches = [batch async for batch in read(cluster, "t", "0", (0,), tail)]
    assert [number for batch in batches for number in numbers(batch.messages)] == [0, 1, 2, 3]


async def test_an_export_keeps_a_loss_before_a_jump(open_log: OpenLog, tmp_path: Path) -> None:
    """Also if the row with the bounds is damaged: then the bounds are those of the batches and the jumps."""
    path, exported = tmp_path / "log.db", tmp_path / "exported.db"
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 2))))
    id_ = partition_id(1, 0)
    await cluster.store.write(
        lambda connection: write_jumps(connection, [(id_, Jump(2, 5, JUMP_LOST)), (id_, Jump(5, 9, JUMP_RESTORED))])
    )
    await cluster.close()
    change(path, "UPDATE partition SET crc = ~crc")
    export(path, exported, (), no_report, is_forced=False)
    cluster = await open_log(path=exported)
    assert (await cluster.bounds("t"))["0"].next > (9,)
    with pytest.raises(GapError, match="offsets 2 to 4 were acknowledged and are lost"):
        await anext(read(cluster, "t", "0", (2,), (9,)))


async def test_a_backup_counts_messages_and_no_offsets_that_were_left_out(open_log: OpenLog, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    cluster = await restored_twice(open_log, path)
    assert backup(path, tmp_path / "one", no_report, is_forced=False).messages == 4
    for _ in range(2):
        await cluster.store.write(trim, partition_id(1, 0), Limits(1, None))
    assert (await cluster.bounds("t"))["0"].first > (RESTORED_JUMP,)
    assert backup(path, tmp_path / "two", no_report, is_forced=False).messages == 1


async def test_bounds_that_are_rebuilt_lie_behind_all_jumps(open_log: OpenLog, tmp_path: Path) -> None:
    """Offsets that were left out are not given to new messages when the row with the bounds is damaged."""
    path = tmp_path / "log.db"
    cluster = await restored_twice(open_log, path)
    await restore(cluster, path)
    cluster = await open_log()
    tail = (await cluster.bounds("t"))["0"].next
    await cluster.close()
    change(path, "UPDATE partition SET crc = ~crc")
    assert (await (await open_log()).bounds("t"))["0"].next == tail
