"""How far each source partition was delivered, in a small SQLite file beside the gateway.

The source's own group positions are what a restart resumes from. This file is what tells afterwards whether the source still
holds everything from there on: a partition whose first message lies beyond its checkpoint lost data that was never read.

The file is read once, when it is opened, and belongs to one gateway. A write that fails is tried again for as long as it takes.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mqbridge.adapter.deadlines import deadline_of, seconds_until
from mqbridge.delivery.state_lock import StateLock
from mqbridge.errors import ConfigError
from mqbridge.message import Partition, Position, format_position, parse_position

log = logging.getLogger(__name__)

WRITE_EVERY_S = 1.0
BUSY_S = 1.0
"""How long one write waits for somebody else who has the file locked (a backup, a person's query), before it is tried again."""
RETRY_CLOSE_S = 0.05

_SCHEMA = """
DROP TABLE IF EXISTS checkpoint; -- an earlier version's, which did not know of groups
CREATE TABLE IF NOT EXISTS delivered (
    route TEXT, grp TEXT, cluster TEXT, topic TEXT, partition TEXT, position TEXT NOT NULL, updated_ms INTEGER NOT NULL,
    PRIMARY KEY (route, grp, cluster, topic, partition)
) WITHOUT ROWID
"""


class Key(NamedTuple):
    """Whose progress it is: another group under the same route has read nothing yet."""

    route: str
    group: str
    cluster: str
    topic: str
    partition: str

    @classmethod
    def of(cls, route: str, group: str, partition: Partition) -> "Key":
        """The key of a partition of a route's group."""
        return cls(route, group, partition.cluster, partition.topic, partition.name)


class Checkpoints:
    """Positions by route, group and partition; noted in memory, written once a second and at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        check_folder(path)
        try:
            self._lock = StateLock(path)
        except OSError as error:
            raise _unusable(path, error, "Give `state` a path that can be written") from error
        try:
            self._db = _open(path)
            self._positions = _read(self._db)
        except (sqlite3.Error, ValueError) as error:
            self._lock.release()
            raise _unusable(path, error, _hint(error)) from error
        self._unwritten: dict[Key, Position] = {}
        self._is_failing = False
        self._writing = threading.Lock()
        """One thread at a time has the connection, also when a shutdown does not wait for the one before."""

    def load(self, route: str, group: str, partition: Partition) -> Position | None:
        """The position that follows the last message known to be delivered, written yet or not."""
        return self._positions.get(Key.of(route, group, partition))

    def note(self, route: str, group: str, partition: Partition, position: Position, *, may_go_back: bool = True) -> None:
        """Delivered up to here. After a seek that may be behind what was noted, but not from a lane that lost its partition."""
        key = Key.of(route, group, partition)
        if not may_go_back and position <= self._positions.get(key, ()):
            return
        self._positions[key] = self._unwritten[key] = position

    async def run(self) -> None:
        """Write what was noted, every second until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await self._write_noted(BUSY_S)

    async def close(self, deadline: float | None = None) -> None:
        """Write the rest, trying until the deadline, and close."""
        deadline = deadline_of(deadline)
        while self._unwritten:
            await self._write_noted(min(BUSY_S, seconds_until(deadline)))
            if not seconds_until(deadline):
                break
            if self._unwritten:
                await asyncio.sleep(RETRY_CLOSE_S)
        if self._unwritten:
            log.error(
                "the state file %s could not be written before the end: how far %d partitions were delivered last is not in it",
                self._path,
                len(self._unwritten),
            )
        await asyncio.to_thread(self._close)

    async def _write_noted(self, busy_s: float) -> None:
        # Taken on the event loop, where `note` runs too: the thread that writes gets a dict that nobody changes any more.
        noted, self._unwritten = self._unwritten, {}
        if not noted:
            return
        try:
            await asyncio.shield(asyncio.to_thread(self._write, noted, busy_s))
        except sqlite3.Error as error:
            if not self._is_failing:
                log.error("the state file %s cannot be written, trying again: %s", self._path, error)  # noqa: TRY400 - expected
            self._is_failing = True
            self._unwritten = noted | self._unwritten
        except asyncio.CancelledError:
            self._unwritten = noted | self._unwritten  # nobody knows; what is written twice is the same
            raise
        else:
            if self._is_failing:
                log.warning("the state file %s is written again", self._path)
            self._is_failing = False

    def _write(self, noted: Mapping[Key, Position], busy_s: float) -> None:
        now = int(time.time() * 1000)
        with self._writing:
            self._db.execute(f"PRAGMA busy_timeout = {int(busy_s * 1000)}")
            with self._db:
                self._db.executemany(
                    "INSERT OR REPLACE INTO delivered VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(*key, format_position(position), now) for key, position in noted.items()],
                )

    def _close(self) -> None:
        with self._writing:
            self._db.close()
        self._lock.release()


def check_folder(path: Path) -> None:
    """Raise ConfigError unless the state file's folder is there. It is never made: its path may be spelled wrong."""
    if not path.parent.is_dir():
        raise ConfigError(f"the folder {path.parent} does not exist", path="state", hint="Make it, or give `state` another path")


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_S, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _read(db: sqlite3.Connection) -> dict[Key, Position]:
    try:
        rows = db.execute("SELECT route, grp, cluster, topic, partition, position FROM delivered").fetchall()
        return {Key(*key): parse_position(position) for *key, position in rows}
    except (sqlite3.Error, ValueError):
        db.close()
        raise


def _hint(error: Exception) -> str:
    if isinstance(error, sqlite3.OperationalError):
        return "Give `state` a path that can be written, and wait until nobody else has it locked"
    return (
        "It is damaged, or no state file of mqbridge. Move it away to begin with an empty one: messages that the sources lost "
        "before that go unnoticed"
    )


def _unusable(path: Path, error: Exception, hint: str) -> ConfigError:
    return ConfigError(f"the state file {path} cannot be used: {error}", path="state", hint=hint)
