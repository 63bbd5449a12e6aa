"""Tables of a log, their versions, and the checksums of their rows.

    meta       one row: the file's id and generation, the last reading of the age clock, and when the file was made as a backup
    topic      topics by name, with their numbers of partitions
    partition  `first` and `next` are the offsets of the oldest and of the next message, `bytes` is the size of all its batches,
               or negative if the topic was deleted, see `deleted_bytes`
    jump       offsets of a partition from `first` to before `next` that have no message; `kind` is one of `JUMP_*`
    batch      `count` messages from offset `base` on, encoded as in `wire/records.py`, or units of another system as they are;
               `bytes` is the size of `records`
    position   the offset at which a group (`grp`) continues in a partition
    lease      the member (`owner`) of a group that reads a partition
    member     the members of a group, with the heartbeats by which the others see that they live

The id of a partition is derived from that of its topic and its number, so no index leads from one to the other. The blob of
`batch` is the last column, so that queries of the other columns do not read its pages. `partition.next` stays when batches are
dropped: offsets are never reused.

Each row whose damage would lose or swap messages has a checksum over its values and its identity. SQLite has none: a flipped bit
in an index leads to the row of another topic, without an error.
"""

import hashlib
import sqlite3
import struct
from functools import lru_cache
from typing import NamedTuple

from crc32c import crc32c

from mqbridge.log.store.clocks import ClockReading

APPLICATION_ID = 0x6D716C67
"""SQLite's `application_id` of a log: "mqlg". Files of the first two versions have none."""
SCHEMA_VERSION = 3
"""Version of the tables, stored in the file as SQLite's `user_version`."""

TABLES = (
    """CREATE TABLE meta (
        id INTEGER PRIMARY KEY CHECK (id = 0), file_id BLOB NOT NULL, generation INTEGER NOT NULL, backup_ms INTEGER,
        age_ms INTEGER NOT NULL, wall_ms INTEGER NOT NULL, boot_ms INTEGER NOT NULL, domain TEXT NOT NULL, crc INTEGER NOT NULL
    )""",
    "CREATE TABLE topic (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL, crc INTEGER NOT NULL)",
    """CREATE TABLE partition (
        id INTEGER PRIMARY KEY, first INTEGER NOT NULL, next INTEGER NOT NULL, bytes INTEGER NOT NULL, crc INTEGER NOT NULL
    )""",
    """CREATE TABLE jump (
        partition INTEGER NOT NULL, first INTEGER NOT NULL, next INTEGER NOT NULL, kind INTEGER NOT NULL, crc INTEGER NOT NULL,
        PRIMARY KEY (partition, first)
    ) WITHOUT ROWID""",
    """CREATE TABLE batch (
        partition INTEGER NOT NULL, base INTEGER NOT NULL, count INTEGER NOT NULL, bytes INTEGER NOT NULL,
        appended_ms INTEGER NOT NULL, age_ms INTEGER NOT NULL, format TEXT, sender TEXT, sequence INTEGER,
        crc INTEGER NOT NULL, records BLOB NOT NULL
    )""",
    "CREATE UNIQUE INDEX batch_base ON batch (partition, base)",
    "CREATE INDEX batch_sender ON batch (partition, sender, sequence) WHERE sender IS NOT NULL",
    """CREATE TABLE position (
        grp TEXT NOT NULL, partition INTEGER NOT NULL, next INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (grp, partition)
    ) WITHOUT ROWID""",
    """CREATE TABLE lease (
        grp TEXT NOT NULL, partition INTEGER NOT NULL, owner TEXT NOT NULL, PRIMARY KEY (grp, partition)
    ) WITHOUT ROWID""",
    """CREATE TABLE member (
        grp TEXT NOT NULL, topic INTEGER NOT NULL, id TEXT NOT NULL, beat INTEGER NOT NULL, domain TEXT NOT NULL,
        renewed_ms INTEGER NOT NULL, lease_ms INTEGER NOT NULL, PRIMARY KEY (grp, topic, id)
    ) WITHOUT ROWID""",
)
"""Statements that create the tables. In `batch`, `format` names the format of a unit of another system that is stored as it is;
NULL stands for our own records. `sender` and `sequence` are the stamp beside the messages: the name of the producer, and the
position that the last message of the row has in its source, as one number (`mapping.sequences`), or NULL if it does not fit.
Sequences of a sender ascend in each partition."""
_OLD_TABLES = frozenset({"topic", "partition", "batch", "position", "lease", "member"})
"""Tables of the first two versions."""

NUMBER_BITS = 20
"""Bits of a partition id that hold the partition's number in its topic."""

JUMP_LOST, JUMP_RESTORED = 1, 2
"""Why offsets have no message: messages with these offsets were acknowledged and are lost, so readers get a gap; or they may have
been given after the backup from which the file was restored, so readers of its end go on behind them."""


DELETED_BYTES = -1
"""Size of a partition whose topic was deleted, in files of versions that did not keep which one it was: it may be any."""


def deleted_bytes(topic: str) -> int:
    """Return the size of a partition whose topic was deleted; it stands for the name of the topic. Any negative size says so.

    The row stays: the id of the topic is given to no other one, and the mark, which knows the offsets of the partition, does not
    report its messages as lost.
    """
    return DELETED_BYTES - 1 - int.from_bytes(hashlib.sha256(topic.encode()).digest()[:6])


DELETED_FORMAT = "log.deleted"
"""Format of a row without contents that takes the place of a deleted one: see `deletion`."""


class Meta(NamedTuple):
    """The row of `meta`. `backup_ms` is the time of the backup, in ms since the epoch, until the file is opened; else None."""

    file_id: bytes
    generation: int
    backup_ms: int | None
    reading: ClockReading


_NUMBERS = {count: struct.Struct(f"<{count}q") for count in (2, 3, 4)}


def numbers_crc(*numbers: int, seed: int = 0) -> int:
    """Return the CRC32C of these numbers. Raises struct.error for values that are no 64-bit integers."""
    return crc32c(_NUMBERS[len(numbers)].pack(*numbers), seed)


def text_crc(text: str, *numbers: int) -> int:
    """Return the CRC32C of the numbers and the text. Raises struct.error, AttributeError for values of other types."""
    return crc32c(text.encode("utf-8", "surrogatepass"), numbers_crc(*numbers))


_EXTENT = struct.Struct("<4q")


def extent_crc(partition: int, first: int, next_offset: int, size: int) -> int:
    """Return the checksum of a row of `partition`. Raises struct.error for values that are no 64-bit integers."""
    return crc32c(_EXTENT.pack(partition, first, next_offset, size))


class BatchStamp(NamedTuple):
    """Columns of a row of `batch`: when it was appended by two clocks, the format of a foreign unit, the stamp of its sender."""

    appended_ms: int
    age_ms: int
    format: str | None = None
    sender: str | None = None
    sequence: int | None = None


_BATCH = struct.Struct("<5q")


def batch_crc(partition: int, base: int, count: int, stamp: BatchStamp, records: bytes) -> int:
    """Return the checksum of a row of `batch`. Raises struct.error, TypeError, AttributeError for values of other types."""
    return crc32c(records, crc32c(_BATCH.pack(partition, base, count, stamp.appended_ms, stamp.age_ms) + stamp_text(stamp)))


def stamp_text(stamp: BatchStamp) -> bytes:
    """Return what `batch_crc` covers of a stamp besides its times."""
    _, _, unit_format, sender, sequence = stamp
    if unit_format is None and sender is None and sequence is None:
        return b""
    is_unnumbered = sender is None and sequence is None
    return _text_of_format(unit_format) if is_unnumbered else _stamp_text(unit_format, sender, sequence)


def _stamp_text(unit_format: str | None, sender: str | None, sequence: int | None) -> bytes:
    return repr((unit_format, sender, sequence)).encode("utf-8", "surrogatepass")


@lru_cache(maxsize=64, typed=True)  # there are few formats, and a row of each single message has one
def _text_of_format(unit_format: str | None) -> bytes:
    return _stamp_text(unit_format, None, None)


def partition_id(topic_id: int, number: int) -> int:
    """Return the id of a partition by the id of its topic and its number."""
    return topic_id << NUMBER_BITS | number


def split_partition_id(id_: int) -> tuple[int, int]:
    """Return the id of the topic, and the number, of the partition with this id."""
    return id_ >> NUMBER_BITS, id_ & ((1 << NUMBER_BITS) - 1)


def meta_crc(meta: Meta) -> int:
    """Return the checksum of the row of `meta`. Raises struct.error, TypeError, AttributeError for values of other types."""
    reading = meta.reading
    numbers = (meta.generation, -1 if meta.backup_ms is None else meta.backup_ms)
    crc = numbers_crc(reading.age_ms, reading.wall_ms, reading.boot_ms, seed=numbers_crc(*numbers))
    return crc32c(meta.file_id + reading.domain.encode(), crc)


def write_meta(connection: sqlite3.Connection, meta: Meta) -> None:
    """Write the row of `meta`, inside a transaction."""
    connection.execute(
        "INSERT OR REPLACE INTO meta VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)",
        (meta.file_id, meta.generation, meta.backup_ms, *meta.reading, meta_crc(meta)),
    )


def read_meta(connection: sqlite3.Connection) -> Meta | None:
    """Return the row of `meta`; None if it is missing or damaged."""
    row = connection.execute("SELECT * FROM meta WHERE id = 0").fetchone()
    if row is None:
        return None
    _, file_id, generation, backup_ms, *reading, crc = row
    meta = Meta(file_id, generation, backup_ms, ClockReading(*reading))
    try:
        return meta if meta_crc(meta) == crc else None
    except (struct.error, TypeError, AttributeError, UnicodeError):
        return None


def version_of(connection: sqlite3.Connection) -> int | None:
    """Return the schema version of a log's file; None if the file belongs to another program."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application == APPLICATION_ID:
        return int(version)
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return int(version) if application == 0 and version in {1, 2} and names >= _OLD_TABLES else None


def create_tables(connection: sqlite3.Connection, meta: Meta) -> None:
    """Create the tables and the row of `meta`, inside a transaction."""
    for statement in TABLES:
        connection.execute(statement)
    write_meta(connection, meta)
    set_version(connection)


def set_version(connection: sqlite3.Connection) -> None:
    """Mark the file as a log of this version, inside a transaction."""
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
