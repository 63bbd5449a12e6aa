"""Stores what groups have acknowledged, and notes of listeners, in an SQLite file: one flush for all partitions of all groups.

A partition that has changed registers a function that returns its state; a flush calls all of them and writes their states in one
transaction, in a thread. A failed flush is repeated until the store is closed. A crash loses what was acknowledged since the last
flush: those messages are delivered again.
"""

import asyncio
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mqbridge.adapter.tools.deadlines import resolve_deadline, seconds_until
from mqbridge.errors import ClusterError, ConfigError
from mqbridge.groups.acknowledged import Acknowledged
from mqbridge.net.tasks import spawn

log = logging.getLogger(__name__)

FLUSH_S = 0.1
"""Time for which changes are collected before they are written."""
FLUSH_RATIO = 10
"""A flush that takes long is followed by a pause of this many times its duration, so that flushes take a tenth of the time."""
MAX_PAUSE_S = 2.0
"""Longest pause after a flush: clients wait for some of the states."""
RETRY_S = 1.0
"""Pause after a failed flush."""
CLOSE_RETRY_S = 0.05
"""Pause after a failed flush while the store is closed: there may be little time left."""
WRITE_TIMEOUT_S = 10.0
"""Maximum time that `written` waits."""
BUSY_TIMEOUT_S = 1.0
"""How long one flush waits for another process that has the file locked."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS note (
    listener TEXT, cluster TEXT, kind TEXT, name TEXT, value TEXT NOT NULL, PRIMARY KEY (listener, cluster, kind, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS acknowledged (
    listener TEXT, cluster TEXT, topic TEXT, partition TEXT, grp TEXT, state BLOB NOT NULL,
    PRIMARY KEY (listener, cluster, topic, partition, grp)
) WITHOUT ROWID
"""


class GroupKey(NamedTuple):
    """A partition of a group of a listener."""

    listener: str
    cluster: str
    topic: str
    partition: str
    group: str


class NoteKey(NamedTuple):
    """The key of a note: a short text that a listener keeps, of a kind."""

    listener: str
    cluster: str
    kind: str
    name: str


class GroupStore:
    """The states of all groups, and notes; read once, when the file is opened, and kept in memory."""

    def __init__(self, path: Path) -> None:
        """Open the file, or create it. Raises ConfigError if it cannot be used."""
        self._path = path
        try:
            self._db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._db.executescript(_SCHEMA)
                rows = self._db.execute("SELECT listener, cluster, topic, partition, grp, state FROM acknowledged").fetchall()
                self._states = {GroupKey(*key): Acknowledged.decode(state) for *key, state in rows}
                notes = self._db.execute("SELECT listener, cluster, kind, name, value FROM note").fetchall()
                self._notes = {NoteKey(*key): value for *key, value in notes}
            except BaseException:
                self._db.close()
                raise
        except (sqlite3.Error, ValueError) as error:
            raise ConfigError(
                f"the state file {path} cannot be used: {error}", path="state", hint="Give `state` a path that can be written"
            ) from error
        self._changed: dict[GroupKey, Callable[[], Acknowledged] | None] = {}
        """Partitions whose state has changed, with the function that returns it; None: it is deleted."""
        self._flushing: dict[GroupKey, Callable[[], Acknowledged] | None] = {}
        """Those that the running flush writes."""
        self._flush_task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        """Set when somebody waits for the next flush, which then comes at once."""
        self._waiters: list[asyncio.Future[None]] = []
        """Futures of `written` calls, which are set at the end of the next flush that succeeds."""
        self._flush_waiters: list[asyncio.Future[None]] = []
        """Those that the running flush sets."""
        self._unwritten: set[GroupKey] = set()
        """Partitions that are not in the file yet."""
        self._earlier_notes = dict(self._notes)
        """The notes that earlier processes have left."""
        self._notes_lock = asyncio.Lock()
        """Held while a note is written, so that the newest value is written last."""
        self._db_lock = threading.Lock()
        """Held by the thread that uses the connection."""
        self._has_failed = False
        self._closed = False

    def load(self, key: GroupKey) -> Acknowledged | None:
        """Return the state of a partition; None if nothing is known of it."""
        for changes in (self._changed, self._flushing):
            if key in changes:
                make_state = changes[key]
                return None if make_state is None else make_state()
        return self._states.get(key)

    def groups(self, listener: str, cluster: str, topic: str) -> list[str]:
        """Return the names of the groups that have a state in a topic."""
        known = {key for key in self._states if key[:3] == (listener, cluster, topic)}
        for changes in (self._flushing, self._changed):
            known |= {key for key, state in changes.items() if state is not None and key[:3] == (listener, cluster, topic)}
            known -= {key for key, state in changes.items() if state is None}
        return sorted({key.group for key in known})

    def record(self, key: GroupKey, state: Callable[[], Acknowledged]) -> None:
        """Write the state that this function returns, within FLUSH_S; the function is called then. After `close` it is lost."""
        if not self._closed:
            if key not in self._states:
                self._unwritten.add(key)
            self._changed[key] = state
            self._schedule(FLUSH_S)

    def delete(self, key: GroupKey) -> None:
        """Delete the state of a partition."""
        if not self._closed:
            self._changed[key] = None
            self._schedule(FLUSH_S)

    def is_unwritten(self, key: GroupKey) -> bool:
        """Return True if a partition has a state, and none of it is in the file."""
        return key in self._unwritten

    async def written(self, key: GroupKey) -> None:
        """Wait until the present state of a partition is in the file. Raises ClusterError if it is not within WRITE_TIMEOUT_S.

        The state may change again meanwhile: that one is written later.
        """
        if key in self._changed:
            waiters = self._waiters
        elif key in self._flushing:
            waiters = self._flush_waiters
        else:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters.append(waiter)
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                self._wanted.set()
                await waiter
        except TimeoutError:
            raise ClusterError(f"the state file {self._path} cannot be written now") from None

    def delete_topic(self, listener: str, cluster: str, topic: str) -> None:
        """Delete the states of all groups in a topic."""
        for key in {*self._states, *self._changed, *self._flushing}:
            if key[:3] == (listener, cluster, topic):
                self.delete(key)

    def note(self, key: NoteKey) -> str | None:
        """Return a note; None if there is none."""
        return self._notes.get(key)

    def notes(self, listener: str, cluster: str, kind: str) -> dict[str, str]:
        """Return all notes of a kind, by name."""
        return {key.name: value for key, value in self._notes.items() if key[:3] == (listener, cluster, kind)}

    def earlier_note(self, key: NoteKey) -> str | None:
        """Return the note that was in the file when this process opened it; None if there was none."""
        return self._earlier_notes.get(key)

    async def write_note(self, key: NoteKey, value: str | None) -> None:
        """Set a note, or delete it (None), and wait until that is in the file. Raises ClusterError if it cannot be written.

        It is set in any case, until this process ends.
        """
        if value is None:
            self._notes.pop(key, None)
        else:
            self._notes[key] = value
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S), self._notes_lock:
                await asyncio.shield(asyncio.to_thread(self._write_note, key, self._notes.get(key)))
        except (TimeoutError, sqlite3.Error) as error:
            raise ClusterError(f"the state file {self._path} cannot be written now: {error}") from error

    def _write_note(self, key: NoteKey, value: str | None) -> None:
        with self._db_lock, self._db:
            if value is None:
                self._db.execute("DELETE FROM note WHERE (listener, cluster, kind, name) = (?, ?, ?, ?)", key)
            else:
                self._db.execute("INSERT OR REPLACE INTO note VALUES (?, ?, ?, ?, ?)", (*key, value))

    async def close(self, deadline: float | None = None) -> None:
        """Write what has changed, trying until the deadline (loop time; None: CLOSE_S (30 s) from now), and close the file."""
        if self._closed:
            return
        self._closed, deadline = True, resolve_deadline(deadline)
        if self._flush_task is not None:
            await asyncio.wait([self._flush_task], timeout=seconds_until(deadline))
        while self._changed:
            if await self._flush() or not seconds_until(deadline):
                break
            await asyncio.sleep(min(CLOSE_RETRY_S, seconds_until(deadline)))
        await asyncio.to_thread(self._close)
        if self._flush_task is not None:  # a flush that the deadline has passed by has failed now, unless it has succeeded
            await asyncio.wait([self._flush_task], timeout=BUSY_TIMEOUT_S)
        if self._changed:
            text = "the state file %s could not be written: %d partitions of groups will deliver messages again"
            log.error(text, self._path, len(self._changed))
            self._end_waiters(self._waiters, ClusterError(f"the state file {self._path} could not be written"))

    def _schedule(self, delay_s: float) -> None:
        if self._flush_task is None and not self._closed:
            self._flush_task = spawn(self._flush_later(delay_s), "flush of acknowledged messages")

    async def _flush_later(self, delay_s: float) -> None:
        is_written = False
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._wanted.wait()
            self._wanted.clear()
            started = time.monotonic()
            is_written = await self._flush()
            delay_s = min(MAX_PAUSE_S, max(FLUSH_S, FLUSH_RATIO * (time.monotonic() - started)))
        finally:
            self._flush_task = None
            if self._changed:
                self._schedule(delay_s if is_written else RETRY_S)

    async def _flush(self) -> bool:
        """Write all changes in one transaction; return False after a failure, which keeps those that have not changed again.

        A state that cannot be made or encoded is a bug: it is logged, and only its own partition is left out.
        """
        changed = self._flushing = self._changed
        waiters = self._flush_waiters = self._waiters
        self._changed, self._waiters = {}, []
        encoded: dict[GroupKey, bytes | None] = {}
        try:
            for key, state in changed.items():
                with _logged_bugs(key):
                    encoded[key] = self._encode(key, state)
                await asyncio.sleep(0)  # a state of 10,000 units takes 10 ms
            await asyncio.shield(asyncio.to_thread(self._write, encoded))
        except sqlite3.Error as error:
            if not self._has_failed:
                log.error("the state file %s cannot be written, which is tried again: %s", self._path, error)  # noqa: TRY400 - expected
            self._has_failed = True
            self._changed = changed | self._changed
            self._waiters += waiters
            return False
        except BaseException:
            self._changed = changed | self._changed  # it may have been written; a second time does no harm
            self._waiters += waiters
            raise
        finally:
            self._flushing, self._flush_waiters = {}, []
        # A state that was deleted here may have been recorded anew meanwhile, and that one is not written yet.
        self._unwritten.difference_update(key for key in changed if encoded.get(key) is not None or key not in self._changed)
        self._end_waiters(waiters)
        if self._has_failed:
            log.warning("the state file %s can be written again", self._path)
        self._has_failed = False
        return True

    def _end_waiters(self, waiters: list[asyncio.Future[None]], error: ClusterError | None = None) -> None:
        """Let `written` calls return, or raise this error."""
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)
        waiters.clear()

    def _encode(self, key: GroupKey, make_state: Callable[[], Acknowledged] | None) -> bytes | None:
        """Return the state of a partition as it is written, and keep it in memory; None if it is deleted."""
        if make_state is None:
            self._states.pop(key, None)
            return None
        state = make_state()
        self._states[key] = state
        return state.encode()

    def _write(self, states: Mapping[GroupKey, bytes | None]) -> None:
        with self._db_lock, self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO acknowledged VALUES (?, ?, ?, ?, ?, ?)",
                [(*key, state) for key, state in states.items() if state is not None],
            )
            self._db.executemany(
                "DELETE FROM acknowledged WHERE (listener, cluster, topic, partition, grp) = (?, ?, ?, ?, ?)",
                [key for key, state in states.items() if state is None],
            )

    def _close(self) -> None:
        with self._db_lock:
            self._db.close()


@contextlib.contextmanager
def _logged_bugs(key: GroupKey) -> Iterator[None]:
    """Log any error, and go on."""
    try:
        yield
    except Exception:
        log.exception("what group %s has acknowledged of %s/%s cannot be recorded", key.group, key.topic, key.partition)
