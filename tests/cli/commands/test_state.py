"""`mqbridge state`: the brokers that a state file knows, and forgetting one."""

import asyncio
from pathlib import Path

import pytest
import yaml

from mqbridge.adapter.known_brokers import KnownBrokers
from mqbridge.delivery.checkpoint import Checkpoints
from tests.cli.conftest import Invoke


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration whose state knows two brokers of two topics, and counts the indexes of one over them."""

    async def fill() -> None:
        checkpoints, known = Checkpoints(tmp_path / "state.db"), KnownBrokers()
        checkpoints.keep_brokers("rocket", known)
        for topic in ("events", "orders"):
            known.record(topic, ["broker-a", "broker-b"])
        known.fix_layout("orders", ["broker-a:0", "broker-b:0"])
        await checkpoints.close()

    asyncio.run(fill())
    return write(tmp_path, state=str(tmp_path / "state.db"))


def write(folder: Path, **options: str) -> Path:
    log = {"system": "log", "path": str(folder / "log.db")}
    route = {"name": "r", "from": {"cluster": "rocket", "topic": "t", "group": "g"}, "to": {"cluster": "log"}}
    clusters = {"rocket": {"system": "rocketmq", "name_servers": "127.0.0.1:1"}, "log": log}
    path = folder / "gateway.yaml"
    path.write_text(yaml.safe_dump({"clusters": clusters, "routes": [route], **options}))
    return path


def test_the_known_brokers_are_shown_by_topic(invoke: Invoke, config: Path) -> None:
    lines = [line.split() for line in invoke("state", config).out.splitlines()]
    assert lines[1:] == [
        ["rocket", "events", "broker-a,", "broker-b"],
        ["rocket", "orders", "broker-a,", "broker-b", "broker-a,", "broker-b"],
    ]
    first, second = invoke("state", config, "--json").json
    assert first == {"cluster": "rocket", "topic": "events", "brokers": ["broker-a", "broker-b"], "indexes": []}
    assert second["indexes"] == [{"broker": "broker-a", "store": 0}, {"broker": "broker-b", "store": 0}]


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--dry-run", "--yes")])
def test_nothing_is_forgotten_without_yes(invoke: Invoke, config: Path, options: tuple[str, ...]) -> None:
    answer = invoke("state", config, "--forget-broker", "rocket/broker-b", *options)
    assert answer.code == (0 if options else 2)
    assert "broker broker-b of cluster rocket would be forgotten for 2 topics" in answer.err
    assert "indexes change once" in answer.err
    assert ("nothing was forgotten" in answer.err) == (not options)
    assert all(topic["brokers"] == ["broker-a", "broker-b"] for topic in invoke("state", config, "--json").json)


def test_a_broker_is_forgotten(invoke: Invoke, config: Path) -> None:
    answer = invoke("state", config, "--forget-broker", "rocket/broker-b", "--topic", "events", "--yes")
    assert answer.code == 0
    assert "is forgotten for 1 topic\n" in answer.err
    assert "indexes change" not in answer.err
    answer = invoke("state", config, "--forget-broker", "rocket/broker-b", "--yes", "--json")
    assert answer.json == {
        "cluster": "rocket",
        "broker": "broker-b",
        "forgotten": True,
        "topics": [{"topic": "orders", "brokers": ["broker-a"], "indexes": [{"broker": "broker-a", "store": 0}]}],
    }
    answer = invoke("state", config, "--forget-broker", "rocket/broker-b", "--yes")
    assert answer.code == 2
    assert "knows no broker 'broker-b' of cluster 'rocket'" in answer.err
    assert "It knows rocket/broker-a" in answer.err


async def test_a_broker_is_not_forgotten_while_a_gateway_has_the_state(invoke: Invoke, config: Path, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "state.db")
    assert len(invoke("state", config, "--json").json) == 2
    assert invoke("state", config, "--forget-broker", "rocket/broker-b", "--dry-run").code == 0
    answer = invoke("state", config, "--forget-broker", "rocket/broker-b", "--yes")
    assert answer.code == 2
    assert "in use by another gateway" in answer.err
    await checkpoints.close()


def test_mistakes_are_named(invoke: Invoke, config: Path, tmp_path: Path) -> None:
    for options, text in (
        (("--yes",), "need --forget-broker"),
        (("--forget-broker", "broker-b", "--yes"), "'broker-b' has no broker"),
        (("--forget-broker", "rocket/broker-b", "-t", "other", "--yes"), "for topic other"),
    ):
        answer = invoke("state", config, *options)
        assert (answer.code, text in answer.err) == (2, True), answer.err
    assert "has no `state`" in invoke("state", write(tmp_path)).err
    assert "there is no state file" in invoke("state", write(tmp_path, state=str(tmp_path / "missing.db"))).err
