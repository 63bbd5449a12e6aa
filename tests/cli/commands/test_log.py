"""`mqbridge log`: backup, check and export of embedded logs."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from mqbridge.cli.process import long_job
from mqbridge.log.store.opening import open_log
from mqbridge.log.store.settings import LogSettings
from tests.cli.conftest import Invoke
from tests.log.store.log_files import Stored, change, hide_batches, read_log, write_log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def stored(log: Path) -> Stored:
    """Write a log; return its messages."""
    return write_log(log, sends=30)


def test_a_backup_says_what_it_has(invoke: Invoke, log: Path, stored: Stored, tmp_path: Path) -> None:
    answer = invoke("log", "backup", log, tmp_path / "b.db")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err.startswith(f"copied 2 topics, 4 partitions, {len(stored)} messages, ")
    answer = invoke("log", "backup", log, tmp_path / "b.db")
    assert (answer.code, "Name a new file, or replace this one by --force" in answer.err) == (2, True)
    answer = invoke("log", "backup", f"log://{log}", tmp_path / "b.db", "--force", "--json")
    assert answer.json.pop("seconds") > 0
    fields = {"log": str(log), "backup": str(tmp_path / "b.db"), "topics": 2, "partitions": 4, "messages": len(stored)}
    assert answer.json.items() >= fields.items()
    assert read_log(tmp_path / "b.db") == stored
    answer = invoke("log", "backup", tmp_path / "missing.db", tmp_path / "c.db")
    assert (answer.code, "there is no log" in answer.err) == (3, True)


def test_a_check_of_a_healthy_log(invoke: Invoke, log: Path, stored: Stored) -> None:
    answer = invoke("log", "check", log)
    assert answer.code == 0
    assert answer.out.splitlines()[0].split() == ["topic", "partition", "first", "next", "intact", "hidden", "lost", "offsets"]
    assert f"nothing is wrong ({len(stored)} messages, " in answer.err
    fields = invoke("log", "check", log, "--json").json
    assert (fields["ok"], fields["problems"], fields["repaired"]) == (True, [], [])
    assert sum(each["messages"] for each in fields["partitions"]) == len(stored)


def test_a_check_of_a_damaged_log_and_its_repair(invoke: Invoke, log: Path, stored: Stored) -> None:
    hide_batches(log, "base < 10")
    change(log, "UPDATE batch SET crc = 1 WHERE rowid = 1")
    [(number, base, count)] = rows(log, "SELECT partition & 1048575, base, count FROM batch WHERE rowid = 1")
    answer = invoke("log", "check", log)
    assert answer.code == 4
    assert f"the batch of offsets {base} to {base + count - 1} is damaged" in answer.err
    assert "Stop the processes that have the log open, then try `mqbridge log check --repair`" in answer.err
    fields = invoke("log", "check", log, "-J")
    assert (fields.code, fields.json["ok"]) == (4, False)
    lost = [(each["partition"], each["lost"]) for each in fields.json["partitions"] if each["lost"]]
    assert lost == [(number, [{"begin": base, "end": base + count}])]
    answer = invoke("log", "check", log, "--repair")
    assert (answer.code, "repaired: rebuilt all indexes from their tables" in answer.err) == (4, True)
    assert f"of which the index hides 0; {count} are lost" in answer.err
    assert len(read_log(log)) == len(stored) - count


def test_an_open_log_is_checked_and_not_repaired(invoke: Invoke, log: Path, stored: Stored) -> None:
    opened = open_log(LogSettings(path=log))
    assert invoke("log", "check", log).code == 0
    answer = invoke("log", "check", log, "--repair")
    assert (answer.code, "another process has the log" in answer.err) == (3, True)
    opened.close()


def test_an_export_says_what_is_missing(invoke: Invoke, log: Path, stored: Stored, tmp_path: Path) -> None:
    change(log, "UPDATE batch SET crc = 1 WHERE rowid = 1", "UPDATE topic SET crc = 1 WHERE id = 2")
    [(count,)] = rows(log, "SELECT count FROM batch WHERE rowid = 1")
    answer = invoke("log", "export", log, tmp_path / "new.db")
    assert answer.code == 0
    assert "the name of the topic with id 2 is lost: it is called topic-2 now" in answer.err
    assert f"exported {len(stored) - count} messages and 3 committed offsets to {tmp_path}/new.db; {count} messages" in answer.err
    fields = invoke("log", "export", log, tmp_path / "new.db", "--force", "-t", "orders", "-J").json
    assert {each["topic"] for each in fields["partitions"]} == {"orders"}
    answer = invoke("log", "export", log, tmp_path / "other.db", "-t", "events")
    assert (answer.code, "has no topic events" in answer.err) == (2, True)


def test_a_long_job_prints_how_far_it_is(invoke: Invoke, log: Path, stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_job, "NOTE_S", 0.0)
    answer = invoke("log", "check", log)
    assert answer.code == 0
    assert "batches\n" in answer.err or "structure of the file" in answer.err


def test_an_interrupted_job_ends_and_removes_its_file(log: Path, stored: Stored, tmp_path: Path) -> None:
    from mqbridge.log.store.backup import backup

    async def run() -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def job(report: Any) -> Any:
            def slow_report(text: str) -> None:
                loop.call_soon_threadsafe(begun.set)
                while True:
                    report(text)

            return backup(log, tmp_path / "b.db", slow_report, is_forced=False)

        task = asyncio.ensure_future(long_job.run_job(job))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["log.db", "log.db-mark"]


def rows(log: Path, query: str) -> list[Any]:
    connection = sqlite3.connect(log)
    found = connection.execute(query).fetchall()
    connection.close()
    return found
