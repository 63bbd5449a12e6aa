"""Everything that copies, checks or repairs a log knows the formats of units, and the senders beside them."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.store.backup import backup
from mqbridge.log.store.check import check
from mqbridge.log.store.export import export
from mqbridge.log.store.repair import repair
from mqbridge.message import Batch, Share
from tests.conformance.arena import numbered
from tests.log.line_units import LINES, SDK, install, sent_by_sdk
from tests.log.store.log_files import change, flip, hide_batches, no_report, open_cluster, read_log

_ROWS = "SELECT partition, base, count, bytes, format, sender, sequence, crc, records FROM batch ORDER BY partition, base"


@pytest.fixture(autouse=True)
def line_format(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a closed log with units and messages of a sender, and messages of nobody."""
    path = tmp_path / "log.db"
    asyncio.run(_write(path))
    return path


async def _write(path: Path) -> None:
    cluster = await open_cluster(path)
    await cluster.create("t", 2)
    for name, partition in (("sdk", 0), ("sdk-\u00fc", 1)):
        outbound = await cluster.outbound(OutboundSpec("t", sender=name, stamp_origin=False, keep_units=True))
        for first in range(0, 60, 6):
            await outbound.send(partition, sent_by_sdk((first, 3), (first + 3, 1)))
            await outbound.send(partition, Share(Batch.of(numbered(first + 4, first + 6), SDK)))
    plain = await cluster.outbound(OutboundSpec("t", stamp_origin=False, keep_units=True))
    await plain.send(0, Share(Batch.of(numbered(60, 62))))
    await cluster.close()


def rows(path: Path) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    found = connection.execute(_ROWS).fetchall()
    connection.close()
    return found


def problems(path: Path) -> list[str]:
    result = check(path, no_report)
    return result.problems + [problem for each in result.partitions for problem in each.problems]


def test_rows_tell_format_sender_and_sequence(log: Path) -> None:
    found = [row[1:3] + row[4:7] for row in rows(log)]
    assert found[:4] == [
        (0, 3, LINES, "sdk", 2),
        (3, 1, LINES, "sdk", 3),
        (4, 2, None, "sdk", 5),
        (6, 3, LINES, "sdk", 8),
    ]
    assert found[30] == (60, 2, None, None, None)
    assert problems(log) == []


@pytest.mark.parametrize("copies", ["backup", "export"])
def test_copies_have_the_same_rows(log: Path, tmp_path: Path, copies: str) -> None:
    copy = tmp_path / "copy.db"
    if copies == "backup":
        backup(log, copy, no_report, is_forced=False)
    else:
        summary = export(log, copy, (), no_report, is_forced=False)
        assert (summary.damaged, summary.missing, summary.notes) == (0, 0, [])
    assert rows(copy) == rows(log)
    assert problems(copy) == []


@pytest.mark.parametrize(
    "damage",
    ["format = 'lines.other'", "format = NULL", "sender = 'sdl'", "sender = NULL", "sequence = sequence + 1", "sequence = NULL"],
)
def test_a_damaged_value_beside_a_unit_is_found_and_not_copied(log: Path, tmp_path: Path, damage: str) -> None:
    before = read_log(log)
    change(log, f"UPDATE batch SET {damage} WHERE partition % 2 = 0 AND base = 6")
    assert any("offsets 6 to 8 is damaged" in problem for problem in problems(log))
    lost = {("t", 0, offset) for offset in (6, 7, 8)}
    assert before.keys() - read_log(log).keys() == lost
    summary = export(log, tmp_path / "copy.db", (), no_report, is_forced=False)
    assert summary.damaged == 1
    assert before.keys() - read_log(tmp_path / "copy.db").keys() == lost


def test_a_repaired_log_finds_its_senders_again(log: Path) -> None:
    expected = rows(log)
    hide_batches(log, "base < 20")
    change(log, "DROP INDEX batch_sender")
    assert any("batch_sender" in problem for problem in problems(log))
    done = repair(log, no_report)
    assert "made the missing index batch_sender" in done
    assert rows(log) == expected
    assert problems(log) == []
    assert asyncio.run(_resume(log)) == {0: (59,)}


def test_a_sender_is_found_without_its_index(log: Path) -> None:
    change(log, "DROP INDEX batch_sender")
    assert asyncio.run(_resume(log)) == {0: (59,)}


async def _resume(log: Path) -> object:
    cluster = await open_cluster(log)
    outbound = await cluster.outbound(OutboundSpec("t", sender="sdk", stamp_origin=False, keep_units=True))
    try:
        return await outbound.resume(SDK)
    finally:
        await cluster.close()


def test_units_of_damaged_pages_are_left_out_and_the_others_copied(log: Path, tmp_path: Path) -> None:
    expected = rows(log)
    data = log.read_bytes()
    at = data.index(b"6\n7\n8")
    flip(log, at)
    summary = export(log, tmp_path / "copy.db", (), no_report, is_forced=False)
    assert summary.damaged == 1
    assert len(rows(tmp_path / "copy.db")) == len(expected) - 1
    assert set(rows(tmp_path / "copy.db")) < set(expected)
