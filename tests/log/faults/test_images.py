"""Images of a disk after a power failure have what was synced, and any part of what was not."""

from __future__ import annotations

import random

from tests.log.faults.images import (
    CREATE,
    HEADER,
    MARK,
    RENAME,
    SECTOR,
    SYNC,
    SYNC_FOLDER,
    TRUNCATE,
    UNLINK,
    WRITE,
    Operation,
    image,
    marks,
    parse,
)

IMAGES = 300


def create(inode: int, name: str) -> Operation:
    return Operation(CREATE, inode, 0, f"/folder/{name}".encode())


def write(inode: int, offset: int, data: bytes) -> Operation:
    return Operation(WRITE, inode, offset, data)


def sync(inode: int) -> Operation:
    return Operation(SYNC, inode, 0, b"")


def images_of(*operations: Operation) -> list[dict[str, bytes]]:
    return [image(operations, len(operations), random.Random(seed)) for seed in range(IMAGES)]


def test_synced_writes_are_there() -> None:
    found = images_of(create(1, "a"), write(1, 0, b"x" * 1000), sync(1), write(1, 1024, b"y" * SECTOR))
    assert all(each["a"][:1000] == b"x" * 1000 for each in found)


def test_sectors_of_later_writes_are_there_or_not_independently_and_seldom_in_part() -> None:
    first, second = b"y" * SECTOR, b"z" * SECTOR
    found = images_of(create(1, "a"), write(1, 0, bytes(2 * SECTOR)), sync(1), write(1, 0, first + second))
    sectors = {(each["a"][:SECTOR], each["a"][SECTOR:]) for each in found}
    assert {(first, second), (bytes(SECTOR), second), (first, bytes(SECTOR)), (bytes(SECTOR), bytes(SECTOR))} <= sectors
    torn = [one for one, _ in sectors if one not in (first, bytes(SECTOR))]
    assert torn
    assert all(one == first[: len(one.rstrip(b"\0"))].ljust(SECTOR, b"\0") for one in torn)


def test_an_older_version_of_a_sector_may_be_there() -> None:
    found = images_of(create(1, "a"), write(1, 0, b"1"), sync(1), write(1, 0, b"2"), write(1, 0, b"3"))
    assert {each["a"] for each in found} == {b"1", b"2", b"3"}


def test_sizes_may_be_old_or_new() -> None:
    found = images_of(create(1, "a"), write(1, 0, b"x" * 10), sync(1), Operation(TRUNCATE, 1, 4, b""))
    assert {each["a"] for each in found} == {b"x" * 10, b"x" * 4}


def test_an_overwrite_leaves_the_size() -> None:
    found = images_of(create(1, "a"), write(1, 0, b"x" * 1000), sync(1), write(1, 0, b"y" * 10))
    assert {len(each["a"]) for each in found} == {1000}


def test_names_may_be_old_or_new_until_the_folder_is_synced() -> None:
    began = (create(1, "a"), sync(1), create(2, "b"), Operation(UNLINK, 0, 0, b"/folder/a"))
    assert {frozenset(each) for each in images_of(*began)} == {frozenset("a"), frozenset("ab"), frozenset("b")}
    assert {frozenset(each) for each in images_of(*began, Operation(SYNC_FOLDER, 9, 0, b""))} == {frozenset("b")}
    renamed = (create(1, "a"), sync(1), Operation(RENAME, 0, 0, b"/folder/a\0/folder/c"))
    assert {frozenset(each) for each in images_of(*renamed)} == {frozenset("a"), frozenset("c")}


def test_a_journal_is_read_up_to_its_last_whole_operation() -> None:
    operations = [create(7, "a"), write(7, 5, b"data"), Operation(MARK, 0, 0, b'["ack"]\n')]
    journal = b"".join(HEADER.pack(len(each.data), each.inode, each.offset, ord(each.code)) + each.data for each in operations)
    assert parse(journal) == operations
    assert parse(journal[:-1]) == operations[:-1]
    assert marks(operations) == b'["ack"]\n'
