"""The store of groups: one flush for all, retried, and read again by the next process."""

import asyncio
import contextlib
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from mqbridge.errors import ClusterError, ConfigError
from mqbridge.groups import store as store_module
from mqbridge.groups.acknowledged import Acknowledged
from mqbridge.groups.store import GroupKey, GroupStore, NoteKey
from mqbridge.net.tasks import spawn
from tests.patience import PATIENCE_S


def key(partition: int, group: str = "g", topic: str = "t") -> GroupKey:
    return GroupKey("app", "log", topic, str(partition), group)


async def until_written(path: Path, count: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.closing(sqlite3.connect(path)) as db:
                if db.execute("SELECT count(*) FROM acknowledged").fetchone() == (count,):
                    return
            await asyncio.sleep(0.01)


async def test_states_are_written_soon_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = GroupStore(path)
    states = {key(n): Acknowledged((n,), (0,), ((n + 2, n + 5),), {n + 9: 5 << 70}) for n in range(20)}
    for each, state in states.items():
        store.record(each, lambda state=state: state)  # type: ignore[misc]
        assert store.load(each) == state
    await until_written(path, 20)
    store.delete(key(3))
    assert store.load(key(3)) is None
    await store.close()
    await store.close()
    again = GroupStore(path)
    assert {each: again.load(each) for each in states} == {**states, key(3): None}
    assert again.groups("app", "log", "t") == ["g"]
    assert again.groups("app", "log", "other") == []
    await again.close()


async def test_notes_are_in_the_file_when_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = GroupStore(path)
    first, second = (NoteKey("app", "log", "kind", name) for name in ("first", "second"))
    await asyncio.gather(*(store.write_note(first, str(value)) for value in range(20)), store.write_note(second, "x"))
    other = GroupStore(path)
    assert (store.note(first), other.note(first), other.earlier_note(first)) == ("19", "19", "19")
    assert store.earlier_note(first) is None
    await store.write_note(first, None)
    assert store.notes("app", "log", "kind") == {"second": "x"}
    assert store.notes("app", "log", "other") == {}
    again = GroupStore(path)
    assert (again.note(first), again.note(second)) == (None, "x")
    for each in (store, other, again):
        await each.close()


async def test_the_state_at_the_time_of_the_flush_is_written(tmp_path: Path) -> None:
    store, marks = GroupStore(tmp_path / "state.db"), [1]
    store.record(key(0), lambda: Acknowledged((marks[-1],), (0,)))
    marks.append(2)
    await store.close()
    again = GroupStore(tmp_path / "state.db")
    assert again.load(key(0)) == Acknowledged((2,), (0,))
    await again.close()


async def test_a_locked_file_delays_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(store_module, "RETRY_S", 0.01)
    path = tmp_path / "state.db"
    store = GroupStore(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.record(key(0), lambda: Acknowledged((1,), (0,)))
        await asyncio.sleep(0.3)  # several attempts fail meanwhile
        store.record(key(1), lambda: Acknowledged((5,), (0,)))
        assert store.load(key(0)) == Acknowledged((1,), (0,))
        other.rollback()
    await until_written(path, 2)
    await store.close()


async def test_a_flush_that_cannot_succeed_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.01)
    path = tmp_path / "state.db"
    store = GroupStore(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.record(key(0), lambda: Acknowledged((1,), (0,)))
        async with asyncio.timeout(PATIENCE_S):
            await store.close(asyncio.get_running_loop().time() + 0.2)
        other.rollback()
    again = GroupStore(path)
    assert again.load(key(0)) is None
    await again.close()


async def test_a_state_that_cannot_be_made_keeps_no_other_from_being_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> Acknowledged:
        raise ZeroDivisionError

    path = tmp_path / "state.db"
    store = GroupStore(path)
    store.record(key(0), fail)
    store.record(key(1), lambda: Acknowledged((1,), (0,)))
    await until_written(path, 1)
    assert "cannot be recorded" in caplog.text
    store.record(key(2), lambda: Acknowledged((2,), (0,)))
    await until_written(path, 2)
    await store.close()
    store.record(key(3), lambda: Acknowledged((3,), (0,)))
    assert store.load(key(3)) is None, "the store is closed"


async def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigError, match="cannot be used"):
        GroupStore(path)


async def test_a_state_that_changes_all_the_time_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits until a state is written waits for that state, not for a moment without changes."""
    monkeypatch.setattr(store_module, "FLUSH_S", 0.02)
    monkeypatch.setattr(store_module, "WRITE_TIMEOUT_S", 2.0)
    store = GroupStore(tmp_path / "state.db")
    count = 0

    def change() -> None:
        nonlocal count, timer
        count += 1
        store.record(key(0), lambda: Acknowledged((count,), (0,)))
        timer = asyncio.get_running_loop().call_later(0.001, change)

    timer = asyncio.get_running_loop().call_later(0, change)
    try:
        await until_written(tmp_path / "state.db", 1)
        await store.written(key(0))
    finally:
        timer.cancel()
    await store.close()


async def test_slow_flushes_keep_nobody_waiting_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause in proportion to a slow flush would be longer than anybody waits."""
    monkeypatch.setattr(store_module, "FLUSH_RATIO", 1_000_000)
    monkeypatch.setattr(store_module, "MAX_PAUSE_S", 0.01, raising=False)
    store = GroupStore(tmp_path / "state.db")
    write = store._write

    def write_slowly(states: Mapping[GroupKey, bytes | None]) -> None:
        time.sleep(0.02)
        write(states)

    monkeypatch.setattr(store, "_write", write_slowly)

    async def record(number: int) -> None:
        for _ in range(5):
            store.record(key(number), lambda: Acknowledged((1,), (0,)))
            await store.written(key(number))
            await asyncio.sleep(0.003 * number)

    await asyncio.gather(*map(record, range(5)))
    await store.close()


async def test_a_store_that_is_closed_tells_those_who_wait_that_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.01)
    path = tmp_path / "state.db"
    store = GroupStore(path)
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.record(key(0), lambda: Acknowledged((1,), (0,)))
        waiting = asyncio.ensure_future(store.written(key(0)))
        await asyncio.sleep(0)
        await store.close(asyncio.get_running_loop().time() + 0.1)
        with pytest.raises(ClusterError, match="could not be written"):
            await waiting
        other.rollback()


async def test_the_states_of_a_topic_are_deleted_together(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = GroupStore(path)
    for topic in ("t", "other"):
        store.record(key(0, topic=topic), lambda: Acknowledged((1,), (0,)))
    await store.written(key(0))
    store.record(key(1), lambda: Acknowledged((1,), (0,)))
    store.delete_topic("app", "log", "t")
    await store.close()
    again = GroupStore(path)
    assert [again.load(each) is None for each in (key(0), key(1), key(0, topic="other"))] == [True, True, False]
    await again.close()


async def test_whoever_waits_for_a_state_waits_until_a_failed_flush_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "BUSY_TIMEOUT_S", 0.01)
    monkeypatch.setattr(store_module, "RETRY_S", 0.01)
    store = GroupStore(tmp_path / "state.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        store.record(key(0), lambda: Acknowledged((1,), (0,)))
        waiting = asyncio.create_task(store.written(key(0)))
        async with asyncio.timeout(PATIENCE_S):
            while not store._has_failed:
                await asyncio.sleep(0.01)
        assert not waiting.done()
        db.execute("COMMIT")
        await waiting
        assert db.execute("SELECT count(*) FROM acknowledged").fetchone() == (1,)
    await store.close()


async def test_a_group_that_is_made_again_while_its_deletion_is_written_is_not_written_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = GroupStore(tmp_path / "state.db")
    store.record(key(0), lambda: Acknowledged((1,), (1,)))
    await store.written(key(0))
    write, is_writing, goes_on = store._write, threading.Event(), threading.Event()

    def write_slowly(states: Mapping[GroupKey, bytes | None]) -> None:
        is_writing.set()
        goes_on.wait(PATIENCE_S)
        write(states)

    monkeypatch.setattr(store, "_write", write_slowly)
    store.delete(key(0))
    deleting = spawn(store.written(key(0)), "deleting")
    await asyncio.to_thread(is_writing.wait, PATIENCE_S)
    store.record(key(0), lambda: Acknowledged((7,), (7,)))
    goes_on.set()
    await deleting
    assert store.is_unwritten(key(0))
    await store.written(key(0))
    assert not store.is_unwritten(key(0))
    await store.close()
