"""The mark: a small file beside the database that knows, without SQLite, up to which offsets messages were acknowledged.

After a kill, the newest messages are only in the WAL. If that is lost or damaged, SQLite silently opens an older state of the
file, and the lost offsets would be given again. The mark tells what is missing. It is written after each commit and before the
receipts, without a sync of its own: it reaches the disk after the WAL that it describes, or is older.

    header   magic, version u32, file id (16 bytes), CRC32C u32 of these
    slot     partition id u64, 0, next offset u64, CRC32C u32 of these, 4 bytes of zeros
    jump     partition id u64 with the highest bit, first and next offset u64, CRC32C u32 of these, 4 bytes of zeros

A slot has 32 bytes, so it never lies on two disk sectors, and one writer: a process adds slots of its own. The highest offset of
a partition's slots counts. Jumps are offsets that were left out by a restore (`jumps`), and never acknowledged. Each process
that has the log open holds a shared lock of the file. One that gets the exclusive lock is alone: it creates and upgrades the
log, compares it with the mark, and removes the slots of processes that have ended.
"""

import errno
import fcntl
import logging
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from crc32c import crc32c

from mqbridge.errors import ClusterError, Failure, Unreachable
from mqbridge.log.store.jumps import Jump
from mqbridge.log.store.schema import JUMP_LOST, JUMP_RESTORED

log = logging.getLogger(__name__)

LOCK_POLL_S = 0.01
"""Pause between attempts to lock the mark while another process opens the log."""

_HEADER = struct.Struct("<8sI16s")
_SLOT = struct.Struct("<QQQ")
_CRC = struct.Struct("<I")
_WHOLE_SLOT = struct.Struct("<QQQI4x")
_JUMP = 1 << 63
"""Bit of a partition id that says that the slot is a jump."""
_MAGIC, _VERSION = b"mqb-mark", 2
SLOT_BYTES = HEADER_BYTES = 32


class Marked(NamedTuple):
    """What the mark knows of a partition: the offset after the last acknowledged message, and the jumps before it."""

    next: int
    jumps: Sequence[Jump] = ()

    def missing_behind(self, tail: int) -> list[Jump]:
        """Return the offsets from `tail`, the end of a partition, to `next`: those that are lost, and those left out before."""
        found: list[Jump] = []
        for first, after, kind in self.jumps:
            if after > tail and first < self.next:
                if first > tail:
                    found.append(Jump(tail, first, JUMP_LOST))
                found.append(Jump(max(first, tail), min(after, self.next), kind))
                tail = found[-1].next
        if tail < self.next:
            found.append(Jump(tail, self.next, JUMP_LOST))
        return found


UNMARKED = Marked(0)


class Mark:
    """The open mark of one log. Its lock is held until `close`; `is_alone` says which."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self._fd = path, fd
        self._slots: dict[int, int] = {}
        """File offset of this process's slot, by partition id."""
        self._has_failed = False
        self.was_missing = False
        """True if there was no mark when it was opened."""
        self.is_alone = False
        """True while this process holds the exclusive lock."""

    @classmethod
    def open(cls, path: Path, timeout_s: float) -> Self:
        """Open or create the file at `path`, and lock it: exclusively if no process has the log open, otherwise shared.

        While another process opens the log, waits up to the timeout. Raises ClusterError.
        """
        was_missing = not path.exists()
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise Unreachable(
                f"the log's mark {path} cannot be opened: {error.strerror}; check that the folder exists and can be written"
            ) from error
        mark = cls(path, fd)
        mark.was_missing = was_missing
        try:
            mark._lock(time.monotonic() + timeout_s)
        except BaseException:
            os.close(fd)
            raise
        return mark

    def _lock(self, deadline: float) -> None:
        while True:
            for kind in (fcntl.LOCK_EX, fcntl.LOCK_SH):
                try:
                    fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                self.is_alone = kind == fcntl.LOCK_EX
                return
            if time.monotonic() >= deadline:
                raise ClusterError(f"the log's mark {self.path} is locked: another process has been opening the log for too long")
            time.sleep(LOCK_POLL_S)

    def share(self) -> None:
        """Let other processes open the log."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        self.is_alone = False

    def close(self) -> None:
        """Unlock and close the file."""
        os.close(self._fd)

    def read(self, file_id: bytes) -> dict[int, Marked] | None:
        """Return what is known by partition id; None if the file is new, damaged, or belongs to another log."""
        header, *slots = self._chunks()
        fields = _HEADER.pack(_MAGIC, _VERSION, file_id)
        if header != fields + _CRC.pack(crc32c(fields)):
            return None
        offsets: dict[int, int] = {}
        jumps: dict[int, set[Jump]] = {}
        for slot in slots:
            fields, (crc,) = slot[: _SLOT.size], _CRC.unpack_from(slot, _SLOT.size)
            if crc != crc32c(fields):
                continue  # a torn write after a power failure, or a slot of zeros, which was never written
            partition, first, after = _SLOT.unpack(fields)
            if partition & _JUMP:
                jumps.setdefault(partition ^ _JUMP, set()).add(Jump(first, after, JUMP_RESTORED))
            else:
                offsets[partition] = max(after, offsets.get(partition, 0))
        return {id_: Marked(offset, sorted(jumps.get(id_, ()))) for id_, offset in offsets.items()}

    def _chunks(self) -> list[bytes]:
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        end = max(HEADER_BYTES, len(data) - len(data) % SLOT_BYTES)
        return _cut(data.ljust(HEADER_BYTES, b"\0")[:end])

    @property
    def is_empty(self) -> bool:
        """True if nothing was ever written to it."""
        return not os.fstat(self._fd).st_size

    def rewrite(self, file_id: bytes, marked: Mapping[int, Marked]) -> None:
        """Replace the contents, and sync them; this process must be alone. Raises OSError."""
        fields = _HEADER.pack(_MAGIC, _VERSION, file_id)
        slots = b"".join(_slot(id_, each.next) + _jump_slots(id_, each.jumps) for id_, each in marked.items())
        data = fields + _CRC.pack(crc32c(fields)) + slots
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))
        os.fsync(self._fd)
        self._slots = {}

    def record(self, tails: Iterable[tuple[int, int]], jumps_of: Callable[[int], Iterable[Jump]]) -> None:
        """Record the offsets after the committed messages, as pairs of partition id and next offset.

        `jumps_of` returns the jumps of a partition to which this process has appended nothing yet. A failure is logged once: the
        messages are stored in any case, and only the loss of the WAL would not be noticed.
        """
        try:
            for partition, next_offset in tails:
                at = self._slots.get(partition)
                if at is None:
                    for slot in _cut(_jump_slots(partition, jumps_of(partition))):
                        os.pwrite(self._fd, slot, self._add_slot())
                    at = self._slots[partition] = self._add_slot()
                os.pwrite(self._fd, _slot(partition, next_offset), at)
        except OSError as error:
            if not self._has_failed:
                log.warning("the log's mark %s cannot be written, so a lost WAL may not be noticed: %s", self.path, error)
            self._has_failed = True

    def _add_slot(self) -> int:
        """Return the file offset of a new slot. Appending with O_APPEND reserves it, although other processes add theirs."""
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            written = os.write(fd, bytes(SLOT_BYTES))
            end = os.lseek(fd, 0, os.SEEK_CUR)
            if written == SLOT_BYTES and not end % SLOT_BYTES:
                return end - SLOT_BYTES
            # After a short write of any process, slots would lie across the boundaries at which they are read.
            if os.write(fd, bytes(2 * SLOT_BYTES)) < 2 * SLOT_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return (os.lseek(fd, 0, os.SEEK_CUR) - SLOT_BYTES) // SLOT_BYTES * SLOT_BYTES
        finally:
            os.close(fd)


def _slot(partition: int, next_offset: int) -> bytes:
    return _WHOLE_SLOT.pack(partition, 0, next_offset, crc32c(_SLOT.pack(partition, 0, next_offset)))


def _jump_slots(partition: int, jumps: Iterable[Jump]) -> bytes:
    """Return the slots of the jumps of a restore, one after another."""
    fields = [(partition | _JUMP, first, after) for first, after, kind in jumps if kind == JUMP_RESTORED]
    return b"".join(_WHOLE_SLOT.pack(*each, crc32c(_SLOT.pack(*each))) for each in fields)


def _cut(slots: bytes) -> list[bytes]:
    return [slots[index : index + SLOT_BYTES] for index in range(0, len(slots), SLOT_BYTES)]


def missing_mark_error(path: Path, mark_path: Path) -> ClusterError:
    """Return the error for a database file that is gone although its mark is there."""
    return ClusterError(
        f"the log {path} is missing, although its mark {mark_path.name} is there: it was deleted or moved; put it back or restore"
        " a backup, or remove the mark to start an empty log",
        Failure.FATAL,
    )
