"""Rows that are read from the pages of a file are those that SQLite reads."""

import os
import random
import sqlite3
from pathlib import Path

import pytest

from mqbridge.log.store.pages import PageFile, column_count, page_bytes_of


@pytest.mark.parametrize("page_bytes", [512, 4096, 16384, 65536])
def test_all_rows_are_found(tmp_path: Path, page_bytes: int) -> None:
    path, chance = tmp_path / "x.db", random.Random(page_bytes)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size={page_bytes}")
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("CREATE TABLE t (a, b, c, d, e)")
    connection.execute("CREATE TABLE w (k, v, PRIMARY KEY (k, v)) WITHOUT ROWID")
    for _ in range(400):
        number = chance.choice([0, 1, -1, 127, -128, 1 << 15, 1 << 23, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63)])
        text = "é" * chance.choice([0, 1, 60, page_bytes // 3, page_bytes * 2])
        blob = chance.randbytes(chance.choice([0, 1, page_bytes - 100, page_bytes, page_bytes * 5]))
        connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?)", (number, text, 1.5, None, blob))
        connection.execute("INSERT OR IGNORE INTO w VALUES (?, ?)", (text, number))
    connection.execute("UPDATE t SET rowid = rowid + 9000000000000000000 WHERE rowid = 400")
    connection.execute("DELETE FROM t WHERE rowid % 7 = 0")
    connection.execute("DELETE FROM w WHERE v = 127")
    connection.commit()
    rows = {tuple(row) for row in connection.execute("SELECT rowid, * FROM t")}
    pairs = {tuple(row) for row in connection.execute("SELECT * FROM w")}
    connection.close()

    fd = os.open(path, os.O_RDONLY)
    assert page_bytes_of(fd) == page_bytes
    file = PageFile(fd, page_bytes)
    free = file.free_pages()
    assert free
    found_rows, found_pairs = set(), set()
    for number in range(1, file.count + 1):
        for cell in [] if number in free else file.cells(number):
            values = file.values(cell)
            if values is not None and column_count(cell) == 5 and values[0] != "table":
                found_rows.add((cell.rowid, *values))
            elif values is not None and column_count(cell) == 2 and cell.rowid is None:
                found_pairs.add(tuple(values))
    os.close(fd)
    assert {row for row in found_rows if row[3] == 1.5} == rows
    assert pairs <= found_pairs


def test_damaged_pages_raise_nothing(tmp_path: Path) -> None:
    path, chance = tmp_path / "x.db", random.Random(7)
    for page_bytes in (512, 16384):
        for kind in (0x0D, 0x0A, 0x02):
            pages = [bytes([kind]) + chance.randbytes(page_bytes - 1) for _ in range(200)]
            small = [bytes([kind, 0, 0, 0, chance.randrange(9)]) + chance.randbytes(page_bytes - 5) for _ in range(200)]
            path.write_bytes(b"".join(pages + small))
            fd = os.open(path, os.O_RDONLY)
            assert page_bytes_of(fd) is None
            file = PageFile(fd, page_bytes)
            assert file.free_pages() == frozenset()
            for number in range(1, file.count + 2):
                for cell in file.cells(number):
                    column_count(cell)
                    file.values(cell)
            os.close(fd)
