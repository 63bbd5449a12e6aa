"""The open file: one thread that writes, one that reads, and who is told when there is more.

SQLite blocks, so nothing of it runs in the event loop. All writes of a process go through one thread in the order in which they
were asked for; other processes may write between two transactions. Readers are woken by this process's own appends at
once, and by those of others through a poll of SQLite's data version, which costs microseconds and only runs while lanes are open.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from mqbridge.adapter.deadlines import seconds_until
from mqbridge.errors import ClusterError, LocalProtocolError
from mqbridge.log.store import retention, topics
from mqbridge.log.store.read import Row
from mqbridge.log.store.read import read as read_rows
from mqbridge.log.store.schema import cluster_error, open_connection
from mqbridge.log.store.settings import LogSettings
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

RETENTION_INTERVAL_S = 30.0
"""Between two looks at what is too old; data may live that much longer."""

POLL_RETRY_S = 1.0
"""After a failed poll, so that a broken disk does not fill the log of the process."""

T = TypeVar("T")
P = ParamSpec("P")


class Store:
    """One log file, open in this process."""

    def __init__(self, config: LogSettings) -> None:
        self.config = config
        self.tails: dict[int, int] = {}
        """The highest next offset that this process has heard of, by partition id."""
        self.nudges: dict[str, set[asyncio.Event]] = {}
        """By group, what wakes its members in this process when partitions may have become free."""
        self._watching: dict[int, set[asyncio.Event]] = {}
        self._writer: tuple[ThreadPoolExecutor, sqlite3.Connection] | None = None
        self._reader: tuple[ThreadPoolExecutor, sqlite3.Connection] | None = None
        self._data_version = -1
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_open(self) -> bool:
        """Whether it can be written."""
        return self._writer is not None

    async def open(self) -> None:
        """Open or create the file. Raises ClusterError; nothing happens when it is open."""
        if self._writer is None:
            self._writer = await self._connect("write")
            try:
                self._reader = await self._connect("read")
            except ClusterError:
                await self._disconnect(self._writer)
                self._writer = None
                raise
            self._tasks = [
                spawn(self._poll(), f"log poll {self.config.path}"),
                spawn(self._retain(), f"log retention {self.config.path}"),
            ]

    async def close(self, deadline: float | None = None) -> None:
        """Let the file go, after what has been asked for already; what is still at it at the deadline ends without us."""
        await cancel(*self._tasks)
        writer, reader, self._writer, self._reader = self._writer, self._reader, None, None
        for end in (reader, writer):  # the writer last: the last connection to close folds the WAL into the file
            if end is not None:
                await self._disconnect(end, deadline)

    async def _connect(self, role: str) -> tuple[ThreadPoolExecutor, sqlite3.Connection]:
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"mqbridge-log-{role}")
        config = self.config
        opening = partial(open_connection, config.path, config.synchronous, config.busy_timeout)
        try:
            return executor, await asyncio.get_running_loop().run_in_executor(executor, opening)
        except ClusterError:
            executor.shutdown(wait=False)
            raise

    async def _disconnect(self, end: tuple[ThreadPoolExecutor, sqlite3.Connection], deadline: float | None = None) -> None:
        executor, connection = end
        closing = asyncio.get_running_loop().run_in_executor(executor, connection.close)
        await asyncio.wait([closing], timeout=seconds_until(deadline))
        if not closing.done():
            log.warning("the log %s is busy: it is closed as soon as its last transaction has ended", self.config.path)
        executor.shutdown(wait=False)  # its thread ends by itself, when it has nothing left to do

    def read(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Run a query in the reading thread. Raises ClusterError and what the job raises."""
        return self._submit(self._reader, lambda connection: job(connection, *args, **kwargs))

    def write(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Run one transaction in the writing thread; it is durable when this returns. Raises ClusterError."""
        return self._submit(self._writer, lambda connection: _transaction(connection, lambda: job(connection, *args, **kwargs)))

    def _submit(
        self, end: tuple[ThreadPoolExecutor, sqlite3.Connection] | None, job: Callable[[sqlite3.Connection], T]
    ) -> "asyncio.Future[T]":
        if end is None:
            raise LocalProtocolError(f"the log {self.config.path} is not open; call connect() first")
        return asyncio.get_running_loop().run_in_executor(end[0], self._guarded, job, end[1])

    def _guarded(self, job: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
        try:
            return job(connection)
        except sqlite3.Error as error:
            raise cluster_error(error, self.config.path) from error

    async def rows(self, partition: int, offset: int, max_bytes: int, max_messages: int) -> tuple[list[Row], int]:
        """Stored rows from an offset on (`read.read`)."""
        rows, tail = await self.read(read_rows, partition, offset, max_bytes, max_messages)
        self.heard(partition, tail)
        return rows, tail

    def watch(self, partition: int, wake: asyncio.Event) -> None:
        """Set this event whenever the partition grows."""
        self._watching.setdefault(partition, set()).add(wake)

    def unwatch(self, partition: int, wake: asyncio.Event) -> None:
        """No longer."""
        watchers = self._watching.get(partition, set())
        watchers.discard(wake)
        if not watchers:
            self._watching.pop(partition, None)

    def heard(self, partition: int, tail: int) -> None:
        """The partition's next offset is at least this."""
        if tail > self.tails.get(partition, -1):
            self.tails[partition] = tail
            for wake in self._watching.get(partition, ()):
                wake.set()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self.config.poll)
            if self._watching:
                try:
                    for partition, tail in (await self.read(self._news)).items():
                        self.heard(partition, tail)
                except ClusterError as error:
                    log.warning("the log cannot be polled, trying again: %s", error)
                    await asyncio.sleep(POLL_RETRY_S)

    def _news(self, connection: sqlite3.Connection) -> Mapping[int, int]:
        """The tails, if any other connection has committed since the last look."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version == self._data_version:
            return {}
        tails = topics.tails(connection)
        self._data_version = version
        return tails

    async def _retain(self) -> None:
        while self.config.retention_bytes is not None or self.config.retention is not None:
            try:
                while await self.trim() >= retention.ROWS_PER_PASS:
                    pass
            except ClusterError as error:
                log.warning("old data of the log cannot be dropped, trying again in %d s: %s", RETENTION_INTERVAL_S, error)
            await asyncio.sleep(RETENTION_INTERVAL_S)

    async def trim(self) -> int:
        """One pass of the retention; how many rows it dropped."""
        age = self.config.retention
        before_ms = None if age is None else now_ms() - int(age * 1000)
        return await self.write(retention.trim, self.config.retention_bytes, before_ms)


def _transaction(connection: sqlite3.Connection, job: Callable[[], T]) -> T:
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = job()
        connection.execute("COMMIT")
    except BaseException:
        # SQLite has rolled back by itself after some errors (a full disk is one).
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def clock_ms() -> int:
    """Time for leases, in ms: the same in all processes of a machine, and nobody sets it. It begins anew when that is started."""
    return time.monotonic_ns() // 1_000_000


def now_ms() -> int:
    """Wall-clock time in ms since the epoch."""
    return time.time_ns() // 1_000_000
