"""How far each source partition was delivered, in a small SQLite file beside the gateway.

The source's own group positions are what a restart resumes from. This file is what tells afterwards whether the source still
holds everything from there on: a partition whose first message lies beyond its checkpoint lost data that was never read.
"""

import asyncio
import sqlite3
import time
from pathlib import Path

from mqbridge.errors import ConfigError
from mqbridge.message import Partition, Position, format_position, parse_position

WRITE_EVERY_S = 1.0

_SCHEMA = """
CREATE TABLE IF NOT EXISTS checkpoint (
    route TEXT, cluster TEXT, topic TEXT, partition TEXT, position TEXT NOT NULL, updated_ms INTEGER NOT NULL,
    PRIMARY KEY (route, cluster, topic, partition)
) WITHOUT ROWID
"""


class Checkpoints:
    """Positions by route and partition; noted in memory, written once a second and at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        check_folder(path)
        try:
            self._db = _open(path)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"the state file {path} cannot be used: {error}", hint="Give `state` a path that can be written"
            ) from error
        self._noted: dict[tuple[str, Partition], Position] = {}
        self._writing: dict[tuple[str, Partition], Position] = {}

    def load(self, route: str, partition: Partition) -> Position | None:
        """The position that follows the last message known to be delivered, written yet or not."""
        for noted in (self._noted, self._writing):
            if (position := noted.get((route, partition))) is not None:
                return position
        row = self._db.execute(
            "SELECT position FROM checkpoint WHERE route = ? AND cluster = ? AND topic = ? AND partition = ?",
            (route, partition.cluster, partition.topic, partition.name),
        ).fetchone()
        return parse_position(row[0]) if row else None

    def note(self, route: str, partition: Partition, position: Position) -> None:
        """Delivered up to here."""
        self._noted[route, partition] = position

    async def run(self) -> None:
        """Write what was noted, every second until cancelled."""
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            await asyncio.to_thread(self._write, self._take())

    def close(self) -> None:
        """Write the rest and close."""
        self._write(self._take())
        self._db.close()

    def _take(self) -> dict[tuple[str, Partition], Position]:
        # On the event loop, where `note` runs too: the thread that writes gets a dict that nobody changes any more.
        self._writing, self._noted = self._noted, {}
        return self._writing

    def _write(self, noted: dict[tuple[str, Partition], Position]) -> None:
        if not noted:
            return
        now = int(time.time() * 1000)
        rows = [(route, p.cluster, p.topic, p.name, format_position(at), now) for (route, p), at in noted.items()]
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO checkpoint VALUES (?, ?, ?, ?, ?, ?)", rows)


def check_folder(path: Path) -> None:
    """Raise ConfigError unless the state file's folder is there. It is never made: its path may be spelled wrong."""
    if not path.parent.is_dir():
        raise ConfigError(f"the folder {path.parent} does not exist", path="state", hint="Make it, or give `state` another path")


def _open(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(_SCHEMA)
    return db
