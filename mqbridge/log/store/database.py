"""The open file of a log: one writing thread, one reading thread, and events that report new messages.

The tail of a partition is the offset of its next message.

SQLite blocks, so none of its calls runs in the event loop. All writes of a process run in one thread, in the order of the calls;
other processes may write between two transactions. Appends of this process wake its readers at once. Appends of other processes
are found by polling SQLite's data version, which costs microseconds and only runs while partitions are read.
"""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.errors import ClusterError, LocalProtocolError
from mqbridge.log.store import retention, topics
from mqbridge.log.store.read import Row
from mqbridge.log.store.read import read as read_rows
from mqbridge.log.store.schema import cluster_error, open_connection
from mqbridge.log.store.settings import LogSettings
from mqbridge.net.tasks import cancel, spawn

log = logging.getLogger(__name__)

RETENTION_INTERVAL_S = 30.0
"""Interval between retention passes: rows beyond the limits of age or size may stay that much longer."""

POLL_RETRY_S = 1.0
"""Pause after a failed poll, so that a broken disk does not flood the process's log output."""

T = TypeVar("T")
P = ParamSpec("P")

Worker = tuple[ThreadPoolExecutor, sqlite3.Connection]
"""A thread and the connection that it alone uses."""


class Store:
    """One log file, open in this process."""

    def __init__(self, config: LogSettings) -> None:
        self.config = config
        self.tails: dict[int, int] = {}
        """The highest known tail, by partition id."""
        self.rebalance_events: dict[str, set[asyncio.Event]] = {}
        """Events of the members in this process, by group; set when a partition of the group may have been released."""
        self._watchers: dict[int, set[asyncio.Event]] = {}
        """Events that are set when a partition grows, by partition id."""
        self._writer: Worker | None = None
        self._reader: Worker | None = None
        self._data_version = -1
        """SQLite's data version at the last poll, -1 before the first one: it changes when another connection commits."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def is_open(self) -> bool:
        """True if the file is open for writing."""
        return self._writer is not None

    async def open(self) -> None:
        """Open the file, or create it; does nothing if it is open. Raises ClusterError."""
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
                spawn(self._run_retention(), f"log retention {self.config.path}"),
            ]

    async def close(self, deadline: float | None = None) -> None:
        """Close the file after the queued jobs; a job that still runs at the deadline ends in the background.

        `deadline` is a loop time; None means `deadlines.CLOSE_S` from now.
        """
        await cancel(*self._tasks)
        writer, reader = self._writer, self._reader
        self._writer = self._reader = None
        for worker in (reader, writer):  # the writer last: closing the last connection moves the WAL into the file
            if worker is not None:
                await self._disconnect(worker, deadline)

    async def _connect(self, role: str) -> Worker:
        """Start a thread, named by its role, and open its connection."""
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"mqbridge-log-{role}")
        config = self.config
        opening = executor.submit(open_connection, config.path, config.synchronous, config.busy_timeout)
        try:
            return executor, await asyncio.wrap_future(opening)
        except BaseException:
            opening.add_done_callback(_close_unused)  # after a cancellation, the thread may still open it
            executor.shutdown(wait=False)
            raise

    async def _disconnect(self, worker: Worker, deadline: float | None = None) -> None:
        """Close the worker's connection after its queued jobs, and end its thread."""
        executor, connection = worker
        closing = asyncio.get_running_loop().run_in_executor(executor, connection.close)
        await asyncio.wait([closing], timeout=seconds_until(deadline))
        if not closing.done():
            log.warning(
                "the embedded log's file %s is still in use by this process and will be closed when the current transaction ends",
                self.config.path,
            )
        executor.shutdown(wait=False)  # its thread ends after its last job

    def read(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Run the job in the reading thread. Raises ClusterError, and any error of the job."""
        return self._submit(self._reader, lambda connection: job(connection, *args, **kwargs))

    def write(
        self, job: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[T]":
        """Run the job as one transaction in the writing thread; the future is done after the commit. Raises as `read`."""
        return self._submit(self._writer, lambda connection: _transaction(connection, lambda: job(connection, *args, **kwargs)))

    def _submit(self, worker: Worker | None, job: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Run a job in the worker's thread with its connection. Raises LocalProtocolError if the file is not open."""
        if worker is None:
            raise LocalProtocolError(f"the log {self.config.path} is not open; call connect() first")
        return asyncio.get_running_loop().run_in_executor(worker[0], self._run_job, job, worker[1])

    def _run_job(self, job: Callable[[sqlite3.Connection], T], connection: sqlite3.Connection) -> T:
        """Run a job in the current thread, and raise ClusterError for SQLite's errors."""
        try:
            return job(connection)
        except sqlite3.Error as error:
            raise cluster_error(error, self.config.path) from error

    async def rows(self, partition: int, offset: int, max_bytes: int, max_messages: int) -> tuple[list[Row], int]:
        """Return stored rows from an offset on, and the partition's tail; see `read.read`. Raises ClusterError and GapError."""
        rows, tail = await self.read(read_rows, partition, offset, max_bytes, max_messages)
        self.record_tail(partition, tail)
        return rows, tail

    def watch(self, partition: int, wake: asyncio.Event) -> None:
        """Set this event whenever the partition grows, until `unwatch`."""
        self._watchers.setdefault(partition, set()).add(wake)

    def unwatch(self, partition: int, wake: asyncio.Event) -> None:
        """Stop setting this event."""
        watchers = self._watchers.get(partition, set())
        watchers.discard(wake)
        if not watchers:
            self._watchers.pop(partition, None)

    def record_tail(self, partition: int, tail: int) -> None:
        """Record that the partition's tail is at least `tail`; wake its readers if the highest known tail was lower."""
        if tail > self.tails.get(partition, -1):
            self.tails[partition] = tail
            for wake in self._watchers.get(partition, ()):
                wake.set()

    async def _poll(self) -> None:
        """Look regularly for messages that other processes have appended, while partitions are read."""
        while True:
            await asyncio.sleep(self.config.poll)
            if self._watchers:
                try:
                    for partition, tail in (await self.read(self._changed_tails)).items():
                        self.record_tail(partition, tail)
                except ClusterError as error:
                    log.warning(
                        "log %s cannot be polled for new messages, retrying in %.0f s: %s", self.config.path, POLL_RETRY_S, error
                    )
                    await asyncio.sleep(POLL_RETRY_S)

    def _changed_tails(self, connection: sqlite3.Connection) -> Mapping[int, int]:
        """Return the tails of all partitions if another connection has committed since the last poll; else nothing."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version == self._data_version:
            return {}
        tails = topics.tails(connection)
        self._data_version = version  # after the query: if it fails, the next poll repeats it
        return tails

    async def _run_retention(self) -> None:
        """Drop the rows beyond the configured limits every RETENTION_INTERVAL_S; return at once if there are no limits."""
        while self.config.retention_bytes is not None or self.config.retention is not None:
            try:
                while await self.trim() >= retention.ROWS_PER_PASS:
                    pass
            except ClusterError as error:
                log.warning(
                    "deleting old messages from the embedded log's file %s failed, retrying in %.0f s: %s",
                    self.config.path,
                    RETENTION_INTERVAL_S,
                    error,
                )
            await asyncio.sleep(RETENTION_INTERVAL_S)

    async def trim(self) -> int:
        """Run one retention pass; return the number of dropped rows, each of which is a batch of messages."""
        age = self.config.retention
        before_ms = None if age is None else now_ms() - int(age * 1000)
        return await self.write(retention.trim, self.config.retention_bytes, before_ms)


def _close_unused(opening: "Future[sqlite3.Connection]") -> None:
    """Close a connection for which nobody waits any more; runs in the thread that opened it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _transaction(connection: sqlite3.Connection, job: Callable[[], T]) -> T:
    """Run a job in a transaction that locks the file for writing from its beginning; roll back if it fails."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = job()
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back by itself after some errors, such as a full disk.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return result


def clock_ms() -> int:
    """Return the time for leases in ms, by a clock that all processes of a machine share and that only a reboot resets."""
    return time.monotonic_ns() // 1_000_000


def now_ms() -> int:
    """Return the wall-clock time in ms since the epoch."""
    return time.time_ns() // 1_000_000
