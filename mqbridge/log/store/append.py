"""Appending: group commit.

What is appended within one turn of the loop, and while the disk is busy with the group before, goes into one transaction: one
sync for all of it. A receipt comes after the commit. Order is the order of the calls, and a group that fails for a while is
tried again as it is, before anything that came later.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.store.database import Store, now_ms
from mqbridge.log.wire.records import checksum
from mqbridge.message import Position
from mqbridge.net.backoff import Backoff

GROUP_BYTES = 16 << 20
"""Most bytes in one transaction: enough that a sync is shared by many, little enough that positions need not wait long."""


class Append:
    """One `send` of `count` messages: rows for one partition, and who waits for the receipt.

    `indexes` are those of the messages that are in the rows; the others have failed already. When an `ordered` one fails, those
    that were sent behind it to its partition fail too.
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
        self.partition, self.rows, self.count, self.indexes, self.failures = partition, rows, count, indexes, failures
        self.ordered, self.future, self.deadline = ordered, future, deadline
        self.size = sum(len(row) for _, row in rows)
        self.is_withdrawn = False

    def stored(self, tail: int) -> None:
        """It is stored, right before the offset `tail`."""
        # Nothing of this append: it has the future, and the receipt in it would keep the rows until garbage is looked for.
        self._resolve(partial(_positions, tail - len(self.indexes), self.count, self.indexes))

    def failed(self, reason: str) -> None:
        """It is not stored, and may be sent again."""
        self.failures += [MessageFailure(index, Failure.RETRY, reason) for index in self.indexes]
        self.failures.sort(key=lambda failure: failure.index)
        self._resolve(())

    def _resolve(self, positions: Callable[[], Sequence[Position]] | Sequence[Position]) -> None:
        if not self.future.done():
            self.future.set_result(Receipt(positions, self.failures))


def _positions(first: int, count: int, indexes: Sequence[int]) -> list[Position]:
    found: list[Position] = [()] * count
    for offset, index in enumerate(indexes, first):
        found[index] = (offset,)
    return found


class Appender:
    """The queue into the writing thread of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: deque[Append] = deque()
        self._group: list[Append] = []
        self._backoff = Backoff()
        self._scheduled: asyncio.Handle | None = None

    def append(self, append: Append) -> None:
        """Queue it; its future becomes the receipt."""
        self._queue.append(append)
        if self._scheduled is None and not self._group:
            self._scheduled = asyncio.get_running_loop().call_soon(self._commit)

    def abandon(self, futures: "set[asyncio.Future[Receipt]]") -> None:
        """Fail these: their outbound no longer waits. What is in the running transaction may still be stored."""
        error = ClusterError(
            f"the outbound was closed before the log {self._store.config.path} had stored everything", Failure.FATAL
        )
        self._queue = deque(append for append in self._queue if append.future not in futures)
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def withdraw(self, futures: "Collection[asyncio.Future[Receipt]]") -> None:
        """Fail those of these that are in no running transaction, and the others if that fails for a while."""
        for append in (*self._group, *self._queue):
            append.is_withdrawn |= append.future in futures
        self._queue = deque(_kept(self._queue))
        if self._scheduled is not None:
            self._group = _kept(self._group)

    def _commit(self) -> None:
        self._scheduled = None
        self._drop_late()
        size = sum(append.size for append in self._group)
        while self._queue and (not self._group or size + self._queue[0].size <= GROUP_BYTES):
            append = self._queue.popleft()
            self._group.append(append)
            size += append.size
        if self._group and not self._store.is_open:
            group, self._group = [*self._group, *self._queue], []
            self._queue.clear()
            self._refused(group, ClusterError(f"the log {self._store.config.path} is closed", Failure.FATAL))
        elif self._group:
            self._store.write(write_group, self._group, now_ms()).add_done_callback(self._committed)

    def _drop_late(self) -> None:
        """Report what was retried for as long as its outbound allows."""
        now = asyncio.get_running_loop().time()
        held_up: set[int] = set()
        """Partitions of which something ordered is late: nothing may overtake it."""
        kept: list[Append] = []
        for append in (*self._group, *self._queue):
            is_late = append in self._group and append.deadline is not None and append.deadline <= now
            if is_late or (append.ordered and append.partition in held_up):
                what = "it" if is_late else "what was sent before it"
                append.failed(f"the log {self._store.config.path} could not store {what} in the time allowed")
                if append.ordered:
                    held_up.add(append.partition)
            elif not append.future.done():
                kept.append(append)
        if len(kept) < len(self._group) + len(self._queue):
            self._group = [append for append in kept if append in self._group]
            self._queue = deque(append for append in kept if append not in self._group)

    def _committed(self, written: "asyncio.Future[list[int]]") -> None:
        error = None if written.cancelled() else written.exception()
        if written.cancelled() or (isinstance(error, ClusterError) and error.failure is Failure.RETRY):
            self._group = _kept(self._group)
            self._scheduled = asyncio.get_running_loop().call_later(self._backoff.delay(), self._commit)
            return
        self._backoff.reset()
        group, self._group = self._group, []
        if error is None:
            for append, tail in zip(group, written.result(), strict=True):
                append.stored(tail)
                self._store.heard(append.partition, tail)
        else:
            self._refused(group, error)
        self._commit()

    def _refused(self, group: Sequence[Append], error: BaseException) -> None:
        """Nobody can store these; what is ordered behind them fails with them."""
        ordered = {append.partition for append in group if append.ordered}
        behind = [append for append in self._queue if append.ordered and append.partition in ordered]
        self._queue = deque(append for append in self._queue if append not in behind)
        for append in (*group, *behind):
            if not append.future.done():
                append.future.set_exception(error)


def _kept(appends: Iterable[Append]) -> list[Append]:
    """Those that were not taken back; the others fail."""
    kept = []
    for append in appends:
        if append.is_withdrawn:
            append.failed("it was taken back")
        else:
            kept.append(append)
    return kept


def write_group(connection: sqlite3.Connection, group: Sequence[Append], appended_ms: int) -> list[int]:
    """Store a group inside a transaction; the next offset of its partition after each append."""
    tails: dict[int, int] = {}
    sizes: dict[int, int] = {}
    after: list[int] = []
    rows: list[tuple[int, int, int, int, int, int, bytes]] = []
    for append in group:
        partition = append.partition
        tail = tails.get(partition)
        if tail is None:
            (tail,) = connection.execute("SELECT next FROM partition WHERE id = ?", (partition,)).fetchone()
        for count, records in append.rows:
            rows.append((partition, tail, count, len(records), appended_ms, checksum(tail, count, records), records))
            tail += count
        tails[partition] = tail
        sizes[partition] = sizes.get(partition, 0) + append.size
        after.append(tail)
    connection.executemany("INSERT INTO batch VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    connection.executemany(
        "UPDATE partition SET next = ?, bytes = bytes + ? WHERE id = ?",
        [(tail, sizes[partition], partition) for partition, tail in tails.items()],
    )
    return after
