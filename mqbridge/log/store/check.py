"""Reads everything in a log and tells what is damaged or missing, while other processes may use it.

SQLite's own check runs in one transaction, everything else in short ones. Messages that are appended, or dropped by the
retention, while the check runs are no problem: bounds are read before and after the batches.
"""

import sqlite3
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from mqbridge.log.store import jumps, topics
from mqbridge.log.store.batch_scan import last_row, scan_batches
from mqbridge.log.store.check_result import MAX_PROBLEMS, CheckResult
from mqbridge.log.store.connection import Connection
from mqbridge.log.store.extents import Extent, scan_extents
from mqbridge.log.store.file_guard import real_path
from mqbridge.log.store.mark import Marked
from mqbridge.log.store.opening import check_version
from mqbridge.log.store.partition_check import PartitionContents
from mqbridge.log.store.positions import scan_positions
from mqbridge.log.store.reading_source import ReportProgress, is_unreadable, open_source, read_mark
from mqbridge.log.store.schema import Meta, partition_id, read_meta, split_partition_id
from mqbridge.log.store.topics import TopicRow

SQLITE_STEPS = 100_000
"""Steps of SQLite's virtual machine between two reports of the progress."""
OFFSET_INDEX = "batch_base"
"""The index by which messages are read."""
INDEXES = (OFFSET_INDEX, "batch_sender")

WRONG_TYPES = {
    "lease": "typeof(grp) != 'text' OR typeof(partition) != 'integer' OR typeof(owner) != 'text'",
    "member": "typeof(grp) != 'text' OR typeof(topic) != 'integer' OR typeof(id) != 'text' OR typeof(beat) != 'integer'"
    " OR typeof(domain) != 'text' OR typeof(renewed_ms) != 'integer' OR typeof(lease_ms) != 'integer'",
}
"""Conditions under which a row of these tables, which have no checksums, is damaged."""


def check(path: Path, report: ReportProgress) -> CheckResult:
    """Check the log. Raises ClusterError if it cannot be read for another reason than damage."""
    path, result = real_path(path), CheckResult()
    with open_source(path) as connection:
        try:
            check_version(path, connection)
            _check_structure(connection, result, report)
            _check_contents(path, connection, result, report)
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            if not is_unreadable(error):
                raise
            result.problems.append(f"SQLite cannot read what is needed to check the rest: {error}")
    return result


def _check_structure(connection: Connection, result: CheckResult, report: ReportProgress) -> None:
    """Run SQLite's own check, which reads the whole file in one transaction."""
    began = time.monotonic()

    def on_steps() -> int:
        report(f"SQLite has been checking the structure of the file for {time.monotonic() - began:.0f} s")
        return 0

    connection.set_progress_handler(on_steps, SQLITE_STEPS)
    try:
        rows = [str(text) for (text,) in connection.execute(f"PRAGMA integrity_check({MAX_PROBLEMS})")]
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if not is_unreadable(error):
            raise
        rows = [str(error)]
    finally:
        connection.set_progress_handler(None, 0)
        connection.end_job()
    report("SQLite has checked the structure of the file")
    result.add([f"SQLite: {line}" for text in rows if text != "ok" for line in text.splitlines()])


def _check_contents(path: Path, connection: Connection, result: CheckResult, report: ReportProgress) -> None:
    meta = read_meta(connection)
    # The mark first: it is written after the commit, so it tells no more than the tables that are read later.
    marked = None if meta is None else read_mark(path, meta.file_id)
    has_index = _check_indexes(connection, result)
    connection.end_job()
    connection.execute("BEGIN")
    found, damaged = topics.scan_topics(connection)
    names = {topic.id: topic for topic in found}
    before, last = _read_extents(connection, found), last_row(connection)
    rows = scan_extents(connection)
    deleted = {id_ for id_, extent in rows.items() if extent is not None and extent.is_deleted}
    jumped, damaged_jumps = jumps.scan(connection)
    connection.end_job()
    result.add([f"the row of the topic with id {id_} is damaged, so its name is lost" for id_ in damaged])
    if damaged_jumps:
        result.problems.append(f"{damaged_jumps} rows of the table `jump` are damaged: the offsets count as lost messages")
    if marked is not None:
        marked = {id_: each for id_, each in marked.items() if id_ not in deleted}
    # Also rows without a topic: one that was lost with the WAL has such rows, since the log was opened, and the loss is known.
    _check_meta(meta, marked, {**rows, **before}, result)
    contents = _read_batches(connection, last, before, deleted, result, report, has_index=has_index)
    _check_groups(connection, names, result)
    after = _read_extents(connection, found)
    connection.end_job()
    for id_ in sorted({*before, *contents}):
        topic_id, number = split_partition_id(id_)
        name = names[topic_id].name if topic_id in names else f"topic-{topic_id}"
        batches = contents.get(id_, PartitionContents())
        checked = batches.compare(name, number, before.get(id_), after.get(id_), jumped.get(id_, []))
        if id_ not in before and topic_id not in damaged:
            checked.problems.append("its messages belong to no topic")
        result.partitions.append(checked)


def _check_indexes(connection: Connection, result: CheckResult) -> bool:
    """Return True if there is an index by which messages are read."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    result.add([f"the index {name} is missing" for name in INDEXES if name not in names])
    return OFFSET_INDEX in names


def _read_extents(connection: Connection, found: list[TopicRow]) -> dict[int, Extent | None]:
    """Return the extents of the partitions of these topics; None where the row is damaged or missing."""
    stored = scan_extents(connection)
    return {id_: stored.get(id_) for topic in found for id_ in (partition_id(topic.id, n) for n in range(topic.partitions))}


def _check_meta(
    meta: Meta | None, marked: Mapping[int, Marked] | None, extents: Mapping[int, Extent | None], result: CheckResult
) -> None:
    if meta is None:
        result.problems.append("the table `meta` is damaged: the log gets a new id when it is opened")
    elif meta.backup_ms is not None:
        made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(meta.backup_ms / 1000))
        result.notes.append(f"the file is a backup or an export that was made at {made}")
    elif marked is None and any(extent is not None and extent.next for extent in extents.values()):
        result.notes.append("the log has no mark of its own, so it is not known whether its newest messages are missing")
    # The tail of a partition whose bounds are damaged is not known.
    tails = {id_: None if extent is None else extent.next for id_, extent in extents.items()}
    marks = [(each, tails.get(id_, 0)) for id_, each in (marked or {}).items()]
    missing = [jump for each, tail in marks if tail is not None for jump in each.missing_behind(tail)]
    lost = sum(jump.next - jump.first for jump in missing if not jump.is_restored)
    result.lost_newest = lost
    if lost:
        result.problems.append(
            f"the newest {lost} acknowledged messages are missing: the WAL was lost or damaged, or an older copy of the file was"
            " put in its place"
        )


def _read_batches(
    connection: Connection,
    last: int,
    known: Mapping[int, Extent | None],
    deleted: Collection[int],
    result: CheckResult,
    report: ReportProgress,
    *,
    has_index: bool,
) -> dict[int, PartitionContents]:
    """Return the batches by partition id, without those that a deletion has not reached yet."""
    found: dict[int, PartitionContents] = {}
    unreadable = stray = 0
    for read, batch in enumerate(scan_batches(connection, last, uses_index=has_index), 1):
        if isinstance(batch, int):
            unreadable += batch
        elif batch.partition in deleted:
            continue
        elif batch.problem is not None and batch.partition not in known:
            stray += 1
        else:
            found.setdefault(batch.partition, PartitionContents()).add(batch)
        report(f"checked {read:,} batches")
    if unreadable:
        result.problems.append(
            f"SQLite cannot read up to {unreadable} batches, because a page of them, or one above them, is damaged"
        )
    if stray:
        result.problems.append(f"{stray} damaged batches belong to no partition")
    return found


def _check_groups(connection: Connection, names: Mapping[int, TopicRow], result: CheckResult) -> None:
    positions, damaged = scan_positions(connection)
    result.positions = len(positions)
    if damaged:
        result.problems.append(f"{damaged} committed offsets are damaged: their groups read from the oldest message again")
    for table, condition in WRONG_TYPES.items():
        (wrong,) = connection.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()  # noqa: S608
        if wrong:
            result.problems.append(f"{wrong} rows of the table `{table}` are damaged")
    ends = {id_: extent.next for id_, extent in _read_extents(connection, list(names.values())).items() if extent is not None}
    beyond = [(group, id_, offset) for group, id_, offset in positions if offset > ends.get(id_, offset)]
    for group, id_, offset in beyond[:MAX_PROBLEMS]:
        topic_id, number = split_partition_id(id_)
        result.problems.append(
            f"group {group!r} is at offset {offset} of partition {number} of topic {names[topic_id].name!r}, which ends at"
            f" {ends[id_]}"
        )
