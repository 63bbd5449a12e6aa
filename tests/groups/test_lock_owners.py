"""Who has locked partitions is known to the next process."""

from pathlib import Path

import pytest

from mqbridge.errors import ClusterError
from mqbridge.groups.lock_owners import MAX_OWNERS, RecordedLockOwners
from mqbridge.groups.store import GroupStore


def owners_of(store: GroupStore, group: str = "g") -> RecordedLockOwners:
    return RecordedLockOwners(store, "app", "store", "t", group)


async def test_only_what_an_earlier_process_has_left_is_abandoned(tmp_path: Path) -> None:
    store = GroupStore(tmp_path / "state.db")
    owners = owners_of(store)
    for name in ("released", "killed", "killed too"):
        await owners.record(name)
    await owners.forget(["released"])
    assert owners.abandoned == [], "they live in this process"
    assert owners_of(store).abandoned == []
    again = GroupStore(tmp_path / "state.db")  # the process was killed: its store was not closed
    later = owners_of(again)
    assert later.abandoned == ["killed", "killed too"]
    assert owners_of(again, "other").abandoned == []
    await later.record("new")
    assert later.abandoned == ["killed", "killed too"], "until they are forgotten"
    await later.forget(later.abandoned)
    assert later.abandoned == []
    third = GroupStore(tmp_path / "state.db")
    assert owners_of(third).abandoned == ["new"]
    for each in (store, again, third):
        await each.close()


async def test_the_number_of_names_is_limited(tmp_path: Path) -> None:
    store = GroupStore(tmp_path / "state.db")
    for number in range(MAX_OWNERS + 3):
        await owners_of(store).record(str(number))
    again = GroupStore(tmp_path / "state.db")
    assert owners_of(again).abandoned == [str(number) for number in range(3, MAX_OWNERS + 3)]
    for each in (store, again):
        await each.close()


async def test_a_file_that_cannot_be_written_hinders_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = GroupStore(tmp_path / "state.db")
    await store.close()
    await owners_of(store).record("a")
    assert "nobody gets them for a while" in caplog.text
    with pytest.raises(ClusterError, match="cannot be written"):
        await store.write_note(owners_of(store)._key, "a")


async def test_joins_that_fail_push_out_nobody_whose_locks_are_to_be_released(tmp_path: Path) -> None:
    before = GroupStore(tmp_path / "state.db")
    await owners_of(before).record("killed")
    await before.close()
    store = GroupStore(tmp_path / "state.db")
    owners = owners_of(store)
    for number in range(2 * MAX_OWNERS):
        await owners.record(f"new-{number}")
    assert owners.abandoned == ["killed"]
    assert len(owners._owners) == 1 + MAX_OWNERS
    await store.close()
