"""The tails of partitions, as far as they are known, and the events of readers that wait for messages behind them.

The tail of a partition is the offset of its next message. Appends of this process are recorded at once. Those of other processes
are found by polls: SQLite's data version, which costs microseconds, tells whether another connection has committed. The ids of
batches grow, since the newest batch of the file is never dropped, so a poll reads what is new, and nothing else. Readers of a
topic that another process has deleted are woken, too: they get an error.

A reader clears its event, reads, and waits for the event: growth after the read sets it again.
"""

import asyncio
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from mqbridge.log.store.batch_scan import last_row
from mqbridge.log.store.connection import Connection, is_damage
from mqbridge.log.store.extents import extent_of

NEW_BATCHES = "SELECT partition FROM batch NOT INDEXED WHERE rowid > ?"
"""Without NOT INDEXED, SQLite scans the whole index of offsets instead of these rows."""


class Changes(NamedTuple):
    """What a poll has found: the tails of watched partitions that have grown, and the watched partitions of deleted topics."""

    tails: Mapping[int, int]
    deleted: Collection[int]


UNCHANGED = Changes({}, ())


class Tails:
    """The known tails of one log. `begin` and `find_new` run in the reading thread, everything else in the event loop."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        """The highest known tail, by partition id."""
        self._watchers: dict[int, set[asyncio.Event]] = {}
        """Events that are set when a partition grows, by partition id."""
        self._data_version = -1
        """SQLite's data version at the last poll, -1 before the first one."""
        self._topics: object = None
        """Number of topics, and the highest id of one, at the last poll: a topic was deleted only if they have changed."""
        self._last_row = 0
        """Id of the newest batch when the file was opened, or at the last poll: whoever reads later finds it."""

    def begin(self, connection: Connection) -> None:
        """Forget what was known before the file was opened."""
        self.known.clear()
        self._data_version, self._last_row = -1, _newest_row(connection, 0)
        self._topics = _topics_in(connection, None)

    @property
    def watched(self) -> frozenset[int]:
        """The ids of the partitions that are read."""
        return frozenset(self._watchers)

    def watch(self, partition: int, wake: asyncio.Event) -> None:
        """Set this event whenever the partition grows, until `unwatch`."""
        self._watchers.setdefault(partition, set()).add(wake)

    def unwatch(self, partition: int, wake: asyncio.Event) -> None:
        """Stop setting this event."""
        watchers = self._watchers.get(partition, set())
        watchers.discard(wake)
        if not watchers:
            self._watchers.pop(partition, None)

    def record(self, partition: int, tail: int) -> None:
        """Record that the partition's tail is at least `tail`; wake its readers if the highest known tail was lower."""
        if tail > self.known.get(partition, -1):
            self.known[partition] = tail
            for wake in self._watchers.get(partition, ()):
                wake.set()

    def wake(self, partitions: Iterable[int]) -> None:
        """Let the readers of these partitions find out that their topic was deleted."""
        for partition in partitions:
            for wake in self._watchers.get(partition, ()):
                wake.set()

    def wake_all(self) -> None:
        """Let all readers find out that the store has stopped, or is closed."""
        for wakes in self._watchers.values():
            for wake in wakes:
                wake.set()

    def find_new(self, connection: Connection, watched: frozenset[int]) -> Changes:
        """Return what has changed in the watched partitions since the last poll."""
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if version == self._data_version:
            return UNCHANGED
        connection.execute("BEGIN")  # all queries see the file in the same state
        newest_row = _newest_row(connection, self._last_row)
        tails = {id_: extent_of(connection, id_).next for id_ in self._changed(connection, watched)}
        topics, deleted = _topics_in(connection, self._topics), list[int]()
        if topics != self._topics:
            deleted = [id_ for id_ in watched if extent_of(connection, id_).is_deleted]
        # After the queries: if one fails, the next poll repeats it.
        self._data_version, self._last_row, self._topics = version, newest_row, topics
        return Changes(tails, deleted)

    def _changed(self, connection: Connection, watched: frozenset[int]) -> frozenset[int]:
        """Return the watched partitions with batches since the last poll; all if damage hides which those are."""
        if not watched:
            return watched
        try:
            return watched.intersection(id_ for (id_,) in connection.execute(NEW_BATCHES, (self._last_row,)))
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            connection.report(f"batches cannot be read ({error}), so all partitions are polled")
            return watched


def _newest_row(connection: Connection, otherwise: int) -> int:
    """Return the id of the newest batch; `otherwise` if damage hides it."""
    try:
        return last_row(connection)
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return otherwise


def _topics_in(connection: Connection, otherwise: object) -> object:
    """Return the number of topics and the highest id of one; `otherwise` if damage hides them."""
    try:
        return connection.execute("SELECT count(*), max(id) FROM topic").fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return otherwise
