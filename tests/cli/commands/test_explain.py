"""`mqbridge explain`: the fields of two systems, and messages of an embedded log."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from mqbridge.adapter.registry import load_adapters
from tests.cli.conftest import Invoke
from tests.kit.pulsar import Pulsar


def test_it_has_help_with_examples(invoke: Invoke) -> None:
    answer = invoke("explain", "--help")
    assert answer.code == 0
    assert "mqbridge explain tubemq pulsar" in answer.out


def test_explain_lists_every_field_of_the_source_system(invoke: Invoke) -> None:
    rows = invoke("explain", "rocketmq", "pulsar", "--json").json["fields"]
    by_source = {row["source"]: row for row in rows}
    assert by_source["TAGS"]["target"] == "property $msgType$, mqbridge.msg_type"
    assert by_source["DELAY"]["fate"] == "dropped"
    assert "elapsed" in by_source["DELAY"]["why"]
    assert (by_source["BODY"]["field"], by_source["BODY"]["fate"]) == ("payload", "native")
    assert "PREPAREDTRANSACTIONOFFSET" in invoke("explain", "rocketmq", "pulsar").out


def test_explain_says_what_sdks_get_from_a_listener(invoke: Invoke) -> None:
    explained = invoke("explain", "rocketmq", "tubemq", "--json").json
    by_source = {row["source"]: row["listener"] for row in explained["fields"]}
    assert (by_source["WAIT"], by_source["DELAY"], by_source["CLUSTER"]) == ("kept", "acted on", "left out")
    assert "mqbridge.rocketmq.block" in explained["listener"]
    shown = invoke("explain", "rocketmq", "tubemq").out
    assert "acted on" in shown
    assert "Listener for RocketMQ SDKs" in shown
    assert "Listener for Pulsar SDKs" in invoke("explain", "pulsar", "rocketmq").out
    assert "Listener for TubeMQ SDKs" in invoke("explain", "tubemq", "rocketmq").out


@pytest.mark.parametrize("names", [[], ["tubemq"], ["tubemq", "pulsar", "log"], ["tubemq", "plusar"]])
def test_wrong_names_are_rejected(invoke: Invoke, names: list[str]) -> None:
    answer = invoke("explain", *names)
    assert answer.code == 2
    assert answer.err


def test_an_unknown_system_is_reported_with_the_nearest_name(invoke: Invoke) -> None:
    assert "pulsar" in invoke("explain", "tubemq", "plusar").err


@pytest.fixture
def orders(config: Path, invoke: Invoke) -> list[Any]:
    options = ["-F", config, "-b", "source"]
    assert invoke("topics", "orders", "--create", 1, *options).code == 0
    assert invoke("produce", "-t", "orders", *options, stdin=b"first\nsecond").code == 0
    return options


@pytest.mark.parametrize("target", sorted(load_adapters()))
def test_a_message_is_explained_for_every_system(invoke: Invoke, orders: list[Any], target: str) -> None:
    answer = invoke("explain", *orders, "orders", target, "--json")
    assert answer.code == 0, answer.err
    explained = answer.json
    assert (explained["message"]["payload"], explained["message"]["position"]) == ("first", "0")
    assert "first" in [row.get("value") for row in explained["written"] if row["field"] == "payload"]
    origin = [row for row in explained["written"] if row["field"] == "origin"]
    assert [row["value"] for row in origin] == ["source|orders|0|0"]
    shown = invoke("explain", *orders, "orders", target)
    assert shown.code == 0
    assert "first" in shown.out


def test_a_message_by_position_and_url(invoke: Invoke, orders: list[Any], config: Path) -> None:
    url = f"log://{config.parent}/source.db"
    answer = invoke("explain", "--message", url, "orders", "rocketmq", "--position", "1", "--json")
    assert answer.json["message"]["payload"] == "second"
    assert invoke("explain", "--message", url, "orders", "rocketmq", "--position", "x").code == 2
    assert invoke("topics", "orders", "--create", 2, *orders).code == 0
    ambiguous = invoke("explain", "--message", url, "orders", "rocketmq", "--position", "1")
    assert (ambiguous.code, "-p" in ambiguous.err) == (2, True)
    assert invoke("explain", "--message", url, "orders", "rocketmq", "--position", "1", "-p", "0").code == 0
    assert invoke("explain", "--message", url, "missing", "rocketmq").code == 3


def test_a_topic_without_messages(invoke: Invoke, orders: list[Any]) -> None:
    assert invoke("topics", "empty", "--create", 1, *orders).code == 0
    answer = invoke("explain", *orders, "empty", "pulsar")
    assert answer.code == 3
    assert "no message" in answer.err


@pytest.mark.cluster
def test_a_message_of_a_real_pulsar(invoke: Invoke, pulsar: Pulsar) -> None:
    topic = pulsar.take_topic()
    at = ["--at", pulsar.service_url]
    assert invoke("produce", "-t", topic, *at, "-K", ":", "-H", "a=1", stdin=b"k:first\nl:second").code == 0
    answer = invoke("explain", "--message", pulsar.service_url, topic, "rocketmq", "--json")
    assert answer.code == 0, answer.err
    written = {row["native"]: row["value"] for row in answer.json["written"]}
    assert (written["BODY"], written["__SHARDINGKEY"], written["a"]) == ("first", "k", "1")
    shown = [orjson.loads(line) for line in invoke("consume", "-t", topic, *at, "-e", "--json").out.splitlines()]
    position = next(one["position"] for one in shown if one["payload"] == "second")
    second = invoke("explain", "--message", pulsar.service_url, topic, "tubemq", "--json", "-o", position)
    assert (second.json["message"]["payload"], second.json["message"]["position"]) == ("second", position)
