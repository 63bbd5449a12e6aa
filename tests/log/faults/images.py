"""The files of a log after a power failure, made from the journal of all writes of the process that wrote them.

For a file, everything before its last finished fsync is on the disk. Of each later write, every sector of 512 bytes is there or
not, independently of the others, and seldom only its beginning. A later change of the size is there or not. Names that were
created, renamed or removed are as they were at some time between the last fsync of the folder and the failure; fsync of a new
file makes its name durable too, with all earlier changes of names, as it does on journaling file systems.
"""

from __future__ import annotations

import os
import random
import struct
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

HEADER = struct.Struct("=4Q")
SECTOR = 512
CREATE, WRITE, TRUNCATE, SYNC, SYNC_FOLDER, UNLINK, RENAME, MARK = "CWTSDURM"


class Operation(NamedTuple):
    """A record of the journal: the operation, the inode of its file, an offset or a size, and data or names."""

    code: str
    inode: int
    offset: int
    data: bytes


def parse(journal: bytes) -> list[Operation]:
    """Return the operations of a journal; an incomplete one at its end is left out."""
    operations, position = [], 0
    while position + HEADER.size <= len(journal):
        length, inode, offset, code = HEADER.unpack_from(journal, position)
        position += HEADER.size
        if position + length > len(journal):
            break
        operations.append(Operation(chr(code), inode, offset, journal[position : position + length]))
        position += length
    return operations


def marks(operations: Sequence[Operation]) -> bytes:
    """Return the records that the process wrote between these operations."""
    return b"".join(operation.data for operation in operations if operation.code == MARK)


@dataclass(slots=True)
class _File:
    """A file in memory: its changes that are durable, and those that are not."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[Operation] = field(default_factory=list)


def image(operations: Sequence[Operation], point: int, rng: random.Random) -> dict[str, bytes]:
    """Return the contents of all files by name, after a power failure before the operation with this index."""
    files: dict[int, _File] = defaultdict(_File)
    for operation in operations[:point]:
        if operation.code == CREATE:
            files[operation.inode] = _File()
        elif operation.code in (WRITE, TRUNCATE):
            files[operation.inode].pending.append(operation)
        elif operation.code == SYNC:
            for each in files[operation.inode].pending:
                _apply(files[operation.inode].content, each)
            files[operation.inode].pending.clear()
    share = rng.choice((0.0, 1.0, rng.random(), rng.random()))
    names = _names(operations, rng.choice((point, rng.randint(_durable_names(operations, point), point))))
    return {name: bytes(_failed(files[inode], share, rng)) for name, inode in names.items()}


def _apply(content: bytearray, operation: Operation) -> None:
    """Apply a write or a truncation."""
    if operation.code == WRITE:
        if (missing := operation.offset - len(content)) > 0:
            content += bytes(missing)
        content[operation.offset : operation.offset + len(operation.data)] = operation.data
    elif operation.offset < len(content):
        del content[operation.offset :]
    else:
        content += bytes(operation.offset - len(content))


def _failed(file: _File, share: float, rng: random.Random) -> bytearray:
    """Return the content of a file after the failure, with this share of its pending sectors."""
    content = bytearray(file.content)
    sizes, shrinks = {len(content)}, False
    for operation in file.pending:
        if operation.code == TRUNCATE:
            if rng.random() < share:
                _apply(content, operation)
            sizes.add(operation.offset)
            shrinks |= operation.offset < max(sizes)
            continue
        end = operation.offset + len(operation.data)
        sizes.add(max(end, len(file.content)))
        if share == 1:
            _apply(content, operation)
            continue
        begin = operation.offset
        while share and begin < end:
            sector_end = min(end, (begin // SECTOR + 1) * SECTOR)
            if rng.random() < share:
                stored = sector_end if rng.random() < 0.95 else rng.randint(begin, sector_end)
                _apply(content, Operation(WRITE, 0, begin, operation.data[begin - operation.offset : stored - operation.offset]))
            begin = sector_end
    if len(sizes) > 1 and not shrinks and rng.random() < 0.3:  # a size is stored independently of the sectors
        _apply(content, Operation(TRUNCATE, 0, rng.choice(sorted(sizes)), b""))
    return content


def _durable_names(operations: Sequence[Operation], point: int) -> int:
    """Return the index after the last change of names that is durable."""
    durable, created = 0, dict[int, int]()
    for index, operation in enumerate(operations[:point]):
        if operation.code == CREATE:
            created[operation.inode] = index + 1
        elif operation.code == SYNC_FOLDER:
            durable = index + 1
        elif operation.code == SYNC:
            durable = max(durable, created.get(operation.inode, 0))
    return durable


def _names(operations: Sequence[Operation], point: int) -> dict[str, int]:
    """Return the inodes of the files by name, after the operations before this index."""
    names: dict[str, int] = {}
    for operation in operations[:point]:
        if operation.code == CREATE:
            names[_name(operation.data)] = operation.inode
        elif operation.code == UNLINK:
            names.pop(_name(operation.data), None)
        elif operation.code == RENAME:
            old, new = map(_name, operation.data.split(b"\0"))
            if old in names:
                names[new] = names.pop(old)
    return names


def _name(path: bytes) -> str:
    return Path(os.fsdecode(path)).name
