"""The example configurations and the commands against the real servers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.cli.conftest import Invoke
from tests.kit.pulsar import Pulsar
from tests.kit.tubemq import TubeMQ

pytestmark = pytest.mark.cluster

CONFIG = Path(__file__).parents[2] / "config"
THERE, BACK = CONFIG / "tubemq-to-pulsar.yaml", CONFIG / "pulsar-to-tubemq.yaml"
COUNT = 500

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
