"""Jumps: offsets of a partition that have no message, since a loss or a restore left them out. See `opening`.

A reader looks for a jump only where it finds no row, so jumps cost nothing elsewhere. They are never joined: a group, or another
reader, may be at the first offset of each.
"""

import secrets
import struct
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mqbridge.log.store.connection import Connection
from mqbridge.log.store.schema import JUMP_RESTORED, numbers_crc, split_partition_id

RESTORED_JUMP = 1 << 32
"""Least number of offsets that a restored file leaves out in each partition."""
OFFSETS_PER_S = 1 << 20
"""More messages than a partition gets in a second."""
MAX_CLOCK_OFFSET = 1 << 52


def unused_offset(reached: int) -> int:
    """Return an offset that no message of another life of a log has, whether it was restored from this backup or another.

    It grows with the wall clock faster than a partition does, and has a part that is random, for lives that begin in the same
    second, or soon after `reached`, the highest offset that is known. A reader of JSON can represent it exactly, below 2**53: a
    clock that is after 2106 is not believed.
    """
    clock = int(time.time()) * OFFSETS_PER_S
    return max(reached, clock if clock < MAX_CLOCK_OFFSET else 0) + RESTORED_JUMP + secrets.randbelow(RESTORED_JUMP)


class Jump(NamedTuple):
    """Offsets from `first` to before `next` without a message; `kind` (`schema.JUMP_*`) is the reason."""

    first: int
    next: int
    kind: int

    @property
    def is_restored(self) -> bool:
        """True if a reader at its first offset has missed nothing."""
        return self.kind == JUMP_RESTORED


def is_intact(partition: int, values: Sequence[int], crc: object) -> bool:
    """Return True if the checksum of a row of `jump` is right."""
    try:
        return numbers_crc(partition, *values) == crc
    except (struct.error, TypeError):
        return False


def scan(connection: Connection, first_id: int = 0, end_id: int = 1 << 62) -> tuple[dict[int, list[Jump]], int]:
    """Return the jumps of the partitions with ids from `first_id` to before `end_id`, and the number of damaged rows."""
    rows = connection.execute(
        "SELECT partition, first, next, kind, crc FROM jump WHERE partition >= ? AND partition < ? ORDER BY partition, first",
        (first_id, end_id),
    ).fetchall()
    found: dict[int, list[Jump]] = {}
    for partition, *values, crc in rows:
        if is_intact(partition, values, crc):
            found.setdefault(partition, []).append(Jump(*values))
    return found, len(rows) - sum(map(len, found.values()))


def jumps_of(connection: Connection, partition: int) -> list[Jump]:
    """Return the jumps of a partition in ascending order."""
    found, damaged = scan(connection, partition, partition + 1)
    if damaged:
        topic_id, number = split_partition_id(partition)
        connection.report(
            f"{damaged} rows of offsets that were left out are damaged, so these offsets of partition {number} of the topic with"
            f" id {topic_id} count as lost messages"
        )
    return found.get(partition, [])


def write_jumps(connection: Connection, jumps: Iterable[tuple[int, Jump]]) -> None:
    """Write jumps by partition id, inside a transaction."""
    connection.executemany(
        "INSERT OR REPLACE INTO jump VALUES (?, ?, ?, ?, ?)",
        [(partition, *jump, numbers_crc(partition, *jump)) for partition, jump in jumps],
    )


def messages_between(jumps: Sequence[Jump], begin: int, end: int) -> int:
    """Return the number of offsets from `begin` to before `end` that no restore has left out."""
    return sum(part_end - part_begin for part_begin, part_end in parts_between(jumps, begin, end))


def parts_between(jumps: Sequence[Jump], begin: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges of offsets from `begin` to before `end` that no restore has left out, as pairs of begin and end.

    If `begin` is inside such a jump, one offset of it is the first range: messages of a reader there are missing, so it has to
    get the gap.
    """
    parts: list[tuple[int, int]] = []
    if begin >= end:
        return parts
    for first, after, kind in jumps:
        if kind != JUMP_RESTORED or after <= begin or first >= end:
            continue
        parts.append((begin, max(first, begin + (begin > first))))
        begin = after
    parts.append((begin, end))
    return [part for part in parts if part[0] < part[1]]


def before_jumps(jumps: Sequence[Jump], offset: int) -> int:
    """Return the offset, or the first one of those before it that a restore has left out."""
    for jump in reversed(jumps):
        if jump.is_restored and jump.next == offset:
            offset = jump.first
    return offset


def newest(jumps: Sequence[Jump], first: int, end: int, count: int) -> int:
    """Return the offset `count` messages before the end of a partition, or its first one if there are fewer."""
    for begin, after in reversed(parts_between(jumps, first, end)):
        if after - begin >= count:
            return after - count
        count -= after - begin
    return first
