"""The example configurations and the commands against the real servers."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from tests.cli.conftest import Answer, Invoke
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ

pytestmark = pytest.mark.cluster

CONFIG = Path(__file__).parents[2] / "config"
THERE, BACK = CONFIG / "tubemq-to-pulsar.yaml", CONFIG / "pulsar-to-tubemq.yaml"
COUNT = 500
DEADLINE_S = 60

Configure = Callable[..., None]


@pytest.fixture
def configure(tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Sets the variables that the examples read."""

    def configure(**names: str) -> None:
        addresses = {"TUBEMQ_MASTERS": tubemq.masters, "PULSAR_URL": pulsar.service_url, "PULSAR_ADMIN_URL": pulsar.admin_url}
        own = {"STATE": str(tmp_path / "state.db"), "LISTEN": "127.0.0.1:0"}
        for name, value in {**addresses, **own, **names}.items():
            monkeypatch.setenv(name, value)

    return configure


def messages(out: str) -> list[Any]:
    return [orjson.loads(line) for line in out.splitlines()]


def test_there_and_back(invoke: Invoke, tubemq: TubeMQ, pulsar: Pulsar, configure: Configure) -> None:
    source, copy, back = tubemq.take_topic(3), f"persistent://public/default/cli-{tubemq.take_topic(1)}", tubemq.take_topic(3)
    configure(SOURCE_TOPIC=source, TARGET_TOPIC=copy, GROUP="cli-there")
    stdin = b"".join(b"key-%d:payload %d\n" % (number % 7, number) for number in range(COUNT))
    sent = invoke(
        "produce", "-t", source, "-K", ":", "-T", "paid", "-H", "lang=de", "-F", THERE, "-b", "tube", "--json", stdin=stdin
    )
    assert (sent.code, sent.json["stored"], sent.json["refused"]) == (0, COUNT, 0)

    looked = invoke("check", THERE, "--connect", "--json")
    assert (looked.code, looked.json["routes"][0]["topics"]) == (0, [{"topic": source, "partitions": 3, "targets": [copy]}])
    ran = invoke("run", THERE, "--until-idle", 3, "--json")
    assert (ran.code, ran.json["routes"][0]["acknowledged"]) == (0, COUNT)

    got = messages(invoke("consume", "-t", copy, "-F", THERE, "-b", "pulsar", "-e", "--json").out)
    assert sorted(one["payload"] for one in got) == sorted(f"payload {number}" for number in range(COUNT))
    assert {(one["key"], one["msg_type"]) for one in got} == {(f"key-{number}", "paid") for number in range(7)}
    assert all(["lang", "de"] in one["properties"] for one in got)

    configure(SOURCE_TOPIC=copy, TARGET_TOPIC=back, GROUP="cli-back")
    returned = invoke("run", BACK, "--until-idle", 3, "--json")
    assert (returned.code, returned.json["routes"][0]["acknowledged"]) == (0, COUNT)
    rows = invoke("groups", copy, "-G", "cli-back", "-F", BACK, "-b", "pulsar", "--json").json
    assert [row["at_end"] for row in rows] == [True] * 3
    home = messages(invoke("consume", "-t", back, "-F", BACK, "-b", "tube", "-e", "--json").out)
    assert sorted((one["payload"], one["key"]) for one in home) == sorted((one["payload"], one["key"]) for one in got)


def test_a_cluster_that_is_not_there(invoke: Invoke, configure: Configure) -> None:
    configure(TUBEMQ_MASTERS="127.0.0.1:1", PULSAR_URL="pulsar://127.0.0.1:1")
    answer = invoke("run", THERE, "--until-idle", 1)
    assert answer.code == 3
    assert answer.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in answer.err


def test_a_topic_that_is_not_there(invoke: Invoke, configure: Configure) -> None:
    configure(SOURCE_TOPIC="never-made")
    answer = invoke("check", THERE, "--connect", "--json")
    assert answer.code == 3
    assert [one["reachable"] for one in answer.json["clusters"]] == [True, True]
    assert "never-made" in answer.json["routes"][0]["error"]


# --- the six commands on each system --------------------------------------------------------------------------------------


class Terminal:
    """The commands on one cluster and topic."""

    def __init__(self, invoke: Invoke, url: str, topic: str) -> None:
        self._invoke, self._url, self.topic = invoke, url, topic

    def __call__(self, *arguments: object, stdin: bytes = b"", code: int = 0) -> Answer:
        answer = self._invoke(*arguments, "--at", self._url, stdin=stdin)
        assert answer.code == code, answer.err
        return answer

    def offsets(self) -> Any:
        return self("offsets", self.topic, "-G", "billing", "--json").json

    def consumed(self, *options: object) -> list[Any]:
        return messages(self("consume", "-t", self.topic, "-e", "--json", *options).out)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what shows a little later: a TubeMQ Broker lists an offset when it writes it down, every 5 s."""
    limit = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < limit, "it never showed"
        time.sleep(0.2)


def six_commands(at: Terminal) -> None:
    """Produce, peek, consume as a group, see it, and move it back: on one partition, so that all is in order."""
    topic = at.topic
    form = ["-K", ":", "-T", "paid", "-H", "lang=de", "--event-time", "@1700000000123"]
    stored = at("produce", "-t", topic, *form, "--json", stdin=b"k:0\nk:1\nk:2\nk:3\nk:4\n").json
    assert stored["stored"] == 5
    assert topic in at("topics", "--json").json
    (described,) = at("topics", topic, "--json").json
    assert len(described["partitions"]) == 1
    assert described["settings"]

    seen = messages(at("peek", topic, "--last", 2, "--json").out)
    assert [(one["payload"], one["key"], one["msg_type"], one["event_time"]) for one in seen] == [
        ("3", "k", "paid", 1_700_000_000_123),
        ("4", "k", "paid", 1_700_000_000_123),
    ]
    assert [one["payload"] for one in messages(at("peek", topic, "--first", "-c", 2, "--json").out)] == ["0", "1"]
    third = messages(at("peek", topic, "--first", "-c", 3, "--json").out)[2]["position"]
    assert messages(at("peek", topic, "-o", third, "-c", 1, "--json").out)[0]["payload"] == "2"
    assert "property lang" in at("peek", topic).out
    assert at("groups", topic, "--json").json == [], "a look left a group behind"

    assert [one["payload"] for one in at.consumed("-G", "billing")] == ["0", "1", "2", "3", "4"]
    until(lambda: [(one["at_end"], one["lag"]) for one in at.offsets()["partitions"]] == [(True, 0)])
    (row,) = at("groups", topic, "--json").json
    assert (row["group"], row["at_end"]) == ("billing", True)

    moved = at("offsets", topic, "-G", "billing", "--reset", "earliest", "--yes", "--json").json
    assert moved["moved"]
    assert [one["payload"] for one in at.consumed("-G", "billing")] == ["0", "1", "2", "3", "4"]
    at("offsets", topic, "-G", "billing", "--reset", "latest", "--yes")
    assert at.consumed("-G", "billing") == []
    missing = at("offsets", topic, "-G", "biling", "--reset", "latest", "--yes", code=2)
    assert "It has billing" in missing.err
    assert [one["payload"] for one in at.consumed("-p", 0, "-o", third, "-c", 1)] == ["2"]
    assert [one["payload"] for one in at.consumed("-G", "billing", "-o", "beginning")] == ["0", "1", "2", "3", "4"]
    assert [one["payload"] for one in at.consumed("-G", "billing", "-o", third)] == ["2", "3", "4"]


def times(at: Terminal) -> None:
    """Places by time, where the system knows any."""
    assert len(messages(at("peek", at.topic, "-o", "now-1h", "--json").out)) == 5
    assert at("peek", at.topic, "-o", "now", "--json").out == ""
    moved = at("offsets", at.topic, "-G", "billing", "--reset", "now-1h", "--dry-run", "--json").json
    assert not moved["moved"]
    (part,) = at("offsets", at.topic, "--json").json["partitions"]
    assert moved["partitions"][0]["to"] == part["first"]


def held_back(at: Terminal) -> None:
    """A message with a time is not there before it."""
    at("produce", "-t", at.topic, "--deliver-at", "now+3s", stdin=b"later")
    (one,) = messages(at("consume", "-t", at.topic, "-G", "waiting", "-c", 1, "--json").out)
    assert one["payload"] == "later"


def test_six_commands_on_tubemq(invoke: Invoke, tubemq: TubeMQ) -> None:
    url = f"tubemq://{tubemq.masters}"
    at = Terminal(invoke, f"{url}?admin={tubemq.admin_url.removesuffix('/webapi.htm')}", tubemq.take_topic(1))
    at("produce", "-t", at.topic, "--deliver-at", "now+3s", stdin=b"later", code=2)
    plain = Terminal(invoke, url, at.topic)
    for arguments in (["peek", at.topic], ["offsets", at.topic, "-G", "g", "--reset", "latest", "--yes"]):
        assert "give its admin_url (--at URL?admin=http://HOST:PORT)" in plain(*arguments, code=3).err
    assert "does not say what it stored when" in at("peek", at.topic, "-o", "now-1m", code=3).err
    six_commands(at)


def test_six_commands_on_pulsar(invoke: Invoke, pulsar: Pulsar) -> None:
    at = Terminal(invoke, f"{pulsar.service_url}?admin={pulsar.admin_url}", f"cli-{uuid4().hex[:8]}")
    at("topics", at.topic, "--create", 1)
    six_commands(at)
    times(at)
    held_back(Terminal(invoke, f"{pulsar.service_url}?admin={pulsar.admin_url}", pulsar.take_topic()))


def test_six_commands_on_rocketmq(invoke: Invoke, rocketmq: RocketMQ) -> None:
    url = f"rocketmq://{rocketmq.name_server}"
    at = Terminal(invoke, url, f"cli_{uuid4().hex[:8]}")
    at("topics", at.topic, "--create", 1)
    six_commands(at)
    times(at)
    assert at.consumed("-T", "paid", "-c", 1)[0]["msg_type"] == "paid"
    held_back(Terminal(invoke, url, rocketmq.take_topic(1)))
