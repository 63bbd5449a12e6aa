"""Appends the messages of sends to a log in groups, with one transaction and one disk sync per group.

A group contains the sends of one iteration of the event loop, or those that arrive while the disk writes the previous group.
Receipts follow the commit. Sends are stored in the order of the calls: a group that fails temporarily is retried unchanged,
before any later send.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store.clocks import ClockReading
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.database import Store
from mqbridge.log.store.extents import Extent, extent_of, write_extents
from mqbridge.log.store.retention import Limits, trim_extent
from mqbridge.log.store.schema import BatchStamp, batch_crc
from mqbridge.message import Position
from mqbridge.net.backoff import Backoff
from mqbridge.net.failing_sends import FailingSends

log = logging.getLogger(__name__)

FAILING_LOG_S = 30.0
"""Pause between two log lines about sends that wait."""
GROUP_BYTES = 16 << 20
"""Maximum bytes of a transaction: large enough that many sends share one sync, and small enough for the
offset commits that wait for the writing thread."""


class Append:
    """One `Outbound.send` of `count` messages: its rows for one partition, and the future of its receipt.

    `partition` is the row id of the partition. `rows` are pairs of a message count and the encoded messages (records), and `size`
    is the number of bytes of all records. `indexes` are the indexes of the messages that the rows contain; the other messages are
    in `failures`. If an `ordered` append fails, later ordered appends to its partition fail too. `deadline` is a loop time, after
    which the append is not retried; None: it is retried for ever.
    """

    __slots__ = ("count", "deadline", "failures", "future", "indexes", "is_withdrawn", "ordered", "partition", "rows", "size")

    def __init__(
        self,
        partition: int,
        *,
        rows: list[tuple[int, bytes]],
        count: int,
        indexes: Sequence[int],
        failures: list[MessageFailure],
        ordered: bool,
        future: "asyncio.Future[Receipt]",
        deadline: float | None,
    ) -> None:
        self.partition, self.rows = partition, rows
        self.count, self.indexes, self.failures = count, indexes, failures
        self.ordered, self.future, self.deadline = ordered, future, deadline
        self.size = sum(len(row) for _, row in rows)
        self.is_withdrawn = False
        """True once `Appender.withdraw` was called: the append must not be tried again."""

    def resolve_stored(self, tail: int) -> None:
        """Resolve the receipt: the messages are stored, and `tail` is the offset after them."""
        # The receipt must not refer to this append, which refers to the future: the rows would stay until garbage collection.
        self._resolve(partial(_positions, tail - len(self.indexes), self.count, self.indexes))

    def resolve_failed(self, reason: str) -> None:
        """Resolve the receipt: the messages are not stored, and may be sent again."""
        self.failures += [MessageFailure(index, Failure.RETRY, reason) for index in self.indexes]
        self.failures.sort(key=lambda failure: failure.index)
        self._resolve(())

    def _resolve(self, positions: Callable[[], Sequence[Position]] | Sequence[Position]) -> None:
        if not self.future.done():
            self.future.set_result(Receipt(positions, self.failures))


def _positions(first: int, count: int, indexes: Sequence[int]) -> list[Position]:
    """Return the position of each message: those at `indexes` have the offsets from `first` on, the others ()."""
    positions: list[Position] = [()] * count
    for offset, index in enumerate(indexes, first):
        positions[index] = (offset,)
    return positions


class Appender:
    """Queues appends and writes them in the writing thread of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: deque[Append] = deque()
        self._group: list[Append] = []
        """The appends in the running transaction, or in the next one after a failure."""
        self._backoff = Backoff()
        self.failing = FailingSends()
        """The temporary failures since a transaction succeeded."""
        self._logged_at = float("-inf")
        """Loop time at which it was logged last that the log cannot be written; -inf while it can."""
        self._scheduled: asyncio.Handle | None = None
        """The scheduled call of `_commit`; None while a transaction runs, and while there is nothing to store."""

    def append(self, append: Append) -> None:
        """Queue an append; its future gives the receipt."""
        self._queue.append(append)
        if self._scheduled is None and not self._group:
            self._scheduled = asyncio.get_running_loop().call_soon(self._commit)

    def abandon(self, futures: "set[asyncio.Future[Receipt]]") -> None:
        """Fail these sends with FATAL, because their outbound is closed. Those in the running transaction may still be stored."""
        error = ClusterError(
            f"the outbound was closed before the log {self._store.config.path} had stored everything", Failure.FATAL
        )
        self._queue = deque(append for append in self._queue if append.future not in futures)
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def withdraw(self, futures: "Collection[asyncio.Future[Receipt]]") -> None:
        """Let these sends fail with RETRY, because their source partition has another consumer now.

        Those in the running transaction get its result, unless it fails temporarily: then they fail instead of being retried.
        """
        for append in (*self._group, *self._queue):
            append.is_withdrawn |= append.future in futures
        self._queue = deque(_fail_withdrawn(self._queue))
        if self._scheduled is not None:  # no transaction runs: the group waits for its next attempt
            self._group = _fail_withdrawn(self._group)

    def _commit(self) -> None:
        """Fill the group from the queue and write it in one transaction; fail everything if the log is closed."""
        self._scheduled = None
        if self._group:  # after a failed attempt; an append that is tried for the first time has time for this attempt
            self._fail_expired()
        self._fill_group()
        if self._group and not self._store.is_open:
            group, self._group = [*self._group, *self._queue], []
            self._queue.clear()
            self._fail_all(group, ClusterError(f"the log {self._store.config.path} is closed", Failure.FATAL))
        elif self._group:
            self._write().add_done_callback(self._on_written)

    def _write(self) -> "asyncio.Future[list[int]]":
        """Write the group in one transaction; the future gives the offset after each append."""
        group, size = self._group, sum(append.size for append in self._group)
        return self._store.append(partial(write_group, group), size)

    def _fill_group(self) -> None:
        """Move appends from the queue into the group, up to GROUP_BYTES; drop those whose caller has cancelled the receipt."""
        size = sum(append.size for append in self._group)
        while self._queue and (not self._group or size + self._queue[0].size <= GROUP_BYTES):
            append = self._queue.popleft()
            if not append.future.done():
                self._group.append(append)
                size += append.size

    def _fail_expired(self) -> None:
        """Fail the appends of the group whose deadline has passed during retries, and later ordered ones to the same partition.

        Appends whose receipt is already set or cancelled are dropped.
        """
        now = asyncio.get_running_loop().time()
        blocked_partitions: set[int] = set()
        """Partitions with an expired ordered append, which later ones must not overtake."""
        group = []
        for append in self._group:
            is_expired = append.deadline is not None and append.deadline <= now
            if not self._fail_if(append, blocked_partitions, is_expired=is_expired):
                group.append(append)
        self._group = group
        if blocked_partitions:
            self._queue = deque(each for each in self._queue if not self._fail_if(each, blocked_partitions))

    def _fail_if(self, append: Append, blocked_partitions: set[int], *, is_expired: bool = False) -> bool:
        """Fail an append that is expired, or that must not overtake one that is; return True if it is done."""
        if is_expired or (append.ordered and append.partition in blocked_partitions):
            failed_send = "it" if is_expired else "an earlier send"
            append.resolve_failed(f"the log {self._store.config.path} could not store {failed_send} before its deadline")
            if append.ordered:
                blocked_partitions.add(append.partition)
        return append.future.done()

    def _on_written(self, result: "asyncio.Future[list[int]]") -> None:
        """Give the group its receipts; after a temporary failure, or a cancelled transaction, schedule another attempt."""
        error = None if result.cancelled() else result.exception()
        if result.cancelled() or (isinstance(error, ClusterError) and error.failure is Failure.RETRY):
            self._group = _fail_withdrawn(self._group)
            if isinstance(error, ClusterError):
                self._record_failure(error)
            self._scheduled = asyncio.get_running_loop().call_later(self._backoff.delay(), self._commit)
            return
        self._backoff.reset()
        group, self._group = self._group, []
        if error is None:
            self._record_success()
            for append, tail in zip(group, result.result(), strict=True):
                append.resolve_stored(tail)
                self._store.tails.record(append.partition, tail)
        else:
            self.failing.clear()
            self._fail_all(group, error)
        self._commit()

    def _record_failure(self, error: ClusterError) -> None:
        """Record and log that the sends wait, and why: at once, and then every FAILING_LOG_S."""
        self.failing.record(error)
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= FAILING_LOG_S:
            self._logged_at = now
            waiting = len(self._group) + len(self._queue)
            log.warning("%d sends wait because the embedded log cannot be written, which is tried again: %s", waiting, error)

    def _record_success(self) -> None:
        self.failing.clear()
        if self._logged_at != float("-inf"):
            self._logged_at = float("-inf")
            log.info("the embedded log %s can be written again", self._store.config.path)

    def _fail_all(self, group: Sequence[Append], error: BaseException) -> None:
        """Fail these appends with `error`, and the queued ordered ones to the same partitions, which must not overtake them."""
        ordered = {append.partition for append in group if append.ordered}
        queued, self._queue = self._queue, deque()
        for append in group:
            if not append.future.done():
                append.future.set_exception(error)
        for append in queued:
            if not (append.ordered and append.partition in ordered):
                self._queue.append(append)
            elif not append.future.done():
                append.future.set_exception(error)


def _fail_withdrawn(appends: Iterable[Append]) -> list[Append]:
    """Fail the withdrawn appends; return the others."""
    remaining = []
    for append in appends:
        if append.is_withdrawn:
            append.resolve_failed("the send was withdrawn")
        else:
            remaining.append(append)
    return remaining


def write_group(
    group: Sequence[Append], connection: Connection, reading: ClockReading, max_partition_bytes: int | None
) -> tuple[list[int], dict[int, Extent]]:
    """Insert the rows of a group, inside a transaction; return the offset after each append, and the new extents by partition.

    In partitions that get larger than `max_partition_bytes`, the oldest rows make room first.
    """
    stamp = BatchStamp(reading.wall_ms, reading.age_ms)
    extents: dict[int, Extent] = {}
    next_offsets: list[int] = []
    rows = []
    for append in group:
        partition = append.partition
        first, tail, size = extents.get(partition) or extent_of(connection, partition)
        for count, records in append.rows:
            crc = batch_crc(partition, tail, count, stamp, records)
            rows.append((partition, tail, count, len(records), *stamp, crc, records))
            tail += count
        extents[partition] = Extent(first, tail, size + append.size)
        next_offsets.append(tail)
    if max_partition_bytes is not None:
        _make_room(connection, group, extents, max_partition_bytes)
    connection.executemany("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    write_extents(connection, extents.items())
    return next_offsets, extents


def _make_room(connection: Connection, group: Sequence[Append], extents: dict[int, Extent], max_bytes: int) -> None:
    """Drop the oldest rows of the partitions that the group makes too large, before its rows are inserted."""
    for partition, extent in extents.items():
        if extent.bytes > max_bytes:
            added = sum(append.size for append in group if append.partition == partition)
            extents[partition], _ = trim_extent(connection, partition, extent, Limits(max_bytes, None), added=added)
