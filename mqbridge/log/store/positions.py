"""Positions: the committed offsets of groups."""

import struct
from collections.abc import Iterable

from mqbridge.log.store.connection import Connection
from mqbridge.log.store.schema import partition_id, text_crc


def positions_of(connection: Connection, group: str, topic_id: int) -> dict[int, int]:
    """Return the group's committed offsets in a topic by partition id, without those whose rows are damaged."""
    query = "SELECT grp, partition, next, crc FROM position WHERE grp = ? AND partition >= ? AND partition < ?"
    rows = connection.execute(query, (group, partition_id(topic_id, 0), partition_id(topic_id + 1, 0)))
    return {partition: offset for name, partition, offset, crc in rows if _is_intact(name, partition, offset, crc)}


def scan_positions(connection: Connection) -> tuple[list[tuple[str, int, int]], int]:
    """Return all positions (group, partition id, offset) whose rows are intact, and the number of the others."""
    rows = connection.execute("SELECT grp, partition, next, crc FROM position").fetchall()
    intact = [(group, partition, offset) for group, partition, offset, crc in rows if _is_intact(group, partition, offset, crc)]
    return intact, len(rows) - len(intact)


def write_positions(connection: Connection, group: str, offsets: Iterable[tuple[int, int]]) -> None:
    """Write the group's committed offsets by partition id, inside a transaction."""
    connection.executemany(
        "INSERT OR REPLACE INTO position VALUES (?, ?, ?, ?)",
        [(group, partition, offset, text_crc(group, partition, offset)) for partition, offset in offsets],
    )


def _is_intact(group: str, partition: int, offset: int, crc: object) -> bool:
    try:
        return text_crc(group, partition, offset) == crc
    except (struct.error, TypeError, AttributeError):  # values of the wrong type
        return False
