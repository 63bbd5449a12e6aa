"""Senders: producers with a name, whose messages are numbered by the positions that they have in their source.

Each row of a sender has its name and the sequence, the position of the row's last message as one number
(`mqbridge.mapping.sequences`), which ascend in each partition. Rows whose positions do not fit have no sequence: their messages
are found by their origins, and a look-up that knows these must not rely on sequences in a partition that has such rows. So the
row with the highest sequence tells up to where messages of the sender are stored, as long as the log has this row: retention may
drop it once the partition has newer rows, and a restored file may have an earlier one. The log then remembers nothing of the
sender, or less, and stores again what it does not have.

A sender fences nobody. A second producer of the same name is harmless, such as one of a process that was taken for dead: what
either has stored is not stored again, and what would mix stored and new messages fails.
"""

import struct
from collections.abc import Sequence
from contextlib import closing

from mqbridge.errors import ClusterError
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.new_row import NewRow
from mqbridge.log.store.schema import BatchStamp, batch_crc

ROWS_OF_SENDER = "SELECT rowid FROM batch WHERE partition = ? AND sender = ? AND sequence >= 0 ORDER BY sequence DESC"
_UNNUMBERED = "SELECT 1 FROM batch WHERE partition = ? AND sender = ? AND sequence IS NULL LIMIT 1"
_ROW = (
    "SELECT partition, base, count, appended_ms, age_ms, format, sender, sequence, crc, records FROM batch NOT INDEXED"
    " WHERE rowid = ?"
)


class PartlyStored(ClusterError):
    """Some messages of a row are stored, others are not. The sender finds out by `resume` which ones, and leaves them out."""


def highest_sequence(connection: Connection, partition: int, sender: str) -> int | None:
    """Return the highest sequence of the sender in the partition, by its rows that are intact; None if there is none.

    A damaged index may lead to the row of another sender, or to none; a damaged row has lost its messages. Neither counts, so
    that these messages are stored again.
    """
    with closing(connection.execute(ROWS_OF_SENDER, (partition, sender))) as rows:
        for (rowid,) in rows:
            row = connection.execute(_ROW, (rowid,)).fetchone()
            if row is not None and (sequence := _intact_sequence(row, partition, sender)) is not None:
                return sequence
    return None


def _intact_sequence(row: Sequence[object], partition: int, sender: str) -> int | None:
    """Return the sequence in the row if its checksum is right, and if it is one of this sender in this partition."""
    stored_partition, base, count, *values, crc, records = row
    try:
        stamp = BatchStamp(*values)  # type: ignore[arg-type]  # the checksum tells
        is_intact = batch_crc(stored_partition, base, count, stamp, records) == crc  # type: ignore[arg-type]  # as above
    except (struct.error, TypeError, AttributeError):  # the damage changed the type of a value
        return None
    return stamp.sequence if is_intact and (stored_partition, stamp.sender) == (partition, sender) else None


def highest_sequences(connection: Connection, sender: str, partitions: Sequence[int], *, has_origins: bool) -> dict[int, int]:
    """Return the highest sequence of the sender by partition id, without partitions that have none.

    If the messages of the sender `has_origins`, partitions with messages that are found only by these are left out, too.
    """
    found: dict[int, int] = {}
    for partition in partitions:
        if has_origins and connection.execute(_UNNUMBERED, (partition, sender)).fetchone() is not None:
            continue
        if (sequence := highest_sequence(connection, partition, sender)) is not None:
            found[partition] = sequence
    return found


class StoredSequences:
    """The highest sequences of senders by partition, those of rows included that the current transaction is going to insert."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._highest: dict[tuple[int, str], int] = {}
        self._failed: set[tuple[int, str]] = set()
        """Senders of which a send has failed in this transaction: later ones must not overtake it."""

    def leave_out_stored(self, partition: int, sender: str, rows: list[NewRow]) -> tuple[list[NewRow], int]:
        """Return the rows that are not stored yet, and the number of messages in the others, which are the first ones.

        Raises PartlyStored if some messages of a row are stored and others are not, and for all later sends of the sender.
        """
        key = partition, sender
        if key in self._failed:
            raise PartlyStored(f"an earlier send of {sender!r} failed")
        highest = self._highest.get(key)
        if highest is None:
            known = highest_sequence(self._connection, partition, sender)
            highest = -1 if known is None else known
        repeated, begin = 0, 0
        for row in rows:
            if row.sequence is None or row.sequence > highest:
                break
            repeated += row.messages
            begin += 1
        if begin < len(rows) and (first := rows[begin].first) is not None and first <= highest:
            self._failed.add(key)
            raise PartlyStored(
                f"the log has stored messages of {sender!r} up to sequence {highest}, and this send has some of them and new"
                f" ones, from {first} on: resume, and leave out what is stored"
            )
        if begin < len(rows) and (last := rows[-1].sequence) is not None:
            highest = last
        self._highest[key] = highest
        return rows[begin:] if begin else rows, repeated
