"""Checkpoints: the delivered position of each source partition, in a small SQLite file (the state file).

A restart resumes from the group's positions in the source, not from the checkpoints. Checkpoints detect gaps: if the first
message of a partition lies after its checkpoint, the source has lost messages that were never read. There is one exception: for
partitions that this gateway holds and has not released, the file also has the positions to which the group has to be set back if
a server has moved it on by itself (see `mqbridge.adapter.inbound.HeldPositions`).

The file also keeps what was read of a partition last, if its adapter can find out whether the server still has it.

The file also keeps which partitions stopped because they ended before the group's position: new messages beyond it must not hide
that those before it were never read.

The file also keeps which brokers had partitions of a topic, and over which of them indexes are counted: see
`mqbridge.adapter.known_brokers`. A restart finds out by it that one is missing.

One gateway owns the file, and reads it only once, when it opens it. A failed write is retried every second, without limit until
the gateway stops.
"""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mqbridge.adapter.known_brokers import KnownBrokers, Series
from mqbridge.adapter.tools.deadlines import resolve_deadline, seconds_until
from mqbridge.delivery.state_brokers import BrokerRow, load_brokers, read_brokers
from mqbridge.delivery.state_lock import StateLock
from mqbridge.errors import ConfigError
from mqbridge.message import Partition, Position, format_position, parse_position

log = logging.getLogger(__name__)

WRITE_INTERVAL_S = 1.0
"""Interval between two writes. A crash loses the positions since the last write, and only the gap check uses them."""
BUSY_TIMEOUT_S = 1.0
"""How long one write waits for another process that has the file locked (a backup, a query) before it fails and is retried."""
CLOSE_RETRY_PAUSE_S = 0.05
"""Pause before `close` retries a failed write: it may have little time left."""

_SCHEMA = """
DROP TABLE IF EXISTS checkpoint; -- the table of an earlier version, which had no groups
CREATE TABLE IF NOT EXISTS delivered (
    route TEXT, grp TEXT, cluster TEXT, topic TEXT, partition TEXT, position TEXT NOT NULL, updated_ms INTEGER NOT NULL,
    PRIMARY KEY (route, grp, cluster, topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS held (
    route TEXT, grp TEXT, cluster TEXT, topic TEXT, partition TEXT, confirmed TEXT NOT NULL, upper_limit TEXT NOT NULL,
    PRIMARY KEY (route, grp, cluster, topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS last_read (
    route TEXT, grp TEXT, cluster TEXT, topic TEXT, partition TEXT, trace TEXT NOT NULL,
    PRIMARY KEY (route, grp, cluster, topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS went_back (
    route TEXT, grp TEXT, cluster TEXT, topic TEXT, partition TEXT, ended TEXT NOT NULL, position TEXT NOT NULL,
    PRIMARY KEY (route, grp, cluster, topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen_broker (
    cluster TEXT, topic TEXT, broker TEXT, PRIMARY KEY (cluster, topic, broker)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS layout (
    cluster TEXT, topic TEXT, broker TEXT, store INTEGER, PRIMARY KEY (cluster, topic, broker, store)
) WITHOUT ROWID
"""

Held = tuple[Position, Position]
"""Up to where the messages of a held partition are confirmed, and up to where a server may have moved the group by itself."""

Trace = tuple[Position, ...]
"""What was read of a partition last, in a form of its adapter (see `mqbridge.adapter.inbound.HeldPositions`)."""

WentBack = tuple[Position, Position]
"""The end of a partition that stopped because it ended before its reader's position, and that position."""


class CheckpointKey(NamedTuple):
    """Key of a checkpoint. It includes the group: if a route's group is replaced, the new group starts without checkpoints."""

    route: str
    group: str
    cluster: str
    topic: str
    partition: str

    @classmethod
    def of(cls, route: str, group: str, partition: Partition) -> "CheckpointKey":
        """Return the key of a partition for a route's group."""
        return cls(route, group, partition.cluster, partition.topic, partition.name)


class Checkpoints:
    """Positions by route, group and partition; recorded in memory, and written once a second and by `close`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        check_folder(path)
        try:
            self._lock = StateLock(path)
        except OSError as error:
            raise _unusable_error(path, error, "Give `state` a path that can be written") from error
        try:
            self._db = _open_database(path)
            self._positions, self._held, self._went_back = _read_positions(self._db)
            self._traces = _read_traces(self._db)
            self._seen_brokers, self._layouts = read_brokers(self._db)
        except (sqlite3.Error, ValueError) as error:
            self._lock.release()
            raise _unusable_error(path, error, _hint(error)) from error
        self._unwritten: dict[CheckpointKey, Position] = {}
        self._unwritten_held: dict[CheckpointKey, Held | None] = {}
        """Changes of `_held`; None for a partition that was released."""
        self._unwritten_traces: dict[CheckpointKey, Trace] = {}
        """Changes of `_traces`."""
        self._unwritten_went_back: dict[CheckpointKey, WentBack | None] = {}
        """Changes of `_went_back`; None for a partition that may be read again."""
        self._unwritten_brokers: set[BrokerRow] = set()
        """New rows of `seen_broker`."""
        self._unwritten_layouts: dict[tuple[str, str], Collection[Series]] = {}
        """New rows of `layout`, by cluster and topic; they replace the earlier ones."""
        self._last_write_failed = False
        """Only the first failed write and the first successful one after it are logged."""
        self._connection_lock = threading.Lock()
        """Held by the thread that uses the SQLite connection. `close` may start a write before an earlier one has ended."""
        self._write_lock = asyncio.Lock()
        """Held during a write: one that fails must not bring back older positions than a later one has written."""

    def load(self, route: str, group: str, partition: Partition) -> Position | None:
        """Return the recorded position: the one after the last delivered message. It may not be written to the file yet."""
        return self._positions.get(CheckpointKey.of(route, group, partition))

    def record(self, route: str, group: str, partition: Partition, position: Position, *, may_go_back: bool = True) -> None:
        """Record the position after the last delivered message.

        It may be lower than the recorded one, after a seek. Pass `may_go_back=False` for a lane whose partition was revoked: a
        position that is not higher is then ignored, because the partition's next lane may have recorded later ones.
        """
        key = CheckpointKey.of(route, group, partition)
        if not may_go_back and position <= self._positions.get(key, ()):
            return
        self._positions[key] = self._unwritten[key] = position

    def held(self, key: CheckpointKey) -> Held | None:
        """Return the positions of a partition that was held and not released; None if it was released, or never held."""
        return self._held.get(key)

    def record_held(self, key: CheckpointKey, held: Held | None) -> None:
        """Record the positions of a held partition; None if it was released."""
        if held is not None:
            self._held[key] = self._unwritten_held[key] = held
        elif self._held.pop(key, None) is not None:
            self._unwritten_held[key] = None

    def went_back(self, key: CheckpointKey) -> WentBack | None:
        """Return the end and the position of a partition that stopped because it ended before the position; else None."""
        return self._went_back.get(key)

    def trace(self, key: CheckpointKey) -> Trace:
        """Return what was read of a partition last; empty if nothing was."""
        return self._traces.get(key, ())

    def record_trace(self, key: CheckpointKey, trace: Trace) -> None:
        """Record what was read of a partition last."""
        if self._traces.get(key, ()) != trace:
            self._traces[key] = self._unwritten_traces[key] = trace

    def record_went_back(self, key: CheckpointKey, stop: WentBack | None) -> None:
        """Record that a partition stopped because it ended before its reader's position; None: it may be read again."""
        if stop is not None:
            self._went_back[key] = self._unwritten_went_back[key] = stop
        elif self._went_back.pop(key, None) is not None:
            self._unwritten_went_back[key] = None

    def keep_brokers(self, cluster: str, known: KnownBrokers) -> None:
        """Load what is recorded about the brokers of a cluster, and record what changes."""

        def on_seen(topic: str, broker: str) -> None:
            row = (cluster, topic, broker)
            self._seen_brokers.add(row)
            self._unwritten_brokers.add(row)

        load_brokers(known, cluster, self._seen_brokers, self._layouts, on_seen, partial(self._record_layout, cluster))

    def restore_layouts(self, cluster: str, known: KnownBrokers) -> None:
        """Record the layouts of a cluster as they are in `known`: a configuration that changed them is not used after all."""
        recorded = {topic for name, topic in self._layouts if name == cluster}
        for topic in recorded | known.layouts.keys():
            self._record_layout(cluster, topic, known.layouts.get(topic, ()))

    def _record_layout(self, cluster: str, topic: str, series: Collection[Series]) -> None:
        self._layouts[cluster, topic] = self._unwritten_layouts[cluster, topic] = series

    async def flush(self) -> None:
        """Write what is recorded now. If that fails, it is retried and logged as every write is."""
        await self._write_pending(BUSY_TIMEOUT_S)

    async def run(self) -> None:
        """Write recorded positions every second, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_INTERVAL_S)
            await self._write_pending(BUSY_TIMEOUT_S)

    async def close(self, deadline: float | None = None) -> None:
        """Write the remaining positions, retrying until `deadline` (event loop time; None: 30 s from now), and close."""
        deadline = resolve_deadline(deadline)
        while self._has_unwritten:
            await self._write_pending(min(BUSY_TIMEOUT_S, seconds_until(deadline)))
            if not seconds_until(deadline):
                break
            if self._has_unwritten:
                await asyncio.sleep(CLOSE_RETRY_PAUSE_S)
        if self._has_unwritten:
            log.error(
                "the state file %s could not be written before the shutdown deadline: it lacks new positions of %d partitions, "
                "so the next start may not detect all gaps",
                self._path,
                len(self._unwritten.keys() | self._unwritten_held.keys() | self._unwritten_went_back.keys()),
            )
        await asyncio.to_thread(self._close_database)

    @property
    def _has_unwritten(self) -> bool:
        return bool(
            self._unwritten
            or self._unwritten_held
            or self._unwritten_traces
            or self._unwritten_went_back
            or self._unwritten_brokers
            or self._unwritten_layouts
        )

    async def _write_pending(self, busy_timeout_s: float) -> None:
        """Write what was recorded since the last write, after any write that runs; after a failure, keep it for the next call."""
        async with self._write_lock:
            await self._write_once(busy_timeout_s)

    async def _write_once(self, busy_timeout_s: float) -> None:
        # Replaced on the event loop, where `record` runs too, so that nothing changes the dict while a thread writes it.
        recorded, self._unwritten = self._unwritten, {}
        held, self._unwritten_held = self._unwritten_held, {}
        traces, self._unwritten_traces = self._unwritten_traces, {}
        went_back, self._unwritten_went_back = self._unwritten_went_back, {}
        brokers, self._unwritten_brokers = self._unwritten_brokers, set()
        layouts, self._unwritten_layouts = self._unwritten_layouts, {}
        if not (recorded or held or traces or went_back or brokers or layouts):
            return

        def keep() -> None:
            self._unwritten, self._unwritten_held = recorded | self._unwritten, held | self._unwritten_held
            self._unwritten_traces = traces | self._unwritten_traces
            self._unwritten_went_back = went_back | self._unwritten_went_back
            self._unwritten_brokers |= brokers
            self._unwritten_layouts = layouts | self._unwritten_layouts

        try:
            await asyncio.shield(
                asyncio.to_thread(self._write, recorded, held, traces, went_back, brokers, layouts, busy_timeout_s)
            )
        except sqlite3.Error as error:
            if not self._last_write_failed:
                log.error("the state file %s cannot be written, retrying until the gateway stops: %s", self._path, error)  # noqa: TRY400 - expected
            self._last_write_failed = True
            keep()
        except asyncio.CancelledError:
            keep()  # the write may have happened; writing it twice is harmless
            raise
        else:
            if self._last_write_failed:
                log.warning("the state file %s can be written again", self._path)
            self._last_write_failed = False

    def _write(
        self,
        recorded: Mapping[CheckpointKey, Position],
        held: Mapping[CheckpointKey, Held | None],
        traces: Mapping[CheckpointKey, Trace],
        went_back: Mapping[CheckpointKey, WentBack | None],
        brokers: Collection[BrokerRow],
        layouts: Mapping[tuple[str, str], Collection[Series]],
        busy_timeout_s: float,
    ) -> None:
        now = int(time.time() * 1000)
        with self._connection_lock:
            self._db.execute(f"PRAGMA busy_timeout = {int(busy_timeout_s * 1000)}")
            with self._db:
                self._db.executemany(
                    "INSERT OR REPLACE INTO delivered VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(*key, format_position(position), now) for key, position in recorded.items()],
                )
                self._db.executemany(
                    "INSERT OR REPLACE INTO last_read VALUES (?, ?, ?, ?, ?, ?)",
                    [(*key, " ".join(map(format_position, trace))) for key, trace in traces.items()],
                )
                for table, pairs in (("held", held), ("went_back", went_back)):
                    self._db.executemany(
                        f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - a constant
                        [(*key, *map(format_position, each)) for key, each in pairs.items() if each is not None],
                    )
                    self._db.executemany(
                        f"DELETE FROM {table} WHERE (route, grp, cluster, topic, partition) = (?, ?, ?, ?, ?)",  # noqa: S608 - a constant
                        [key for key, each in pairs.items() if each is None],
                    )
                self._db.executemany("INSERT OR IGNORE INTO seen_broker VALUES (?, ?, ?)", brokers)
                self._db.executemany("DELETE FROM layout WHERE (cluster, topic) = (?, ?)", layouts)
                self._db.executemany(
                    "INSERT INTO layout VALUES (?, ?, ?, ?)",
                    [(*key, *series) for key, each in layouts.items() for series in each],
                )

    def _close_database(self) -> None:
        with self._connection_lock:
            self._db.close()
        self._lock.release()


def check_folder(path: Path) -> None:
    """Raise ConfigError unless the state file's folder exists. The gateway never creates it: the path may be misspelled."""
    if not path.parent.is_dir():
        raise ConfigError(f"the folder {path.parent} does not exist", path="state", hint="Create it, or change `state`")


def _open_database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(_SCHEMA)
    except sqlite3.Error:
        db.close()
        raise
    return db


def _read_positions(
    db: sqlite3.Connection,
) -> tuple[dict[CheckpointKey, Position], dict[CheckpointKey, Held], dict[CheckpointKey, WentBack]]:
    """Return the checkpoints, the positions of partitions that were held, and those of partitions that went back."""
    try:
        rows = db.execute("SELECT route, grp, cluster, topic, partition, position FROM delivered").fetchall()
        positions = {CheckpointKey(*key): parse_position(position) for *key, position in rows}
        rows = db.execute("SELECT route, grp, cluster, topic, partition, confirmed, upper_limit FROM held").fetchall()
        held = {CheckpointKey(*key): (parse_position(confirmed), parse_position(limit)) for *key, confirmed, limit in rows}
        rows = db.execute("SELECT route, grp, cluster, topic, partition, ended, position FROM went_back").fetchall()
        went_back = {CheckpointKey(*key): (parse_position(ended), parse_position(position)) for *key, ended, position in rows}
    except (sqlite3.Error, ValueError):
        db.close()
        raise
    return positions, held, went_back


def _read_traces(db: sqlite3.Connection) -> dict[CheckpointKey, Trace]:
    """Return what was read of each partition last."""
    try:
        rows = db.execute("SELECT route, grp, cluster, topic, partition, trace FROM last_read").fetchall()
        return {CheckpointKey(*key): tuple(map(parse_position, trace.split())) for *key, trace in rows}
    except (sqlite3.Error, ValueError):
        db.close()
        raise


def _hint(error: Exception) -> str:
    if isinstance(error, sqlite3.OperationalError):
        return "Give `state` a writable path, and wait until no other process has the file locked"
    return (
        "It is damaged, or not a state file of mqbridge. Move it to another folder to start with an empty one: gaps that "
        "arose in the sources before then are not detected"
    )


def _unusable_error(path: Path, error: Exception, hint: str) -> ConfigError:
    return ConfigError(f"the state file {path} cannot be used: {error}", path="state", hint=hint)
