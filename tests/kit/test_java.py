"""The Java programs work as other tests assume: RocketMQ's with both client versions, and the bridges without loss."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kit import java
from tests.kit.java import Line
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ
from tests.sdk.rocketmq import Clients

pytestmark = [pytest.mark.cluster, pytest.mark.sdk, pytest.mark.timeout(600)]

BRIDGED = 20_000
PARTITIONS = 8
IDLE_S = 50
"""A Java consumer ends after this time without a message. A pull before the broker knows the subscription waits for 25 s."""
PROPERTIES = {f"p{number}": f"value {number} of {{n}}" for number in range(5)}
DIRECTIONS = [
    ("tubemq", "pulsar"),
    ("tubemq", "rocketmq"),
    ("pulsar", "pulsar"),
    ("pulsar", "tubemq"),
    ("pulsar", "rocketmq"),
    ("rocketmq", "pulsar"),
    ("rocketmq", "tubemq"),
]


def sequence(line: Line) -> int:
    return int.from_bytes(base64.b64decode(line["body"])[:8], "big")


@Clients
def test_rocketmq_messages_come_back_as_they_were_sent(rocketmq: RocketMQ, client: str) -> None:
    topic = rocketmq.take_topic(2)
    group = f"c_{topic}"
    rocketmq.create_topic(f"%RETRY%{group}", 1)  # one that its heartbeat makes a client sees up to 30 s later
    at: dict[str, Any] = {"client": client, "name_servers": rocketmq.name_server, "topic": topic}
    sending = {"tags": "a,b", "keys": "k{n} l{n}", "properties": {"name": "grün{n}"}, "print": True}
    # Several first sends at once may find no route yet, and go by that of a topic still to be made.
    *sent, _ = java.run("RocketProduce", messages=10, window=1, **sending, **at)
    *got, last = java.run("RocketConsume", group=group, tags="b", fail=1, retry_level=1, messages=5, idle=IDLE_S, **at)
    assert last == {"messages": 5, "deliveries": 10}
    ids = {line["seq"]: line["messageId"] for line in sent}
    accepted = {sequence(line): line for line in got if line["accepted"]}
    assert sorted(accepted) == [1, 3, 5, 7, 9]
    for number, line in accepted.items():
        assert (line["tags"], line["keys"], line["reconsumeTimes"]) == ("b", f"k{number} l{number}", 1)
        assert line["properties"]["name"] == f"grün{number}"
        assert line["messageId"] == ids[number]
    *pulled, _ = java.run("RocketPull", mode="assign", group=f"p_{topic}", messages=10, **at)
    assert sorted(map(sequence, pulled)) == list(range(10))


@Clients
def test_rocketmq_keeps_the_order_of_a_sharding_key(rocketmq: RocketMQ, client: str) -> None:
    topic = rocketmq.take_topic(4)
    at: dict[str, Any] = {"client": client, "name_servers": rocketmq.name_server, "topic": topic}
    java.run("RocketProduce", messages=20, sharding_key="one", window=1, **at)
    *got, _ = java.run("RocketConsume", group=f"o_{topic}", orderly=True, messages=20, batch=3, **at)
    assert [sequence(line) for line in got] == list(range(20))
    assert len({line["queue"] for line in got}) == 1


@Clients
def test_rocketmq_transactions_end_by_outcome_or_by_check(rocketmq: RocketMQ, client: str) -> None:
    topic = rocketmq.take_topic(1)
    at: dict[str, Any] = {"client": client, "name_servers": rocketmq.name_server, "topic": topic}
    outcomes = "commit,rollback,unknown"
    *lines, last = java.run("RocketTransact", group=f"t_{topic}", messages=3, outcomes=outcomes, answers="unknown,commit", **at)
    assert last == {"messages": 3, "checks": 2}
    # A broker may ask about one that is settled, when it has not noticed yet.
    checks = [(line["check"], line["answer"]) for line in lines[3:] if line.get("check") == 2]
    assert checks == [(2, "UNKNOW"), (2, "COMMIT_MESSAGE")]
    *got, _ = java.run("RocketConsume", group=f"c_{topic}", messages=2, **at)
    assert sorted(map(sequence, got)) == [0, 2]


@pytest.mark.long
@pytest.mark.parametrize(("source", "sink"), DIRECTIONS)
def test_a_bridge_loses_nothing(tubemq: TubeMQ, pulsar: Pulsar, rocketmq: RocketMQ, source: str, sink: str) -> None:
    places = {
        "tubemq": {"master": tubemq.masters},
        "pulsar": {"url": pulsar.service_url},
        "rocketmq": {"name_servers": rocketmq.name_server},
    }
    kinds: dict[str, TubeMQ | Pulsar | RocketMQ] = {"tubemq": tubemq, "pulsar": pulsar, "rocketmq": rocketmq}
    topic, target = kinds[source].take_topic(PARTITIONS), kinds[sink].take_topic(PARTITIONS)
    _fill(source, topic, places[source])
    threads = None if source == "pulsar" else PARTITIONS
    ends: dict[str, Any] = {"source": source, "sink": sink, "topic": topic, "target": target, **places[source], **places[sink]}
    last = java.run("JavaBridge", flags=java.BRIDGE_FLAGS, group=f"g_{sink}", messages=BRIDGED, threads=threads, **ends)[-1]
    assert last["messages"] == BRIDGED
    arrived = _read(sink, target, places[sink])
    assert sorted(map(sequence, arrived)) == list(range(BRIDGED))
    for line in arrived:
        assert {key: _properties(line)[key] for key in PROPERTIES} == _numbered(sequence(line))
        assert len(base64.b64decode(line["body"])) == 1000


def _fill(system: str, topic: str, place: Mapping[str, str]) -> None:
    at: dict[str, Any] = {"topic": topic, "messages": BRIDGED, "size": 1000, **place}
    match system:
        case "tubemq":
            java.run("TubeProduce", attributes=PROPERTIES, types="a,b", **at)
        case "pulsar":
            java.run("PulsarProduce", properties=PROPERTIES, key="k{n}", **at)
        case _:
            java.run("RocketProduce", properties=PROPERTIES, tags="a,b", keys="k{n}", batch=100, **at)


def _read(system: str, topic: str, place: Mapping[str, str]) -> list[Line]:
    at: dict[str, Any] = {"topic": topic, "messages": BRIDGED, **place}
    match system:
        case "tubemq":
            return java.run("TubeConsume", group="check", **at)[:-1]
        case "pulsar":
            return java.run("PulsarConsume", subscription="check", **at)[:-1]
        case _:
            return java.run("RocketPull", group="check", mode="pull", **at)[:-1]


def _properties(line: Line) -> dict[str, str]:
    if "attributes" in line:
        return dict(pair.split("=", 1) for pair in line["attributes"].split(","))
    properties: dict[str, str] = line["properties"]
    return properties


def _numbered(number: int) -> dict[str, str]:
    return {key: value.replace("{n}", str(number)) for key, value in PROPERTIES.items()}
