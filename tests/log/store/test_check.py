"""A check finds every kind of damage, and a repair what the batches tell."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from mqbridge.errors import ClusterError
from mqbridge.log.store.check import check
from mqbridge.log.store.connection import PAGE_BYTES
from mqbridge.log.store.opening import open_log
from mqbridge.log.store.repair import repair
from mqbridge.log.store.settings import LogSettings
from tests.log.store.log_files import Stored, change, flip, hide_batches, no_report, open_cluster, read_log, write_log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def stored(path: Path) -> Stored:
    """Write a log; return its messages."""
    return write_log(path)


def flip_in(path: Path, payload: bytes) -> None:
    """Change a byte of a message, also where a free page still has it."""
    for found in re.finditer(re.escape(payload[:100]), path.read_bytes()):
        flip(path, found.start() + 50)


def test_a_healthy_log_has_no_problems_and_is_not_changed(path: Path, stored: Stored) -> None:
    before = path.read_bytes()
    result = check(path, no_report)
    assert (result.is_ok, result.notes, result.positions) == (True, [], 3)
    assert sum(each.messages for each in result.partitions) == len(stored)
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["log.db", "log.db-mark"]
    assert repair(path, no_report) == ["rebuilt all indexes from their tables"]
    assert read_log(path) == stored


def test_a_damaged_message_is_named(path: Path, stored: Stored) -> None:
    (topic, partition, offset), payload = next((key, payload) for key, payload in stored.items() if len(payload) > 500)
    flip_in(path, payload)
    result = check(path, no_report)
    [damaged] = [each for each in result.partitions if not each.is_ok]
    assert (damaged.topic, damaged.partition) == (topic, partition)
    [(begin, end)] = damaged.lost
    assert begin <= offset < end
    assert damaged.problems == [f"the batch of offsets {begin} to {end - 1} is damaged: its checksum (CRC32C) is wrong"]
    assert stored.keys() - read_log(path).keys() == {(topic, partition, lost) for lost in range(begin, end)}


def test_rows_that_the_index_hides_are_readable_after_a_repair(path: Path, stored: Stored) -> None:
    hide_batches(path, "base < 100 OR base > 300")
    assert read_log(path) != stored
    result = check(path, no_report)
    assert not result.is_ok
    hidden = sum(each.hidden for each in result.partitions)
    assert hidden == len(stored) - len(read_log(path))
    assert [each.lost for each in result.partitions] == [[]] * 4
    repair(path, no_report)
    assert check(path, no_report).is_ok
    assert read_log(path) == stored


def test_a_missing_index_is_made_anew(path: Path, stored: Stored) -> None:
    change(path, "DROP INDEX batch_base", "DROP INDEX batch_sender")
    assert check(path, no_report).problems == ["the index batch_base is missing", "the index batch_sender is missing"]
    assert repair(path, no_report)[:2] == ["made the missing index batch_base", "made the missing index batch_sender"]
    assert check(path, no_report).is_ok
    assert read_log(path) == stored


def test_damaged_bounds_and_positions_are_repaired(path: Path, stored: Stored) -> None:
    change(
        path,
        "UPDATE partition SET next = next + 1000 WHERE id & 1048575 = 0",
        "DELETE FROM partition WHERE id & 1048575 = 1",
        "UPDATE position SET next = 5 WHERE partition & 1048575 = 2",
        "INSERT INTO lease VALUES (x'00', 1, 'm')",
        "INSERT INTO member VALUES ('g', 1, 'm', 'beat', 'd', 1, 1)",
    )
    result = check(path, no_report)
    assert [bool(each.problems) for each in result.partitions] == [True, True, False, True]
    assert len(result.problems) == 3
    done = repair(path, no_report)
    assert [line.split(" partition")[0] for line in done[1:4]] == [
        line.split(" partition")[0] for line in done[1:4] if line.startswith("wrote the bounds")
    ]
    assert any("dropped 1 damaged committed offsets" in line for line in done)
    assert len([line for line in done if "damaged rows of the table" in line]) == 2
    result = check(path, no_report)
    assert (result.is_ok, result.positions) == (True, 2)
    assert read_log(path) == stored


def test_a_wrong_size_is_repaired(path: Path, stored: Stored) -> None:
    change(path, "DELETE FROM batch WHERE partition = 1 << 20 AND base = (SELECT min(base) FROM batch WHERE partition = 1 << 20)")
    lost = check(path, no_report).partitions[0].lost
    assert lost[0].begin == 0
    repair(path, no_report)
    assert check(path, no_report).partitions[0].lost == lost, "a repair does not forget what is lost"


def test_a_lost_wal_is_noticed(path: Path, stored: Stored) -> None:
    copy = path.read_bytes()
    more = write_log(path, topics={"orders": 3}, sends=10, seed=9)
    path.write_bytes(copy)
    result = check(path, no_report)
    [problem] = result.problems
    assert result.lost_newest == len(more)
    assert problem.startswith(
        f"the newest {len(more)} acknowledged messages are missing: the WAL was lost or damaged, or an older"
    )
    read_log(path)
    result = check(path, no_report)
    assert result.is_ok
    notes = [note for each in result.partitions for note in each.notes]
    assert notes
    assert all("were lost with the WAL" in note for note in notes)


def test_a_damaged_topic_meta_and_batch_without_a_topic_are_named(path: Path, stored: Stored) -> None:
    change(path, "UPDATE topic SET name = 'x' WHERE id = 1", "DELETE FROM topic WHERE id = 2", "UPDATE meta SET generation = 7")
    result = check(path, no_report)
    assert [text.split(" is damaged")[0] for text in result.problems[:2]] == [
        "the row of the topic with id 1",
        "the table `meta`",
    ]
    last = result.partitions[-1]
    assert (last.topic, last.problems[-1]) == ("topic-2", "its messages belong to no topic")


@pytest.mark.parametrize("kept", [0.9, 0.3])
def test_a_truncated_file_has_problems(path: Path, stored: Stored, kept: float) -> None:
    os.truncate(path, int(path.stat().st_size * kept) // PAGE_BYTES * PAGE_BYTES)
    assert not check(path, no_report).is_ok
    with pytest.raises(ClusterError, match="mqbridge log export"):
        repair(path, no_report)


def test_pages_that_cannot_be_read_cost_only_their_rows(path: Path) -> None:
    stored = write_log(path, topics={"t": 1}, sends=200, size=60)
    size = path.stat().st_size
    text = path.read_bytes()
    leaves = [page for page in range(size // PAGE_BYTES) if text[page * PAGE_BYTES] == 0x0D and page > 8]
    flip(path, leaves[len(leaves) // 2] * PAGE_BYTES, 8)
    result = check(path, no_report)
    [partition] = result.partitions
    lost = sum(end - begin for begin, end in partition.lost)
    assert any("SQLite cannot read up to" in problem for problem in result.problems)
    assert 0 < lost < len(stored) / 4
    assert partition.messages == len(stored) - lost


def test_a_file_without_its_header_is_a_problem_and_not_an_error(path: Path, stored: Stored) -> None:
    flip(path, 0, 16)
    result = check(path, no_report)
    assert not result.is_ok
    assert "SQLite cannot read" in result.problems[0]


def test_a_schema_that_is_no_text_is_a_problem_and_not_an_error(path: Path, stored: Stored) -> None:
    at = path.read_bytes().index(b"CREATE TABLE batch")
    flip(path, at, 7)
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, b"\xea\xff", at + 1)
    os.close(fd)
    assert not check(path, no_report).is_ok
    for job in (lambda: repair(path, no_report), lambda: open_log(LogSettings(path=path))):
        with pytest.raises(ClusterError, match="mqbridge log export"):
            job()


def test_an_open_log_is_not_repaired(path: Path, stored: Stored) -> None:
    async def run() -> None:
        cluster = await open_cluster(path)
        assert (await asyncio.to_thread(check, path, no_report)).is_ok
        with pytest.raises(ClusterError, match="another process has the log"):
            repair(path, no_report)
        await cluster.close()

    asyncio.run(run())
    with pytest.raises(ClusterError, match="there is no log"):
        repair(path.with_name("missing.db"), no_report)
    assert not path.with_name("missing.db-mark").exists()
