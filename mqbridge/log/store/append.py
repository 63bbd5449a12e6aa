"""Appends the messages of sends to a log in groups, with one transaction and one disk sync per group.

A group contains the sends of one iteration of the event loop, or those that arrive while the disk writes the previous group.
Receipts follow the commit. Sends are stored in the order of the calls: a group that fails temporarily is retried unchanged,
before any later send.

The rows of a sender (`OutboundSpec.sender`) are compared with what is stored of it, in the transaction that stores them: what is
stored already is not stored again, so a repeated send is harmless, whoever repeats it. See `senders`.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from mqbridge import native
from mqbridge.adapter.receipt import MessageFailure, OffsetPositions, Receipt
from mqbridge.errors import ClusterError, Failure, TopicChanged
from mqbridge.log.store.clocks import ClockReading
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.database import Store
from mqbridge.log.store.extents import Extent, extent_of, write_extents
from mqbridge.log.store.new_row import NewRow
from mqbridge.log.store.retention import Limits, trim_extent
from mqbridge.log.store.schema import BatchStamp, batch_crc, stamp_text
from mqbridge.log.store.senders import PartlyStored, StoredSequences
from mqbridge.message import Position
from mqbridge.net.backoff import Backoff
from mqbridge.net.failing_sends import FailingSends

log = logging.getLogger(__name__)

_FORMAT_OF = attrgetter("format")
FAILING_LOG_S = 30.0
"""Pause between two log lines about sends that wait."""
GROUP_BYTES = 16 << 20
"""Maximum bytes of a transaction: large enough that many sends share one sync, and small enough for the
offset commits that wait for the writing thread."""


BlockKey = tuple[int, str | None]
"""What a failed append blocks: the ordered appends to this partition, of this sender, or with None of everybody."""


class Append:
    """One `Outbound.send` of `count` messages: its rows for one partition, and the future of its receipt.

    `partition` is the row id of the partition, `size` the number of bytes of all rows. `indexes` are the indexes of the messages
    that the rows contain; the other messages are in `failures`. If an `ordered` append fails, later ordered appends to its
    partition fail too. `deadline` is a loop time, after which the append is not retried; None: it is retried for ever.
    """

    __slots__ = (
        "count",
        "deadline",
        "failures",
        "future",
        "indexes",
        "is_withdrawn",
        "ordered",
        "partition",
        "rows",
        "sender",
        "size",
    )

    def __init__(
        self,
        partition: int,
        *,
        rows: list[NewRow],
        size: int,
        count: int,
        indexes: Sequence[int],
        failures: list[MessageFailure],
        ordered: bool,
        future: "asyncio.Future[Receipt]",
        deadline: float | None,
        sender: str | None = None,
    ) -> None:
        self.partition, self.rows, self.sender = partition, rows, sender
        self.count, self.indexes, self.failures = count, indexes, failures
        self.ordered, self.future, self.deadline = ordered, future, deadline
        self.size = size
        self.is_withdrawn = False
        """True once `Appender.withdraw` was called: the append must not be tried again."""

    def is_blocked(self, blocked: "Collection[BlockKey]") -> bool:
        """Return True if the append must not be stored, because one that it would overtake has failed."""
        return self.ordered and ((self.partition, None) in blocked or (self.partition, self.sender) in blocked)

    @property
    def blocked_if_dropped(self) -> "set[BlockKey]":
        """What must not be stored if this append is dropped: it would count as stored once a later one of its sender is."""
        return set() if self.sender is None else {(self.partition, self.sender)}

    def resolve(self, outcome: "Outcome") -> None:
        """Resolve the receipt by what the transaction did."""
        if isinstance(outcome, Written):
            # The receipt must not refer to this append, which refers to the future: the rows would stay until garbage collection.
            stored = self.indexes[outcome.repeated :] if outcome.repeated else self.indexes
            self._resolve(partial(_positions, outcome.tail - len(stored), self.count, stored))
        elif outcome.failure is Failure.RETRY:
            self.resolve_failed(str(outcome))
        elif not self.future.done():
            self.future.set_exception(outcome)

    def resolve_failed(self, reason: str) -> None:
        """Resolve the receipt: the messages are not stored, and may be sent again."""
        self.failures += [MessageFailure(index, Failure.RETRY, reason) for index in self.indexes]
        self.failures.sort(key=lambda failure: failure.index)
        self._resolve(partial(_positions, 0, self.count, ()))

    def _resolve(self, positions: Callable[[], Sequence[Position]] | Sequence[Position]) -> None:
        if not self.future.done():
            self.future.set_result(Receipt(positions, self.failures))


def _positions(first: int, count: int, indexes: Sequence[int]) -> Sequence[Position]:
    """Return the position of each message: those at `indexes`, which ascend, have the offsets from `first` on, the others ()."""
    if len(indexes) == count:
        return OffsetPositions(range(first, first + count))
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
        self._blocked: set[BlockKey] = set()
        """What the appends block that have failed in this iteration of the event loop: their callbacks, which tell the caller,
        have not run yet, and what the caller sends until then must not overtake them."""
        self.failing = FailingSends()
        """The temporary failures since a transaction succeeded."""
        self._logged_at = float("-inf")
        """Loop time at which it was logged last that the log cannot be written; -inf while it can."""
        self._scheduled: asyncio.Handle | None = None
        """The scheduled call of `_commit`; None while a transaction runs, and while there is nothing to store."""

    def append(self, append: Append) -> None:
        """Queue an append; its future gives the receipt."""
        if self._blocked and append.is_blocked(self._blocked):
            append.resolve_failed("an earlier send failed")
            return
        if append.sender is not None:
            append.future.add_done_callback(self._withdraw_cancelled)
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
        blocked: set[BlockKey] = set()
        if self._scheduled is not None:  # no transaction runs: the group waits for its next attempt
            self._group = _fail_withdrawn(self._group, blocked)
        self._queue = deque(_fail_withdrawn(self._queue, blocked))
        self._block(blocked)

    def _withdraw_cancelled(self, future: "asyncio.Future[Receipt]") -> None:
        """Treat a send of a sender whose receipt was cancelled as withdrawn."""
        if future.cancelled():
            self.withdraw([future])

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

    def _write(self) -> "asyncio.Future[list[Outcome]]":
        """Write the group in one transaction; the future gives the outcome of each append."""
        group, size = self._group, sum(append.size for append in self._group)
        return self._store.append(partial(write_group, group), size)

    def _fill_group(self) -> None:
        """Move appends from the queue into the group, up to GROUP_BYTES; drop those whose caller has cancelled the receipt."""
        size = sum(append.size for append in self._group)
        while self._queue and (not self._group or size + self._queue[0].size <= GROUP_BYTES):
            append = self._queue.popleft()
            if append.future.done():
                self._block(append.blocked_if_dropped)
            else:
                self._group.append(append)
                size += append.size

    def _fail_expired(self) -> None:
        """Fail the appends of the group whose deadline has passed during retries, and later ordered ones to the same partition.

        Appends whose receipt is already set or cancelled are dropped, with later ones of their senders.
        """
        now = asyncio.get_running_loop().time()
        blocked: set[BlockKey] = set()
        group = []
        for append in self._group:
            is_expired = append.deadline is not None and append.deadline <= now
            if not self._fail_if(append, blocked, is_expired=is_expired):
                group.append(append)
        self._group = group
        self._block(blocked)

    def _block(self, blocked: set[BlockKey]) -> None:
        """Fail the queued appends that these keys block, and those that come before the callbacks of the failures have run."""
        if blocked:
            self._queue = deque(each for each in self._queue if not self._fail_if(each, blocked))
            self._blocked |= blocked
            asyncio.get_running_loop().call_soon(self._blocked.difference_update, frozenset(blocked))

    def _fail_if(self, append: Append, blocked: set[BlockKey], *, is_expired: bool = False) -> bool:
        """Fail an append that is expired, or that must not overtake one that is; return True if it is done."""
        if is_expired or append.is_blocked(blocked):
            reason = "could not store it before its deadline" if is_expired else "could not store an earlier send"
            append.resolve_failed(f"the log {self._store.config.path} {reason}")
            if is_expired and append.ordered:
                blocked.add((append.partition, None))
        elif append.future.done():
            blocked |= append.blocked_if_dropped
        return append.future.done()

    def _on_written(self, result: "asyncio.Future[list[Outcome]]") -> None:
        """Give the group its receipts; after a temporary failure, or a cancelled transaction, schedule another attempt."""
        error = None if result.cancelled() else result.exception()
        if result.cancelled() or (isinstance(error, ClusterError) and error.failure is Failure.RETRY):
            blocked: set[BlockKey] = set()
            self._group = _fail_withdrawn(self._group, blocked)
            self._block(blocked)
            if isinstance(error, ClusterError):
                self._record_failure(error)
            self._scheduled = asyncio.get_running_loop().call_later(self._backoff.delay(), self._commit)
            return
        self._backoff.reset()
        group, self._group = self._group, []
        if error is None:
            self._record_success()
            self._resolve_group(group, result.result())
        else:
            self.failing.clear()
            self._fail_all(group, error)
        self._commit()

    def _resolve_group(self, group: Sequence[Append], outcomes: Sequence["Outcome"]) -> None:
        """Resolve the receipts of a group that was committed."""
        blocked: set[BlockKey] = set()
        for append, outcome in zip(group, outcomes, strict=True):
            append.resolve(outcome)
            if isinstance(outcome, Written):
                self._store.tails.record(append.partition, outcome.tail)
            elif append.sender is not None:
                blocked.add((append.partition, append.sender))
        self._block(blocked)

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
        blocked: set[BlockKey] = {(append.partition, None) for append in group if append.ordered}
        queued, self._queue = self._queue, deque()
        for append in group:
            if not append.future.done():
                append.future.set_exception(error)
        for append in queued:
            if not append.is_blocked(blocked):
                self._queue.append(append)
            elif not append.future.done():
                append.future.set_exception(error)
        self._block(blocked)


def _fail_withdrawn(appends: Iterable[Append], blocked: set[BlockKey]) -> list[Append]:
    """Fail the withdrawn appends, drop those whose receipt was cancelled, and return the others.

    Later appends of the same senders, which are added to `blocked`, fail, too.
    """
    remaining: list[Append] = []
    for append in appends:
        if append.is_withdrawn or append.future.done():
            append.resolve_failed("the send was withdrawn")
        elif append.is_blocked(blocked):
            append.resolve_failed("an earlier send was withdrawn")
        else:
            remaining.append(append)
            continue
        blocked |= append.blocked_if_dropped
    return remaining


class Written(NamedTuple):
    """What the transaction did with an append: `tail` is the offset after it, and `repeated` messages were stored before."""

    tail: int
    repeated: int


Outcome = Written | ClusterError
"""The result of one append of a committed group. With a ClusterError, nothing of the append was stored."""


INSERTED_TOGETHER = (32, 8, 1)
"""Numbers of rows that one statement inserts, from as many as there are: statements of one row each cost a third more CPU."""
COPIED_BYTES = 8 << 10
"""Records of up to this size are copied: Python's `sqlite3` looks for an adapter of `bytes` every time, which costs more."""
_SHARED_VALUES, _SHARED_WITH_SENDER = 4, 6
"""Number of values that the rows of a statement share: partition, two times, format; with a sender also its name and sequence."""


@cache
def _insert_statement(rows: int, *, has_sender: bool) -> str:
    """Return the statement that inserts this many rows. Its parameters are the shared values, and five values of each row."""
    stamp = "?2, ?3, ?4, ?5, ?6" if has_sender else "?2, ?3, ?4, NULL, NULL"
    first = 1 + (_SHARED_WITH_SENDER if has_sender else _SHARED_VALUES)
    values = (f"(?1, ?{at}, ?{at + 1}, ?{at + 2}, {stamp}, ?{at + 3}, ?{at + 4})" for at in range(first, first + 5 * rows, 5))
    return f"INSERT INTO batch VALUES {', '.join(values)}"  # noqa: S608 - numbers of parameters


def row_values(partition: int, base: int, rows: list[NewRow], stamp: BatchStamp) -> tuple[list[Any], int]:
    """Return five values of each row from this offset on: base, count, bytes, checksum, records; and the offset after them."""
    if native.compiled is not None:
        times = (stamp.appended_ms, stamp.age_ms)
        found: tuple[list[Any], int] = native.compiled.log_values(
            (partition, base, *times), stamp_text(stamp), rows, COPIED_BYTES
        )
        return found
    return row_values_plain(partition, base, rows, stamp)


def row_values_plain(partition: int, base: int, rows: list[NewRow], stamp: BatchStamp) -> tuple[list[Any], int]:
    """Return the same without the compiled module."""
    values: list[Any] = []
    for count, records, _, _, _ in rows:
        crc, size = batch_crc(partition, base, count, stamp, records), len(records)
        values += (base, count, size, crc, records if size > COPIED_BYTES else bytearray(records))
        base += count
    return values, base


class _Run(NamedTuple):
    """Consecutive rows of a partition, from the offset `base` on, that have the same stamp."""

    partition: int
    base: int
    rows: list[NewRow]
    stamp: BatchStamp

    def insert(self, cursor: sqlite3.Cursor) -> None:
        """Insert the rows, as many at once as possible. The values of all of them are never in memory together."""
        has_sender = self.stamp.sender is not None
        shared = (self.partition, *self.stamp)[: _SHARED_WITH_SENDER if has_sender else _SHARED_VALUES]
        base, at, count = self.base, 0, len(self.rows)
        for together in INSERTED_TOGETHER:
            statement = _insert_statement(together, has_sender=has_sender)
            while count - at >= together:
                values, base = row_values(self.partition, base, self.rows[at : at + together], self.stamp)
                cursor.execute(statement, (*shared, *values))
                at += together


class _Group:
    """The rows of a group, and the bounds of its partitions, while they are collected inside a transaction."""

    def __init__(self, connection: Connection, reading: ClockReading) -> None:
        self._connection, self._reading = connection, reading
        self._sequences: StoredSequences | None = None
        self._runs: list[_Run] = []
        self.extents: dict[int, Extent] = {}
        self.added: dict[int, int] = {}
        """Bytes of the rows by partition."""

    def add(self, append: Append) -> Outcome:
        """Add the rows of an append that are not stored yet."""
        partition = append.partition
        extent = self.extents.get(partition) or extent_of(self._connection, partition)
        if extent.is_deleted:
            return TopicChanged("the topic was deleted: create it again, and open it")
        first, tail, size = extent
        rows, repeated = append.rows, 0
        if append.sender is None:
            for unit_format, same in groupby(rows, key=_FORMAT_OF):
                tail = self._add_rows(partition, tail, list(same), unit_format)
            added = append.size
        else:
            if self._sequences is None:
                self._sequences = StoredSequences(self._connection)
            try:
                rows, repeated = self._sequences.leave_out_stored(partition, append.sender, append.rows)
            except PartlyStored as error:
                return error
            for row in rows:
                tail = self._add_rows(partition, tail, [row], row.format, append.sender, row.sequence)
            added = sum(len(row.records) for row in rows)
        self.added[partition] = self.added.get(partition, 0) + added
        self.extents[partition] = Extent(first, tail, size + added)
        return Written(tail, repeated)

    def _add_rows(
        self,
        partition: int,
        tail: int,
        rows: list[NewRow],
        unit_format: str | None,
        sender: str | None = None,
        sequence: int | None = None,
    ) -> int:
        """Add rows with one stamp from this offset on; return the offset after them."""
        stamp = BatchStamp(self._reading.wall_ms, self._reading.age_ms, unit_format, sender, sequence)
        self._runs.append(_Run(partition, tail, rows, stamp))
        return tail + sum([row[0] for row in rows])

    def insert(self) -> None:
        """Insert the rows."""
        cursor = self._connection.cursor()
        try:
            for run in self._runs:
                run.insert(cursor)
        finally:
            cursor.close()


def write_group(
    group: Sequence[Append], connection: Connection, reading: ClockReading, max_partition_bytes: int | None
) -> tuple[list[Outcome], dict[int, Extent]]:
    """Insert the rows of a group, inside a transaction; return the outcome of each append, and the new extents by partition.

    In partitions that get larger than `max_partition_bytes`, the oldest rows make room first.
    """
    collected = _Group(connection, reading)
    outcomes = [collected.add(append) for append in group]
    extents = collected.extents
    if max_partition_bytes is not None:
        _make_room(connection, collected.added, extents, max_partition_bytes)
    collected.insert()
    write_extents(connection, extents.items())
    return outcomes, extents


def _make_room(connection: Connection, added: dict[int, int], extents: dict[int, Extent], max_bytes: int) -> None:
    """Drop the oldest rows of the partitions that new rows of these sizes make too large, before they are inserted."""
    for partition, extent in extents.items():
        if extent.bytes > max_bytes:
            limits = Limits(max_bytes, None)
            extents[partition], _ = trim_extent(connection, partition, extent, limits, added=added.get(partition, 0))
