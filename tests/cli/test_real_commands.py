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
from tests.kit.tubemq_settings import TOKEN
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster

CONFIG = Path(__file__).parents[2] / "mqbridge" / "shipped"
TO_PULSAR, TO_TUBEMQ = CONFIG / "tubemq-to-pulsar.yaml", CONFIG / "pulsar-to-tubemq.yaml"
COUNT = 500

Configure = Callable[..., None]


@pytest.fixture
def configure(tubemq: TubeMQ, pulsar: Pulsar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Return a function that sets the environment variables which the example configurations read."""

    def configure(**names: str) -> None:
        addresses = {"TUBEMQ_MASTERS": tubemq.masters, "PULSAR_URL": pulsar.service_url, "PULSAR_ADMIN_URL": pulsar.admin_url}
        own = {"STATE": str(tmp_path / "state.db"), "LISTEN": "127.0.0.1:0"}
        for name, value in {**addresses, **own, **names}.items():
            monkeypatch.setenv(name, value)

    return configure


def messages(out: str) -> list[Any]:
    return [orjson.loads(line) for line in out.splitlines()]


def test_messages_return_unchanged_from_tubemq_to_pulsar_and_back(
    invoke: Invoke, tubemq: TubeMQ, pulsar: Pulsar, configure: Configure
) -> None:
    source, copy, back = tubemq.take_topic(3), f"persistent://public/default/cli-{tubemq.take_topic(1)}", tubemq.take_topic(3)
    configure(SOURCE_TOPIC=source, TARGET_TOPIC=copy, GROUP="cli-there")
    stdin = b"".join(b"key-%d:payload %d\n" % (number % 7, number) for number in range(COUNT))
    sent = invoke(
        "produce", "-t", source, "-K", ":", "-T", "paid", "-H", "lang=de", "-F", TO_PULSAR, "-b", "tube", "--json", stdin=stdin
    )
    assert (sent.code, sent.json["stored"], sent.json["refused"]) == (0, COUNT, 0)

    looked = invoke("check", TO_PULSAR, "--connect", "--json")
    assert (looked.code, looked.json["routes"][0]["topics"]) == (0, [{"topic": source, "partitions": 3, "targets": [copy]}])
    ran = invoke("run", TO_PULSAR, "--until-idle", 3, "--json")
    assert (ran.code, ran.json["routes"][0]["acknowledged"]) == (0, COUNT)

    got = messages(invoke("consume", "-t", copy, "-F", TO_PULSAR, "-b", "pulsar", "-e", "--json").out)
    assert sorted(one["payload"] for one in got) == sorted(f"payload {number}" for number in range(COUNT))
    assert {(one["key"], one["msg_type"]) for one in got} == {(f"key-{number}", "paid") for number in range(7)}
    assert all(["lang", "de"] in one["properties"] for one in got)

    configure(SOURCE_TOPIC=copy, TARGET_TOPIC=back, GROUP="cli-back")
    returned = invoke("run", TO_TUBEMQ, "--until-idle", 3, "--json")
    assert (returned.code, returned.json["routes"][0]["acknowledged"]) == (0, COUNT)
    rows = invoke("groups", copy, "-G", "cli-back", "-F", TO_TUBEMQ, "-b", "pulsar", "--json").json
    assert [row["at_end"] for row in rows] == [True] * 3
    home = messages(invoke("consume", "-t", back, "-F", TO_TUBEMQ, "-b", "tube", "-e", "--json").out)
    assert sorted((one["payload"], one["key"]) for one in home) == sorted((one["payload"], one["key"]) for one in got)


def test_an_unreachable_cluster_has_exit_code_3(invoke: Invoke, configure: Configure) -> None:
    configure(TUBEMQ_MASTERS="127.0.0.1:1", PULSAR_URL="pulsar://127.0.0.1:1")
    answer = invoke("run", TO_PULSAR, "--until-idle", 1)
    assert answer.code == 3
    assert answer.err.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in answer.err


def test_a_missing_topic_is_reported(invoke: Invoke, configure: Configure) -> None:
    configure(SOURCE_TOPIC="never-made")
    answer = invoke("check", TO_PULSAR, "--connect", "--json")
    assert answer.code == 3
    assert [one["reachable"] for one in answer.json["clusters"]] == [True, True]
    assert "never-made" in answer.json["routes"][0]["error"]


# --- the six commands on each system --------------------------------------------------------------------------------------


class Terminal:
    """Runs commands on one cluster, given by its URL, and one topic."""

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
    """Wait until the condition is true. A TubeMQ Broker, for example, reports an offset only after writing it, every 5 s."""
    limit = time.monotonic() + SERVER_PATIENCE_S
    while not condition():
        assert time.monotonic() < limit, "the condition never became true"
        time.sleep(0.2)


def run_six_commands(at: Terminal) -> None:
    """Run topics, produce, peek, consume, groups and offsets. The topic has one partition, so the order is known."""
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
    assert at("groups", topic, "--json").json == [], "peek left a group behind"

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


def check_positions_by_time(at: Terminal) -> None:
    """Peek and move a group by time, on a system that supports it."""
    assert len(messages(at("peek", at.topic, "-o", "now-1h", "--json").out)) == 5
    assert at("peek", at.topic, "-o", "now", "--json").out == ""
    moved = at("offsets", at.topic, "-G", "billing", "--reset", "now-1h", "--dry-run", "--json").json
    assert not moved["moved"]
    (part,) = at("offsets", at.topic, "--json").json["partitions"]
    assert moved["partitions"][0]["to"] == part["first"]


def check_delayed_delivery(at: Terminal) -> None:
    """A message with a delivery time does not arrive before it."""
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
    assert "cannot look up positions by time" in at("peek", at.topic, "-o", "now-1m", code=3).err
    run_six_commands(at)


def test_six_commands_on_pulsar(invoke: Invoke, pulsar: Pulsar) -> None:
    at = Terminal(invoke, f"{pulsar.service_url}?admin={pulsar.admin_url}", f"cli-{uuid4().hex[:8]}")
    at("topics", at.topic, "--create", 1)
    run_six_commands(at)
    check_positions_by_time(at)
    check_delayed_delivery(Terminal(invoke, f"{pulsar.service_url}?admin={pulsar.admin_url}", pulsar.take_topic()))


def test_six_commands_on_rocketmq(invoke: Invoke, rocketmq: RocketMQ) -> None:
    url = f"rocketmq://{rocketmq.name_server}"
    at = Terminal(invoke, url, f"cli_{uuid4().hex[:8]}")
    at("topics", at.topic, "--create", 1)
    run_six_commands(at)
    check_positions_by_time(at)
    assert at.consumed("-T", "paid", "-c", 1)[0]["msg_type"] == "paid"
    check_delayed_delivery(Terminal(invoke, url, rocketmq.take_topic(1)))


# --- configurations that are rejected before anything is created ----------------------------------------------------------


SYSTEMS = ("tubemq", "pulsar", "rocketmq")


@pytest.mark.parametrize("client", SYSTEMS)
def test_the_port_of_another_system_is_recognized(
    invoke: Invoke, client: str, tubemq: TubeMQ, pulsar: Pulsar, rocketmq: RocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbridge.tubemq.client.connection.master.REGISTER_PAUSE_S", 0.0)
    ports = {"tubemq": tubemq.masters, "pulsar": pulsar.service_url.removeprefix("pulsar://"), "rocketmq": rocketmq.name_server}
    pages = {"tubemq": tubemq.admin_url, "pulsar": pulsar.admin_url}
    others = [port for system, port in ports.items() if system != client]
    others += [url.removeprefix("http://").removesuffix("/webapi.htm") for url in pages.values()]
    quick = {"tubemq": "?request_timeout=2s", "pulsar": "?connect_timeout=2s", "rocketmq": "?request_timeout=2s"}[client]
    for port in others:
        answer = invoke("topics", "--at", f"{client}://{port}{quick}")
        assert answer.code == 3
        assert f"{port} can be reached, but does not answer as a " in answer.err
        assert "Is it the port of another system" in answer.err


def test_tubemq_topics_are_created_by_url(invoke: Invoke, tubemq: TubeMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    url, name = f"tubemq://{tubemq.masters}", f"by_url_{uuid4().hex[:8]}"
    admin = f"{url}?admin={tubemq.admin_url.removesuffix('/webapi.htm')}"
    refused = invoke("topics", name, "--create", 3, "--at", admin)
    assert (refused.code, "set admin_token (--at: &admin_token.file=PATH)" in refused.err) == (3, True)
    monkeypatch.setenv("WRONG", "wrong")
    wrong = invoke("topics", name, "--create", 3, "--at", f"{admin}&admin_token.env=WRONG")
    assert (wrong.code, "unauthorized" in wrong.err) == (3, True)
    assert name not in invoke("topics", "--at", admin).out
    monkeypatch.setenv("RIGHT", TOKEN)
    made = invoke("topics", name, "--create", 3, "--at", f"{admin}&admin_token.env=RIGHT")
    assert made.code == 0, made.err
    assert len(invoke("topics", name, "--json", "--at", admin).json[0]["partitions"]) == 3


class RejectedConfigurations:
    """Writes configurations between an embedded log and a real cluster, which that cluster rejects."""

    def __init__(self, tubemq: TubeMQ, pulsar: Pulsar, rocketmq: RocketMQ, folder: Path) -> None:
        self.name = f"refused_{uuid4().hex[:8]}"
        self._tubemq, self._pulsar, self._rocketmq, self._folder = tubemq, pulsar, rocketmq, folder

    def write(
        self, cluster: dict[str, object], *, source: str | None = None, target: str | None = None, group: str = "g"
    ) -> Path:
        """Write a configuration with a route from the log to the cluster, or with `source` from this topic to the log.

        Another route, between topics of the log, stands before it.
        """
        here, there = {"cluster": "log", "topic": "orders"}, {"cluster": "real", "topic": target or self.name}
        if source is not None:
            here, there = {"cluster": "real", "topic": source}, {"cluster": "log", "topic": self.name}
        first = {
            "name": "first",
            "from": {"cluster": "log", "topic": "orders", "group": "f"},
            "to": {"cluster": "log", "topic": f"{self.name}-first"},
        }
        route = {"name": "r", "from": here | {"group": group}, "to": there}
        clusters = {"log": {"system": "log", "path": str(self._folder / "log.db")}, "real": cluster}
        file = self._folder / "refused.json"
        file.write_bytes(orjson.dumps({"clusters": clusters, "routes": [first, route], "http": {"enabled": False}}))
        return file

    def tube(self, **more: object) -> dict[str, object]:
        return {"system": "tubemq", "masters": self._tubemq.masters, "heartbeat": "2s", **more}

    def pulse(self, **more: object) -> dict[str, object]:
        return {"system": "pulsar", "service_url": self._pulsar.service_url, **more}

    def rocket(self) -> dict[str, object]:
        return {"system": "rocketmq", "name_servers": self._rocketmq.name_server}


def _tubemq_without_admin(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.tube())


def _tubemq_with_a_wrong_admin_url(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.tube(admin_url="http://127.0.0.1:1", admin_token=TOKEN))


def _tubemq_with_another_page_as_admin_url(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.tube(admin_url=writer._pulsar.admin_url, admin_token=TOKEN))


def _tubemq_with_a_wrong_token(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.tube(admin_url=writer._tubemq.admin_url, admin_token="wrong"))


def _pulsar_without_admin(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.pulse())


def _pulsar_with_a_wrong_admin_url(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.pulse(admin_url="http://127.0.0.1:1"))


def _pulsar_with_another_page_as_admin_url(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.pulse(admin_url=writer._tubemq.admin_url.removesuffix("/webapi.htm")))


def _pulsar_without_the_namespace(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.pulse(admin_url=writer._pulsar.admin_url), target=f"persistent://public/{writer.name}/t")


def _pulsar_with_a_topic_that_cannot_grow(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.pulse(admin_url=writer._pulsar.admin_url), target=writer._pulsar.take_topic())


def _pulsar_with_a_group_that_cannot_be_created(writer: RejectedConfigurations) -> Path:
    namespace = writer._pulsar.create_namespace("refusing", writer.name)
    writer._pulsar.admin("POST", f"namespaces/{namespace}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    topic = writer._pulsar.create_topic("t", 1, namespace=namespace)
    return writer.write(writer.pulse(admin_url=writer._pulsar.admin_url), source=topic)


def _rocketmq_with_an_invalid_group_name(writer: RejectedConfigurations) -> Path:
    return writer.write(writer.rocket(), source=writer._rocketmq.take_topic(1), group="with.dots")


REJECTED = {
    _tubemq_without_admin: "set admin_url",
    _tubemq_with_a_wrong_admin_url: "127.0.0.1:1",
    _tubemq_with_another_page_as_admin_url: "not a TubeMQ response",
    _tubemq_with_a_wrong_token: "unauthorized",
    _pulsar_without_admin: "set admin_url of cluster 'real'",
    _pulsar_with_a_wrong_admin_url: "http://127.0.0.1:1 cannot be reached",
    _pulsar_with_another_page_as_admin_url: "like Pulsar's REST interface",
    _pulsar_without_the_namespace: "Namespace",
    _pulsar_with_a_topic_that_cannot_grow: "is unpartitioned and cannot grow to 3",
    _pulsar_with_a_group_that_cannot_be_created: "has no subscription 'g'",
    _rocketmq_with_an_invalid_group_name: "'with.dots' cannot be a group",
}


@pytest.mark.parametrize("cause", REJECTED, ids=lambda cause: cause.__name__.removeprefix("_"))
def test_check_rejects_the_same_as_run_and_creates_nothing(
    invoke: Invoke,
    tubemq: TubeMQ,
    pulsar: Pulsar,
    rocketmq: RocketMQ,
    tmp_path: Path,
    cause: Callable[[RejectedConfigurations], Path],
) -> None:
    """`check` and `run` report the same error, and the valid first route has not created its topic either."""
    assert invoke("topics", "orders", "--create", 3, "--at", f"log://{tmp_path}/log.db").code == 0
    file = cause(RejectedConfigurations(tubemq, pulsar, rocketmq, tmp_path))
    checked = invoke("check", file, "--connect", "--json")
    problem = checked.json["routes"][1]["error"]
    assert (checked.code != 0, REJECTED[cause] in problem) == (True, True), problem
    ran = invoke("run", file, "--fail-fast")
    assert ran.code in (2, 3)
    assert problem in ran.err
    assert invoke("topics", "--json", "--at", f"log://{tmp_path}/log.db").json == ["orders"]
