"""The checkpoint folder of a mirror: one mirror at a time, and only routes that its positions belong to."""

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from mqbridge.config.load import from_dict
from mqbridge.config.options.config import Config
from mqbridge.errors import ConfigError
from mqbridge.spark.mirror import lease
from mqbridge.spark.mirror.checkpoint import CheckpointFolder

ORDERS: dict[str, Any] = {
    "name": "orders",
    "from": {"cluster": "a", "topics": ["orders", "~eu_.+"], "group": "g"},
    "to": {"cluster": "b", "topic": "copy_{topic}"},
}


def config_of(*routes: dict[str, Any]) -> Config:
    return from_dict({"clusters": {name: {"system": "memory"} for name in "abc"}, "routes": list(routes)})


def claim(place: str, *routes: dict[str, Any]) -> CheckpointFolder:
    config = config_of(*routes)
    folder = CheckpointFolder(place)
    folder.claim(config, list(config.routes))
    return folder


def test_a_second_mirror_is_kept_out_until_the_first_has_gone(tmp_path: Path) -> None:
    first = claim(str(tmp_path / "m"), ORDERS)
    with pytest.raises(ConfigError, match=r"in use by another mirror \(process"):
        claim(str(tmp_path / "m"), ORDERS)
    first.release()
    claim((tmp_path / "m").as_uri(), ORDERS).release()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "invoices"}, "positions of a route 'orders', which the configuration does not have"),
        ({"from": ORDERS["from"] | {"cluster": "c"}}, "read from a (memory), not from c"),
        ({"from": ORDERS["from"] | {"topics": ["orders"]}}, "read '~eu_.+' too"),
        ({"to": {"cluster": "c", "topic": "copy_{topic}"}}, "wrote to b/copy_{topic}"),
        ({"to": {"cluster": "b", "topic": "other"}}, "wrote to b/copy_{topic}"),
        (
            {"to": ORDERS["to"] | {"partitions": {"by": "key"}}},
            "(partitions by modulo), not to b/copy_{topic} (partitions by key)",
        ),
    ],
)
def test_a_checkpoint_of_another_route_is_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    claim(str(tmp_path), ORDERS).release()
    with pytest.raises(ConfigError, match=re.escape(problem)):
        claim(str(tmp_path), ORDERS | change)


def test_topics_and_routes_may_be_added_and_filters_changed(tmp_path: Path) -> None:
    claim(str(tmp_path), ORDERS).release()
    wider = ORDERS | {
        "from": ORDERS["from"] | {"topics": ["orders", "~eu_.+", "us"]},
        "filter": {"include": [{"msg_type": {"equals": "a"}}]},
    }
    claim(str(tmp_path), wider, ORDERS | {"name": "second"}).release()
    with pytest.raises(ConfigError, match="'us' too"):
        claim(str(tmp_path), ORDERS, ORDERS | {"name": "second"})


@pytest.fixture
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("RENEW_S", 0.02), ("GONE_S", 0.5), ("SETTLE_S", 0.01)):
        monkeypatch.setattr(lease, name, seconds)


def lease_of(folder: Path) -> lease.Lease:
    return lease.Lease(fs.LocalFileSystem(), str(folder / "mirror.lease"), "s3://bucket/mirror")


@pytest.mark.usefixtures("_fast")
def test_a_lease_is_kept_while_its_holder_lives(tmp_path: Path) -> None:
    first = lease_of(tmp_path)
    first.take()
    with pytest.raises(ConfigError, match=r"s3://bucket/mirror is in use by another mirror \(process"):
        lease_of(tmp_path).take()
    first.release()
    second = lease_of(tmp_path)
    second.take()
    second.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_fast")
def test_a_lease_whose_holder_is_gone_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "mirror.lease").write_text('{"id": "x", "number": 3, "holder": "process 1 on there"}')
    taken = lease_of(tmp_path)
    taken.take()
    taken.release()


@pytest.mark.usefixtures("_fast")
def test_a_holder_that_was_away_stops_when_another_has_taken_over(tmp_path: Path) -> None:
    """A machine that was suspended, or whose storage was, wakes up beside its successor."""
    lost = threading.Event()
    first = lease.Lease(fs.LocalFileSystem(), str(tmp_path / "mirror.lease"), "s3://bucket/mirror", lost.set)
    first.take()
    assert not lost.wait(0.2)
    second = lease_of(tmp_path)
    for _ in range(100):  # what is written while the first is about to write goes under: who takes over would see that
        second._write()
        if lost.wait(0.1):
            break
    assert lost.is_set()
    assert first.is_lost
    first.release()
    assert second._read() == {**(second._read() or {}), "id": second._me}, "what the successor wrote stays"


def test_each_route_has_a_folder_of_its_own(tmp_path: Path) -> None:
    folder = CheckpointFolder(str(tmp_path))
    assert folder.of_route("eu/orders") == f"{tmp_path}/eu%2Forders"
    assert CheckpointFolder(tmp_path.as_uri()).of_route("orders") == f"{tmp_path}/orders"


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mirror.json").write_text('{"version": 99}')
    with pytest.raises(ConfigError, match="not of this version"):
        claim(str(tmp_path), ORDERS)


@pytest.mark.parametrize(
    "text", ["", '{"version": 1}', '{"version": 1, "routes": []}', '{"version": 1, "routes": {"orders": {}}}', '{"rou']
)
def test_a_damaged_file_says_what_to_do(tmp_path: Path, text: str) -> None:
    claim(str(tmp_path), ORDERS).release()
    (tmp_path / "mirror.json").write_text(text)
    with pytest.raises(ConfigError, match=r"cannot be read: .*are the same as before, remove it"):
        claim(str(tmp_path), ORDERS)
    (tmp_path / "mirror.json").unlink()
    (tmp_path / "mirror.json.lock").unlink()
    claim(str(tmp_path), ORDERS).release()
