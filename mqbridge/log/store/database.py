"""The open file of a log: one writing thread, one reading thread, polls and retention.

SQLite blocks, so none of its calls runs in the event loop. All writes of a process run in one thread, in the order of the calls;
other processes may write between two transactions. Appends of this process wake its readers at once, and polls those of other
processes (`tails`).

The mark is written before anything is reported as stored (`mark`). Commits and polls check that the files under the log are those
that were opened (`file_guard`). If they are not, the store stops: every call fails with the reason, until it is closed.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar

from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.errors import ClusterError, Failure, LocalProtocolError, MqbridgeError
from mqbridge.log.store import deletion, retention
from mqbridge.log.store.clocks import ClockReading
from mqbridge.log.store.connection import (
    WRONG_VALUES,
    Connection,
    cluster_error,
    open_connection,
    open_read_only,
    transaction,
    wrong_value_error,
)
from mqbridge.log.store.disk_room import DiskRoom
from mqbridge.log.store.extents import Extent
from mqbridge.log.store.file_guard import FileSizes
from mqbridge.log.store.groups import Observer
from mqbridge.log.store.job_thread import JobThread
from mqbridge.log.store.jumps import Jump, jumps_of
from mqbridge.log.store.opening import LogFile, open_log
from mqbridge.log.store.read import Rows
from mqbridge.log.store.read import read as read_rows
from mqbridge.log.store.retention import Limits
from mqbridge.log.store.schema import read_meta, write_meta
from mqbridge.log.store.settings import LogSettings
from mqbridge.log.store.tails import Changes, Tails
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

RETENTION_INTERVAL_S = 30.0
"""Interval between retention passes: rows beyond the limit of age may stay that much longer."""
POLL_RETRY_S = 1.0
"""Pause after a failed poll, so that a broken disk does not flood the process's log output."""
GUARD_S = 0.01
"""Time for which a check of the files by a commit counts: each takes 20 us of the writing thread."""
GIVE_BACK_S = 0.1
"""Time for which an attempt to append gives free pages back to a full disk: other jobs of the writing thread wait meanwhile."""
WAL_BYTES = 64 << 20
"""Size of the WAL above which the next write waits until all of it is in the file. SQLite alone does not limit it: while several
processes write, it seldom finds a moment at which it may start the WAL anew."""
YIELD_FRACTION, MAX_YIELD_S = 0.1, 0.002
"""While other processes write, a writer pauses after each transaction for a tenth of its wait for the lock, at most 2 ms.
Otherwise a busy process gets the lock again before others notice that it is free."""

T = TypeVar("T")
P = ParamSpec("P")

AppendJob = Callable[[Connection, ClockReading, int | None], tuple[T, Mapping[int, Extent]]]
"""A job of the writing thread: gets the time and the maximum size of a partition; returns its result, and the extents of the
partitions that it changed."""


class _Worker(NamedTuple):
    """A thread and the connection that it alone uses."""

    thread: JobThread
    connection: Connection


class Store:
    """One log file, open in this process."""

    def __init__(self, config: LogSettings) -> None:
        self.config = config
        self.tails = Tails()
        """What is known of the tails of partitions; its readers wait for more there."""
        self.rebalance_events: dict[str, set[asyncio.Event]] = {}
        """Events of the members in this process, by group; set when a partition of the group may have been released."""
        self.observer = Observer()
        """What is known of members of other clock domains; used by the writing thread."""
        self._opening = asyncio.Lock()
        self._log: LogFile | None = None
        self._writer: _Worker | None = None
        self._reader: _Worker | None = None
        self._stopped: ClusterError | None = None
        """Why the store has stopped; None while its files are those that were opened."""
        self._guarded_until = 0.0
        """Time until which commits do not check the files; used by the writing thread."""
        self._room = DiskRoom(config)
        """Whether the disk has room; used by the writing thread."""
        self._has_appended = False
        """True if the age clock is to be stored: messages were appended since it was."""
        self._trimmed_to = 0
        """Id of the partition at which the retention goes on."""
        self._has_deleted_batches = True
        """True if there may be batches of deleted topics: a deletion runs, or was cut short. Only a pass of the retention
        that has deleted all that it found sets it to False."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_open(self) -> bool:
        """True if the file is open."""
        return self._reader is not None

    async def open(self) -> None:
        """Open the file, or create it; does nothing if it is open. Raises ClusterError.

        If the caller is cancelled, the file is closed as soon as its threads have opened it.
        """
        async with self._opening:
            if self.is_open:
                return
            writer, reader = _threads(self.config.path)
            try:
                opened = await _open_in(writer, partial(open_log, self.config), LogFile.close)
            except BaseException:
                reader.end()
                raise
            try:
                connection = await _open_in(reader, partial(self._connect_reader, opened), Connection.close)
            except BaseException:
                writer.submit(partial(_close_log, opened, reader, store_clock=False))
                writer.end()
                raise
            self._log, self._writer, self._reader = opened, _Worker(writer, opened.connection), _Worker(reader, connection)
            self._stopped, self._has_deleted_batches = None, True
            self._tasks = [
                spawn(self._poll(), f"log poll {self.config.path}"),
                spawn(self._run_retention(), f"log retention {self.config.path}"),
            ]

    def _connect_reader(self, opened: LogFile) -> Connection:
        """Open the reading connection, in its thread."""
        try:
            if opened.mark is None:
                return open_read_only(opened.path)
            connection = open_connection(opened.path, self.config.synchronous, self.config.busy_timeout)
            connection.execute(f"PRAGMA busy_timeout={int(self.config.busy_timeout * 1000)}")
        except sqlite3.Error as error:
            raise cluster_error(error, opened.path) from error
        self.tails.begin(connection)
        connection.end_job()
        return connection

    async def close(self, deadline: float | None = None) -> None:
        """Close the file after the queued jobs; a job that still runs at the deadline ends in the background.

        `deadline` is a loop time; None means `deadlines.CLOSE_S` from now.
        """
        for task in self._tasks:
            task.cancel()
        opened, writer, reader = self._log, self._writer, self._reader
        self._log = self._writer = self._reader = None
        if opened is None or writer is None or reader is None:
            return
        self.tails.wake_all()
        # Without an await up to here: a caller that is cancelled leaves nothing open. The log itself is closed last: closing the
        # last connection moves the WAL into the file, and the mark has to be locked as long as any connection is open.
        reader.thread.submit(reader.connection.close)
        closing = writer.thread.submit(partial(_close_log, opened, reader.thread, store_clock=self._has_appended))
        for thread in (reader.thread, writer.thread):
            thread.end()
        tasks, self._tasks = self._tasks, []
        await cancel(*tasks)
        await asyncio.wait([closing], timeout=seconds_until(deadline))
        if not closing.done():
            log.warning(
                "the embedded log's file %s is still in use by this process and will be closed when the current transaction ends",
                self.config.path,
            )

    def read(self, job: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Run the job in the reading thread. Raises ClusterError, and any error of the job."""
        return self._submit(self._reader, lambda connection: job(connection, *args, **kwargs))

    def write(self, job: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Run the job as one transaction in the writing thread; the future is done after the commit. Raises as `read`."""
        opened = self._log  # the store may be closed before the job runs

        def run(connection: Connection) -> T:
            result = transaction(connection, lambda: job(connection, *args, **kwargs), self.config.busy_timeout)
            self._after_commit(opened, connection)
            return result

        return self._submit(self._writer, run)

    def append(self, job: AppendJob[T], size: int) -> "asyncio.Future[T]":
        """Run a job that appends `size` bytes as `write` does, if there is room for them; the mark tells the new tails."""
        opened = self._log  # the store may be closed before the job runs

        def run(connection: Connection) -> T:
            assert opened is not None  # noqa: S101 - `_submit` has refused the job otherwise
            self._check_room(opened, connection, size)
            reading, max_bytes = opened.clock.stamp(), self.config.retention_bytes
            result, extents = transaction(connection, lambda: job(connection, reading, max_bytes), self.config.busy_timeout)
            self._has_appended = True
            if opened.mark is not None:
                tails = ((id_, extent.next) for id_, extent in extents.items())
                opened.mark.record(tails, partial(_jumps_for_mark, connection))
            self._after_commit(opened, connection)
            return result

        return self._submit(self._writer, run)

    def _check_room(self, opened: LogFile, connection: Connection, size: int) -> None:
        """Raise ClusterError (RETRY) if the disk, or the log, has no room for messages of `size` bytes."""
        try:
            self._room.check(opened.path, size)
        except ClusterError:
            self._give_back(opened, connection)
            self._room.check(opened.path, size)
        if self.config.max_bytes is not None and (used := _used_bytes(connection) + size) > self.config.max_bytes:
            raise ClusterError(
                f"the log {self.config.path} is full: it would have {used} bytes, and `max_bytes` is {self.config.max_bytes};"
                " sends wait until messages are dropped by `retention` or `retention_bytes`"
            )

    def _give_back(self, opened: LogFile, connection: Connection) -> None:
        """Give free pages of the file back to the disk, for GIVE_BACK_S, and the room of the WAL.

        Raises no error of SQLite: on a full disk, the next attempt to append goes on.
        """
        deadline = time.monotonic() + GIVE_BACK_S
        try:
            while retention.give_back(connection, GIVE_BACK_S, is_urgent=True) and time.monotonic() < deadline:
                pass
        except sqlite3.Error as error:
            log.info("free pages of the log %s could not be given back to the disk: %s", opened.path, error)
        self._truncate_wal(opened, connection)

    def _after_commit(self, opened: LogFile | None, connection: Connection) -> None:
        """Check the files, before anything is reported as stored; keep the WAL small, and let other processes write."""
        now = time.monotonic()
        if opened is not None and opened.guard is not None and now >= self._guarded_until:
            self._guarded_until = now + GUARD_S
            self._room.wal_bytes = self._checked(opened.guard.check).wal
            if self._room.wal_bytes > WAL_BYTES:
                self._truncate_wal(opened, connection)
        if connection.waited_s > 0.001:  # another process was writing
            time.sleep(min(MAX_YIELD_S, connection.waited_s * YIELD_FRACTION))

    def _truncate_wal(self, opened: LogFile, connection: Connection) -> None:
        """Move all of the WAL into the file, and give its room back; it stays as it is if a reader needs it, or after an error.

        Raises no error of SQLite: what was committed before is stored.
        """
        try:
            connection.end_job()  # an unfinished query of this connection would need the WAL
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.Error as error:
            log.warning("the WAL of the log %s could not be moved into its file, which is tried again: %s", opened.path, error)
        if opened.guard is not None:
            self._room.wal_bytes = self._checked(opened.guard.check).wal

    def _checked(self, check: Callable[[], FileSizes]) -> FileSizes:
        """Return the sizes of the files. If they are not those that were opened, stop the store and raise ClusterError."""
        try:
            return check()
        except ClusterError as error:
            if self._stopped is None:
                log.error("%s", error)  # noqa: TRY400 - the text says it all
            self._stopped = error
            raise

    def _submit(self, worker: _Worker | None, job: Callable[[Connection], T]) -> "asyncio.Future[T]":
        """Run a job in the worker's thread with its connection. Raises LocalProtocolError if the file is not open."""
        if worker is None:
            raise LocalProtocolError(f"the log {self.config.path} is not open; call connect() first")
        return worker.thread.submit(partial(self._run_job, job, worker.connection))

    def _run_job(self, job: Callable[[Connection], T], connection: Connection) -> T:
        """Run a job in the current thread, and raise ClusterError for SQLite's errors."""
        if self._stopped is not None:
            raise ClusterError(str(self._stopped), Failure.FATAL)
        try:
            return job(connection)
        except sqlite3.Error as error:
            raise cluster_error(error, self.config.path) from error
        except MqbridgeError:
            raise
        except OSError as error:
            raise self._os_error(error) from error
        except WRONG_VALUES as error:
            raise wrong_value_error(self.config.path, error) from error
        finally:
            connection.end_job()

    def _os_error(self, error: OSError) -> ClusterError:
        """Return the reason why a file cannot be reached: the log was moved, or the disk has a fault."""
        if (opened := self._log) is not None and opened.guard is not None:
            try:
                self._checked(opened.guard.check)
            except ClusterError as stopped:
                return stopped
        return ClusterError(f"the log {self.config.path}: {error}; check the disk")

    async def rows(self, partition: int, offset: int, max_bytes: int, max_messages: int) -> Rows:
        """Return stored rows from an offset on, and the partition's tail; see `read.read`. Raises ClusterError and GapError."""
        found = await self.read(read_rows, partition, offset, max_bytes, max_messages)
        self.tails.record(partition, found.tail)
        return found

    async def _poll(self) -> None:
        """Look regularly for messages that other processes have appended, and whether the files are those that were opened."""
        while self._stopped is None:
            await asyncio.sleep(self.config.poll)
            try:
                changes = await self.read(self._find_new, self.tails.watched)
                for partition, tail in changes.tails.items():
                    self.tails.record(partition, tail)
                self.tails.wake(changes.deleted)
            except Exception as error:  # noqa: BLE001 - without polls, readers would wait for ever
                if self._stopped is None:
                    log.warning(
                        "log %s cannot be polled for new messages, retrying in %.0f s: %s", self.config.path, POLL_RETRY_S, error
                    )
                    await asyncio.sleep(POLL_RETRY_S)
        self.tails.wake_all()

    def _find_new(self, connection: Connection, watched: frozenset[int]) -> Changes:
        """Check the files, and return what has changed in the watched partitions since the last poll."""
        if (opened := self._log) is not None and opened.guard is not None:
            self._checked(opened.guard.check)
        return self.tails.find_new(connection, watched)

    async def _run_retention(self) -> None:
        """Drop the rows beyond the configured limits every RETENTION_INTERVAL_S, and store the age clock."""
        while self._stopped is None and self._log is not None and self._log.mark is not None:
            try:
                await self._store_clock()
                await self._finish_deletions()
                await self.trim()
            except MqbridgeError as error:
                log.warning(
                    "deleting old messages from the embedded log's file %s failed, retrying in %.0f s: %s",
                    self.config.path,
                    RETENTION_INTERVAL_S,
                    error,
                )
            await asyncio.sleep(RETENTION_INTERVAL_S)

    async def _store_clock(self) -> None:
        """Store the age clock if messages were appended since it was: a later start continues from it."""
        if self._has_appended and self._log is not None:
            self._has_appended = False
            await self.write(_write_clock, self._log)

    async def trim(self) -> int:
        """Drop all rows beyond the configured limits; return their number, each of which is a batch of messages.

        Partitions are looked at in the order of their ids; after a failure, the next call goes on behind the one that failed.
        """
        age = self.config.retention
        if (age is None and self.config.retention_bytes is None) or self._log is None:
            return 0
        before_ms = None if age is None else self._log.clock.read().age_ms - int(age * 1000)
        limits = Limits(self.config.retention_bytes, before_ms)
        dropped = 0
        after: int | None = self._trimmed_to
        self._trimmed_to = 0
        while after is not None:
            expired, last = await self.read(retention.find_expired, limits, after)
            for partition in expired:
                self._trimmed_to = partition
                dropped += await self._trim(partition, limits)
            self._trimmed_to = 0
            after = last
        await self._give_back_pages()
        return dropped

    async def _give_back_pages(self) -> None:
        """Give free pages of the file back to the disk if there are many, in several transactions."""
        while await self._submit(self._writer, partial(retention.give_back, timeout_s=self.config.busy_timeout)):
            pass

    async def _trim(self, partition: int, limits: Limits) -> int:
        """Drop all expired rows of a partition, in several transactions; return their number."""
        dropped = 0
        while True:
            result = await self.write(retention.trim, partition, limits)
            dropped += result.rows
            if result.is_complete:
                return dropped

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, and what an earlier deletion has left if there is none. Raises ClusterError while it has members."""
        self._has_deleted_batches = True  # the caller may be cancelled
        partitions = await self.write(deletion.begin, self.observer, name)
        self.tails.wake(partitions)
        await self._delete_batches(partitions or await self.read(deletion.find_left))

    async def _finish_deletions(self) -> None:
        """Delete the batches of deleted topics that are left, if there may be any."""
        if not self._has_deleted_batches:
            return
        self._has_deleted_batches = False  # before the search: a deletion that begins during it may not be found
        try:
            await self._delete_batches(await self.read(deletion.find_left))
        except BaseException:
            self._has_deleted_batches = True
            raise

    async def _delete_batches(self, partitions: Sequence[int]) -> None:
        """Delete the batches of these partitions of deleted topics, in several transactions."""
        for partition in partitions:
            while not await self.write(deletion.delete_batches, partition):
                pass
        if partitions:
            await self._give_back_pages()


def _threads(path: Path) -> tuple[JobThread, JobThread]:
    """Start the writing and the reading thread. Raises ClusterError if the system allows no more threads."""
    try:
        writer = JobThread("mqbridge-log-write")
        return writer, JobThread("mqbridge-log-read")
    except RuntimeError as error:
        raise ClusterError(f"the log {path} cannot be opened: {error}; raise the limit of processes and threads") from error


async def _open_in(thread: JobThread, job: Callable[[], T], close: Callable[[T], None]) -> T:
    """Run a job that opens something in the thread, and return it. If it fails, or after a cancellation, the thread ends.

    After a cancellation, the thread also closes what the job has opened.
    """
    results: list[T] = []

    def run() -> T:
        results.append(job())
        return results[0]

    try:
        return await thread.submit(run)
    except BaseException:
        thread.submit(lambda: close(results.pop()) if results else None)
        thread.end()
        raise


def _close_log(opened: LogFile, reading: JobThread, *, store_clock: bool) -> None:
    """Store the age clock if messages were appended, and close the log after the reading thread, in the writing one."""
    reading.join()
    try:
        if store_clock and opened.guard is not None:
            opened.guard.check()
            transaction(opened.connection, partial(_write_clock, opened.connection, opened), 0.0)
    except (sqlite3.Error, MqbridgeError) as error:
        log.info("the age clock of the log %s was not stored when it was closed: %s", opened.path, error)
    finally:
        opened.close()


def _jumps_for_mark(connection: Connection, partition: int) -> list[Jump]:
    """Return the jumps of a partition for the mark; none if they cannot be read: what was appended is stored in any case."""
    try:
        return jumps_of(connection, partition)
    except sqlite3.Error as error:
        connection.report(f"offsets that were left out cannot be read: {error}")
        return []


def _write_clock(connection: Connection, opened: LogFile) -> None:
    """Store the reading of the age clock, inside a transaction, unless what the clock has missed is not known yet."""
    meta, reading = read_meta(connection), opened.clock.read()
    if meta is not None and opened.clock.is_settled and reading.age_ms > meta.reading.age_ms:
        write_meta(connection, meta._replace(reading=reading))


def _used_bytes(connection: Connection) -> int:
    """Return the bytes of the pages that are in use."""
    (page_bytes,), (pages,), (free,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_size", "page_count", "freelist_count")
    )
    return int(page_bytes * (pages - free))
