"""What a state file has about brokers is read beside a gateway, and forgotten only without one."""

from pathlib import Path

import pytest

from mqbridge.adapter.known_brokers import KnownBrokers, Series
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.delivery.state_brokers import TopicBrokers, forget_broker, look_up_brokers, topic_brokers
from mqbridge.errors import ConfigError

A, B = Series("broker-a", 0), Series("broker-b", 0)


async def test_brokers_are_looked_up_while_another_process_has_the_file_open(tmp_path: Path) -> None:
    path, known = tmp_path / "state.db", KnownBrokers()
    look_up_brokers(path, "rocket", known)
    assert known.is_kept
    assert not path.exists()
    assert not known.is_known_from_before()
    checkpoints, recorded = Checkpoints(path), KnownBrokers()
    checkpoints.keep_brokers("rocket", recorded)
    recorded.record("orders", ["broker-a"])
    await checkpoints.flush()
    look_up_brokers(path, "rocket", known)
    await checkpoints.close()
    assert known.of("orders") == {"broker-a"}
    path.write_bytes(b"damaged")
    look_up_brokers(path, "rocket", KnownBrokers())


async def test_a_broker_is_forgotten_for_the_topics_that_are_named(tmp_path: Path) -> None:
    path, known, other = tmp_path / "state.db", KnownBrokers(), KnownBrokers()
    checkpoints = Checkpoints(path)
    checkpoints.keep_brokers("rocket", known)
    checkpoints.keep_brokers("other", other)
    for topic in ("events", "orders"):
        known.record(topic, ["broker-a", "broker-b"])
    known.fix_layout("orders", ["broker-a:0", "broker-b:0"])
    other.record("orders", ["broker-b"])
    await checkpoints.flush()
    events, orders = ("rocket", "events", ("broker-a", "broker-b"), ()), ("rocket", "orders", ("broker-a", "broker-b"), (A, B))
    unconcerned = TopicBrokers("other", "orders", ("broker-b",), ())
    assert topic_brokers(path) == [unconcerned, events, orders]
    with pytest.raises(ConfigError, match="in use by another gateway"):
        forget_broker(path, "rocket", "broker-b", ["orders"])
    await checkpoints.close()
    forget_broker(path, "rocket", "broker-b", ["orders"])
    assert topic_brokers(path) == [unconcerned, events, TopicBrokers(*orders).without("broker-b")]
    checkpoints, known = Checkpoints(path), KnownBrokers()
    checkpoints.keep_brokers("rocket", known)
    assert known.of("orders") == {"broker-a"}
    assert known.indexes("orders", ["broker-a:0", "broker-a:1"]) == (0, 1)
    await checkpoints.close()


def test_a_file_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    for text in ("there is no state file", "cannot be used"):
        for call in (lambda: topic_brokers(path), lambda: forget_broker(path, "rocket", "broker-b", ["orders"])):
            with pytest.raises(ConfigError, match=text):
                call()
        path.write_bytes(b"damaged")
