"""A route writes nothing to a real topic whose broker deletes unread messages; `check` reports it, also under its options."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from mqbridge.config.load import from_dict
from mqbridge.gateway.run import Gateway
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S

pytestmark = pytest.mark.cluster

FROM_EARLIEST = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}


@pytest.fixture
def namespace(pulsar: Pulsar) -> str:
    return pulsar.create_namespace("acme", f"unprotected-{uuid4().hex[:6]}")


def configuration(pulsar: Pulsar, folder: Path, target: dict[str, Any], **delivery: Any) -> dict[str, Any]:
    """Return the configuration of a route from an embedded log to a target in Pulsar."""
    return {
        "clusters": {
            "log": {"system": "log", "path": str(folder / "source.db")},
            "pulsar": {"system": "pulsar", "service_url": pulsar.service_url, "admin_url": pulsar.admin_url},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "log", "topic": "t", "group": "g"},
                "to": {"cluster": "pulsar", **target},
                "delivery": delivery,
            }
        ],
        "http": {"enabled": False},
    }


def mqbridge(*arguments: str, text: str = "") -> tuple[int, str]:
    """Run the command; return its exit code and output."""
    done = subprocess.run(
        [sys.executable, "-m", "mqbridge", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=SERVER_PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def fill(folder: Path, count: int) -> None:
    """Create the source topic with two partitions and these messages."""
    assert mqbridge("topics", "t", "--create", "2", "--at", f"log://{folder}/source.db")[0] == 0
    assert mqbridge("produce", "-t", "t", "--at", f"log://{folder}/source.db", text="message\n" * count)[0] == 0


def stats(pulsar: Pulsar, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = pulsar.admin("GET", f"{topic.replace('://', '/')}/partitioned-stats?perPartition=true")
    return found


async def until(condition: Any) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.05)


def subscribe(pulsar: Pulsar, topic: str) -> None:
    pulsar.admin("PUT", f"{topic.replace('://', '/')}/subscription/billing", FROM_EARLIEST)


async def test_the_route_waits_for_a_subscription_and_pauses_without_it(
    pulsar: Pulsar, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqbridge.routes.route.PROTECTION_CHECK_S", 0.2)
    monkeypatch.setattr("mqbridge.routes.route.UNPROTECTED_CHECK_S", 0.2)
    topic = f"persistent://{namespace}/t"
    await asyncio.to_thread(fill, tmp_path, 100)
    gateway = Gateway(from_dict(configuration(pulsar, tmp_path, {"topic": topic})))
    running = asyncio.ensure_future(gateway.run())
    try:
        await until(lambda: gateway.ready and len(gateway.routes[0].state.stopped) == 2)
        [route] = gateway.routes
        assert "has no subscription and no retention" in route.state.unprotected[f"pulsar/{topic}"]
        assert stats(pulsar, topic)["msgInCounter"] == 0
        assert sorted(stats(pulsar, topic)["partitions"]) == [f"{topic}-partition-{n}" for n in range(2)]
        await asyncio.to_thread(subscribe, pulsar, topic)
        await until(lambda: route.state.counters.stored == 100)
        assert (dict(route.state.unprotected), dict(route.state.stopped)) == ({}, {})
        # One partition without subscription is enough: its messages are lost.
        pulsar.admin("DELETE", f"{topic.replace('://', '/')}-partition-1/subscription/billing")
        await until(lambda: len(route.state.stopped) == 2)
        assert "(partition 1) has no subscription" in route.state.unprotected[f"pulsar/{topic}"]
        await asyncio.to_thread(fill, tmp_path, 50)
        retention = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        pulsar.admin("POST", f"namespaces/{namespace}/retention", retention)
        await until(lambda: route.state.counters.stored == 150)
        assert stats(pulsar, topic)["msgInCounter"] == 150
    finally:
        gateway.stop()
        await asyncio.wait_for(running, SERVER_PATIENCE_S)


@pytest.mark.parametrize(
    ("target", "strict_code", "code", "expected"),
    [
        ({}, 3, 3, "has no subscription and no retention"),
        ({"unread": "may_be_deleted"}, 0, 0, "no problems"),
        ({"create": {"subscriptions": ["billing"]}}, 0, 0, "no problems"),
    ],
)
def test_check_connect(
    pulsar: Pulsar, namespace: str, tmp_path: Path, target: dict[str, Any], strict_code: int, code: int, expected: str
) -> None:
    fill(tmp_path, 1)
    file = tmp_path / "gateway.yaml"
    for topic in ("missing", "existing"):
        full = f"persistent://{namespace}/{topic}"
        if topic == "existing":
            pulsar.create_topic(topic, 2, namespace=namespace)
        file.write_text(yaml.safe_dump(configuration(pulsar, tmp_path, {"topic": full, **target})))
        found, output = mqbridge("check", "--connect", str(file))
        assert (found, expected in output.replace("\n", " ")) == (code, True), output
        assert mqbridge("check", "--connect", "--strict", str(file))[0] == strict_code
        if topic == "existing" and "create" not in target:
            found, output = mqbridge("run", str(file), "--until-idle", "0.2")
            assert (found, expected in output) == (code, code == 3), output


def test_warnings_are_errors_with_strict(pulsar: Pulsar, namespace: str, tmp_path: Path) -> None:
    fill(tmp_path, 1)
    pulsar.admin("POST", f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1})
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(configuration(pulsar, tmp_path, {"topic": f"persistent://{namespace}/t"})))
    for options, code in (((), 0), (("--strict",), 3)):
        found, output = mqbridge("check", "--connect", *options, str(file))
        assert (found, "WARNING: route r" in output) == (code, True), output
        assert ("no problems" in output) is (code == 0)


@pytest.mark.parametrize("topic", ["persistent://{}/dead", "non-persistent://{}/dead"])
def test_dead_letters_are_kept_too(pulsar: Pulsar, namespace: str, tmp_path: Path, topic: str) -> None:
    fill(tmp_path, 1)
    file = tmp_path / "gateway.yaml"
    letters = {"cluster": "pulsar", "topic": topic.format(namespace)}
    kept = {"topic": f"persistent://{namespace}/t", "create": {"subscriptions": ["billing"]}}
    for unread, code in (("kept", 3), ("may_be_deleted", 0)):
        file.write_text(yaml.safe_dump(configuration(pulsar, tmp_path, kept, dead_letter=letters | {"unread": unread})))
        found, output = mqbridge("check", "--connect", str(file))
        assert found == code, output
        assert (f"target pulsar/{letters['topic']} would lose messages" in output.replace("\n", " ")) is (code == 3), output


@pytest.mark.thorough
def test_the_default_retention_of_the_brokers_counts_for_a_missing_topic(tmp_path: Path) -> None:
    with Pulsar({"defaultRetentionTimeInMinutes": -1, "defaultRetentionSizeInMB": -1}) as server:
        fill(tmp_path, 1)
        file = tmp_path / "gateway.yaml"
        file.write_text(yaml.safe_dump(configuration(server, tmp_path, {"topic": "persistent://public/default/t"})))
        found, output = mqbridge("check", "--connect", "--strict", str(file))
        assert found == 0, output


def test_without_rest_interface_there_is_a_warning(pulsar: Pulsar, namespace: str, tmp_path: Path) -> None:
    fill(tmp_path, 1)
    topic = pulsar.create_topic("t", 2, namespace=namespace)
    made = configuration(pulsar, tmp_path, {"topic": topic})
    del made["clusters"]["pulsar"]["admin_url"]
    file = tmp_path / "gateway.yaml"
    file.write_text(yaml.safe_dump(made))
    for options, code in (((), 0), (("--strict",), 3)):
        found, output = mqbridge("check", "--connect", *options, str(file))
        assert (found, "cannot check the retention" in output) == (code, True), output
