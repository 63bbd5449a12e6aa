"""Reads the rows of a log from the pages of its file, without SQLite.

SQLite reaches rows through the pages above them: one damaged page may hide thousands of rows. Here, each page of the file is
looked at by itself. Whatever looks like a row is yielded; its checksum has to tell whether it is one. See the description of the
format at https://www.sqlite.org/fileformat2.html; the names of sizes are those of its section on b-tree pages.
"""

import os
import struct
from typing import NamedTuple

_MAGIC = b"SQLite format 3\0"
_HEADER_BYTES = 100
_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 0x0D, 0x0A, 0x02
_CELLS_AT = {_TABLE_LEAF: 8, _INDEX_LEAF: 8, _INDEX_INTERIOR: 12}
"""Offset of the cell pointers in a page, for the kinds of pages that contain rows. The tables without row ids are index pages."""
_INTEGER_BYTES = (0, 1, 2, 3, 4, 6, 8)
"""Bytes of an integer by its serial type."""
_U16, _U32 = struct.Struct(">H"), struct.Struct(">I")
_DOUBLE = struct.Struct(">d")
PAGE_SIZES = (8192, 16384, 4096, 65536, 32768, 2048, 1024, 512)
"""Possible page sizes: that of a log first, then that of logs of the first versions."""

Value = int | float | str | bytes | None


class Cell(NamedTuple):
    """A row as it lies in a page: its row id (None in a table without), and where its bytes are."""

    rowid: int | None
    local: bytes
    size: int
    overflow: int
    """Number of the page with the rest of the bytes; 0 if `local` has all `size` bytes."""


class PageFile:
    """The pages of a file that nothing else writes, numbered from 1."""

    def __init__(self, fd: int, page_bytes: int) -> None:
        self._fd, self.page_bytes = fd, page_bytes
        self.count = -(-os.fstat(fd).st_size // page_bytes)

    def versions(self) -> tuple[int, int] | None:
        """Return SQLite's `user_version` and `application_id`; None if the header is damaged."""
        header = self.page(1)
        return (_U32.unpack_from(header, 60)[0], _U32.unpack_from(header, 68)[0]) if header.startswith(_MAGIC) else None

    def page(self, number: int) -> bytes:
        """Return a page; zeros behind the end of the file."""
        return os.pread(self._fd, self.page_bytes, (number - 1) * self.page_bytes).ljust(self.page_bytes, b"\0")

    def free_pages(self) -> frozenset[int]:
        """Return the pages that are not in use: they still contain rows that were dropped. Empty if their list is damaged."""
        header = self.page(1)
        (trunk,) = _U32.unpack_from(header, 32)
        (count,) = _U32.unpack_from(header, 36)
        found: set[int] = set()
        while trunk and trunk not in found and trunk <= self.count:
            page = self.page(trunk)
            found.add(trunk)
            next_trunk, leaves = struct.unpack_from(">II", page)
            if leaves > self.page_bytes // 4 - 2:
                break
            found.update(struct.unpack_from(f">{leaves}I", page, 8))
            trunk = next_trunk
        return frozenset(found) if header.startswith(_MAGIC) and len(found) == count else frozenset()

    def cells(self, number: int) -> list[Cell]:
        """Return what looks like rows in a page; nothing for pages of other kinds."""
        page = self.page(number)
        at = _HEADER_BYTES if number == 1 else 0
        kind = page[at]
        if kind not in _CELLS_AT:
            return []
        (count,) = _U16.unpack_from(page, at + 3)
        begin = at + _CELLS_AT[kind]
        if begin + 2 * count > len(page):
            return []
        cells = []
        for pointer in struct.unpack_from(f">{count}H", page, begin):
            try:
                cells.append(self._cell(page, kind, pointer))
            except (IndexError, struct.error):  # the pointer, or the cell, is damaged
                continue
        return cells

    def _cell(self, page: bytes, kind: int, at: int) -> Cell:
        if kind == _INDEX_INTERIOR:
            at += 4  # the number of the page on the left
        size, at = _varint(page, at)
        rowid: int | None = None
        if kind == _TABLE_LEAF:
            rowid, at = _varint(page, at)
        local = self._local_bytes(size, is_table=kind == _TABLE_LEAF)
        if at + local > len(page):
            raise IndexError
        overflow = _U32.unpack_from(page, at + local)[0] if local < size else 0
        return Cell(rowid, page[at : at + local], size, overflow)

    def _local_bytes(self, size: int, *, is_table: bool) -> int:
        """Return the number of bytes of a row that lie in the page itself."""
        usable = self.page_bytes  # logs reserve no bytes at the ends of their pages
        maximum = usable - 35 if is_table else (usable - 12) * 64 // 255 - 23
        if size <= maximum:
            return size
        minimum = (usable - 12) * 32 // 255 - 23
        fitting = minimum + (size - minimum) % (usable - 4)
        return fitting if fitting <= maximum else minimum

    def values(self, cell: Cell) -> list[Value] | None:
        """Return the values of a row; None if it is damaged so that it has none."""
        try:
            data = self._payload(cell)
            return _decode(data, _serial_types(data))
        except (IndexError, struct.error, ValueError):
            return None

    def _payload(self, cell: Cell) -> bytes:
        parts, missing, number = [cell.local], cell.size - len(cell.local), cell.overflow
        if missing > self.count * self.page_bytes:
            raise ValueError(f"the row would have {cell.size} bytes")
        while missing:
            if not 1 < number <= self.count:
                raise ValueError(f"the file has no page {number}")
            page = self.page(number)
            (number,) = _U32.unpack_from(page)
            parts.append(page[4 : 4 + missing])
            missing -= len(parts[-1])
        return b"".join(parts)


def page_bytes_of(fd: int) -> int | None:
    """Return the page size that the header of a file names; None if the header is damaged."""
    header = os.pread(fd, _HEADER_BYTES, 0)
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        return None
    (size,) = _U16.unpack_from(header, 16)
    size = 1 << 16 if size == 1 else size
    return size if size in PAGE_SIZES else None


def column_count(cell: Cell) -> int:
    """Return the number of values of a row; 0 if it is damaged so that it has none."""
    try:
        return len(_serial_types(cell.local))
    except IndexError:
        return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the integer of variable length at an index, and the index behind it. Raises IndexError."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    value = value << 8 | data[at + 8]
    return value - (1 << 64) if value >> 63 else value, at + 9


def _serial_types(data: bytes) -> list[int]:
    """Return the serial types of the values of a row: its header is its number of bytes and the types. Raises IndexError."""
    end, at = _varint(data, 0)
    if not 0 < end <= len(data):
        raise IndexError
    types = []
    while at < end:
        serial_type = data[at]
        if serial_type < 0x80:
            at += 1
        else:
            serial_type, at = _varint(data, at)
        types.append(serial_type)
    return types


def _decode(data: bytes, serial_types: list[int]) -> list[Value]:
    at, _ = _varint(data, 0)
    values: list[Value] = []
    for serial_type in serial_types:
        value, at = _value(data, at, serial_type)
        values.append(value)
    return values


def _value(data: bytes, at: int, serial_type: int) -> tuple[Value, int]:
    """Return the value at an index, and the index behind it. Raises IndexError, ValueError, struct.error."""
    if serial_type == 0:
        return None, at
    if serial_type < 7:
        end = at + _INTEGER_BYTES[serial_type]
        return int.from_bytes(data[at:end], "big", signed=True), end
    if serial_type == 7:
        return _DOUBLE.unpack_from(data, at)[0], at + 8
    if serial_type < 10:
        return serial_type - 8, at
    size, is_text = divmod(serial_type - 12, 2)
    if serial_type < 12 or at + size > len(data):
        raise IndexError
    value = data[at : at + size]
    return (value.decode("utf-8", "surrogatepass") if is_text else value), at + size
