"""The checkpoint folder of a mirror: for one mirror at a time, and only for the routes that it was made for."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from mqbridge.config.load import from_dict
from mqbridge.config.options.config import Config
from mqbridge.errors import ConfigError
from mqbridge.spark.mirror import checkpoint, lease
from mqbridge.spark.mirror.checkpoint import CheckpointFolder

ORDERS: dict[str, Any] = {
    "name": "orders",
    "from": {"cluster": "a", "topics": ["orders", "~eu_.+"], "group": "g"},
    "to": {"cluster": "b", "topic": "copy_{topic}"},
}


def config_of(*routes: dict[str, Any]) -> Config:
    return from_dict({"clusters": {name: {"system": "memory"} for name in "abc"}, "routes": list(routes)})


def claim(location: str, *routes: dict[str, Any]) -> CheckpointFolder:
    config = config_of(*routes)
    folder = CheckpointFolder(location)
    folder.claim(config, list(config.routes))
    return folder


def test_a_second_mirror_cannot_claim_the_folder_until_the_first_releases_it(tmp_path: Path) -> None:
    first = claim(str(tmp_path / "m"), ORDERS)
    with pytest.raises(ConfigError, match=r"in use by another mirror \(process"):
        claim(str(tmp_path / "m"), ORDERS)
    first.release()
    claim((tmp_path / "m").as_uri(), ORDERS).release()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "invoices"}, "positions of route 'orders', which the configuration does not have"),
        ({"from": ORDERS["from"] | {"cluster": "c"}}, "read from a (memory), not from c"),
        ({"from": ORDERS["from"] | {"topics": ["orders"]}}, "also read '~eu_.+'"),
        ({"to": {"cluster": "c", "topic": "copy_{topic}"}}, "wrote to b/copy_{topic}"),
        ({"to": {"cluster": "b", "topic": "other"}}, "wrote to b/copy_{topic}"),
        (
            {"to": ORDERS["to"] | {"partitions": {"by": "key"}}},
            "(partitions by modulo), not to b/copy_{topic} (partitions by key)",
        ),
    ],
)
def test_a_checkpoint_of_another_route_is_an_error(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    claim(str(tmp_path), ORDERS).release()
    with pytest.raises(ConfigError, match=re.escape(problem)):
        claim(str(tmp_path), ORDERS | change)


def test_topics_and_routes_may_be_added_and_filters_changed(tmp_path: Path) -> None:
    claim(str(tmp_path), ORDERS).release()
    changed = ORDERS | {
        "from": ORDERS["from"] | {"topics": ["orders", "~eu_.+", "us"]},
        "filter": {"include": [{"msg_type": {"equals": "a"}}]},
    }
    claim(str(tmp_path), changed, ORDERS | {"name": "second"}).release()
    with pytest.raises(ConfigError, match="also read 'us'"):
        claim(str(tmp_path), ORDERS, ORDERS | {"name": "second"})


@pytest.fixture
def _short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("RENEW_INTERVAL_S", 0.02), ("EXPIRE_AFTER_S", 0.5), ("SETTLE_S", 0.01)):
        monkeypatch.setattr(lease, name, seconds)


def make_lease(folder: Path) -> lease.Lease:
    return lease.Lease(fs.LocalFileSystem(), str(folder / "mirror.lease"), "s3://bucket/mirror")


@pytest.mark.usefixtures("_short_lease")
def test_a_lease_cannot_be_acquired_while_its_holder_renews_it(tmp_path: Path) -> None:
    first = make_lease(tmp_path)
    first.acquire()
    with pytest.raises(ConfigError, match=r"s3://bucket/mirror is in use by another mirror \(process"):
        make_lease(tmp_path).acquire()
    first.release()
    second = make_lease(tmp_path)
    second.acquire()
    second.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_short_lease")
def test_a_lease_that_is_just_being_written_does_not_hide_its_holder(tmp_path: Path) -> None:
    holder = {"id": "x", "holder": "process 1 on there"}
    contents = iter([holder | {"number": 3}, {"id": "", "number": 0}, holder | {"number": 4}])
    second = make_lease(tmp_path)
    second._read = lambda: next(contents)  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=r"in use by another mirror \(process 1 on there\)"):
        second.acquire()


@pytest.mark.usefixtures("_short_lease")
def test_a_lease_whose_holder_was_killed_while_writing_it_expires(tmp_path: Path) -> None:
    path = tmp_path / "mirror.lease"
    path.write_text('{"id": "x", "number": 3, "holder": "process 1 on there"}')
    threading.Timer(0.05, path.write_text, ['{"id": "x", "num']).start()
    successor = make_lease(tmp_path)
    successor.acquire()
    successor.release()


@pytest.mark.usefixtures("_short_lease")
def test_a_lease_that_another_program_has_written_expires(tmp_path: Path) -> None:
    (tmp_path / "mirror.lease").write_text('{"id": "x", "holder": "' + "y" * (1 << 20) + '"}')
    successor = make_lease(tmp_path)
    successor.acquire()
    successor.release()


@pytest.mark.usefixtures("_short_lease")
def test_an_expired_lease_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "mirror.lease").write_text('{"id": "x", "number": 3, "holder": "process 1 on there"}')
    successor = make_lease(tmp_path)
    successor.acquire()
    successor.release()


@pytest.mark.usefixtures("_short_lease")
def test_a_suspended_holder_stops_after_another_has_taken_over(tmp_path: Path) -> None:
    """A machine or its storage was suspended, and resumes while its successor runs."""
    lost = threading.Event()
    first = lease.Lease(fs.LocalFileSystem(), str(tmp_path / "mirror.lease"), "s3://bucket/mirror", lost.set)
    first.acquire()
    assert not lost.wait(0.2)
    second = make_lease(tmp_path)
    for _ in range(100):  # the first may overwrite a write of the second; a real successor would notice that and give up
        second._write()
        if lost.wait(0.1):
            break
    assert lost.is_set()
    assert first.is_lost
    first.release()
    assert second._read() == {**(second._read() or {}), "id": second._id}, "the successor's lease is not deleted"


def test_each_route_has_its_own_folder(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    assert folder.route_checkpoint("eu/orders") == f"{tmp_path}/eu%2Forders"
    assert CheckpointFolder(tmp_path.as_uri()).route_checkpoint("orders") == f"{tmp_path}/orders"


def test_a_file_of_another_version_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "mirror.json").write_text('{"version": 99}')
    with pytest.raises(ConfigError, match="written by another version"):
        claim(str(tmp_path), ORDERS)


@pytest.mark.parametrize(
    "text", ["", '{"version": 1}', '{"version": 1, "routes": []}', '{"version": 1, "routes": {"orders": {}}}', '{"rou']
)
def test_the_error_for_a_damaged_file_names_the_remedy(tmp_path: Path, text: str) -> None:
    claim(str(tmp_path), ORDERS).release()
    (tmp_path / "mirror.json").write_text(text)
    with pytest.raises(ConfigError, match=r"cannot be read: .*the same as before, remove it"):
        claim(str(tmp_path), ORDERS)
    (tmp_path / "mirror.json").unlink()
    (tmp_path / "mirror.json.lock").unlink()
    claim(str(tmp_path), ORDERS).release()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "MAX_RECORD_BYTES", 1000)
    (tmp_path / "mirror.json").write_text(" " * 1001)
    with pytest.raises(ConfigError, match="cannot be read: the file has more than 1000 bytes, so mqbridge has not written it"):
        claim(str(tmp_path), ORDERS)
