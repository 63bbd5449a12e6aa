"""Run the tutorial and the how-to guides line by line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.guide import run
from tests.docs.pages import ROOT
from tests.kit.process import free_ports
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ


def total(table: str, column: str) -> int:
    """Return the sum of the last column of a printed table; 0 if that is not `column`."""
    rows = [line.split() for line in table.splitlines() if line.strip()]
    header = next(row for row in rows if column in row)
    return sum(
        int(row[-1].replace(",", "")) for row in rows[rows.index(header) + 1 :] if row[0].isdigit() and column == header[-1]
    )


def column_sum(table: str, column: int) -> int:
    """Return the sum of a column in the rows of the partitions of the topic `orders`."""
    rows = [line.split() for line in table.splitlines()]
    return sum(int(row[column].replace(",", "")) for row in rows if row[:1] == ["orders"] and row[1].isdigit())


def mqbridge(*arguments: str, text: str = "") -> str:
    """Run a command with `text` as standard input; return its output."""
    command = [sys.executable, "-m", "mqbridge", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def pulsar_names(pulsar: Pulsar) -> dict[str, str]:
    return {
        "10.0.0.9:6650": pulsar.service_url.removeprefix("pulsar://"),
        "http://10.0.0.9:8080": pulsar.admin_url,
    }


def rocketmq_names(rocketmq: RocketMQ) -> dict[str, str]:
    """Return replacements for the addresses of a page, and for its topic and groups: those of no other test."""
    topic = rocketmq.take_topic(4)
    return {
        "10.0.0.7:9876": rocketmq.name_server,
        "orders": topic,
        "billing": f"billing_{topic}",
        "reporting": f"reporting_{topic}",
    }


def test_tutorial(tmp_path: Path) -> None:
    produced, bridged, dead_letter, after_kill = run("docs/tutorial.md", tmp_path)
    assert produced.count("property shop") == 3
    assert total(bridged, "messages") == 1000
    assert "mqbridge.dead.reason" in dead_letter
    assert total(after_kill, "lag") == 0


def test_handling_dead_letters(tmp_path: Path) -> None:
    *_, looked_at, again = run("docs/how-to/dead-letters.md", tmp_path)
    assert "customer-7 5000 bytes: mqbridge.dead.reason=" in looked_at
    assert again.splitlines()[-1] == "customer-7 5000 bytes"


def test_upgrading(tmp_path: Path) -> None:
    changed, version = run("docs/how-to/upgrade.md", tmp_path)
    assert '"changed"' in changed or "orders" in changed
    assert re.search(r"^mqbridge \d+\.\d+", version, re.MULTILINE)
    assert "orders-copy" in version, "the restarted gateway has the changed configuration"


def test_keeping_an_embedded_log_safe(tmp_path: Path) -> None:
    _, checked, restored, damaged = run("docs/how-to/embedded-log.md", tmp_path)
    assert column_sum(checked, 4) == 1000
    assert column_sum(restored, 4) == 1000
    assert column_sum(restored, 3) > 1 << 32, "the offsets of the 500 missing messages are not given again"
    assert "misses its newest 500 acknowledged messages" in (tmp_path / "err").read_text()
    assert damaged.count("exit code 4") == 3
    first, repaired, exported, intact = (column_sum(part, 4) for part in damaged.split("topic ")[1:])
    assert 0 < first == repaired == exported == intact < 1000


def test_keeping_a_rocketmq_sdk(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    names = {"127.0.0.1:9876": f"127.0.0.1:{port}"}
    _, checked, application, *_ = run("docs/how-to/keep-your-rocketmq-sdk.md", tmp_path, names)
    assert "can start" in checked
    lines = application.splitlines()
    assert [line for line in lines if line.startswith("customer-7 ")] == [f"customer-7 order {number}" for number in range(1, 11)]
    assert next(line.split() for line in lines if line.startswith("billing"))[2:4] == ["10", "10"], "the group has committed"
    assert '"system":"rocketmq"' in application
    assert '"received_messages":10,' in application
    assert lines[-2].strip() == "order 10", "the log has the messages"


def test_keeping_a_tubemq_sdk(tmp_path: Path) -> None:
    port, web = free_ports(2)
    names = {"127.0.0.1:8715": f"127.0.0.1:{port}", "127.0.0.1:8080": f"127.0.0.1:{web}"}
    _, checked, application, *_ = run("docs/how-to/keep-your-tubemq-sdk.md", tmp_path, names)
    assert "can start" in checked
    lines = application.splitlines()
    assert {f"order {number}" for number in range(1, 11)} <= set(lines)
    assert '"system":"tubemq"' in application
    assert '"received_messages":10,' in application
    assert [line.strip() for line in lines if line.strip()][-1].startswith("order "), "the log has the messages"


@pytest.mark.cluster
@pytest.mark.thorough
def test_bridging_tubemq_to_pulsar(tmp_path: Path, tubemq: TubeMQ, pulsar: Pulsar) -> None:
    topic = tubemq.take_topic(4)
    tubemq.add_topic(f"{topic}_dead")
    at = f"tubemq://{tubemq.masters}"
    mqbridge("produce", "-t", topic, "--at", at, text="".join(f"{number}\n" for number in range(100)))
    tubemq.wait_stored(topic)
    names = {"10.0.0.5:8715": tubemq.masters, "http://10.0.0.5:8080": tubemq.admin_url, "orders": topic, **pulsar_names(pulsar)}
    looked, _, _, verified = run("docs/how-to/tubemq-to-pulsar.md", tmp_path, names)
    assert "event_time" in looked
    assert '"origin":"tube|' in verified
    assert f"g_{topic}" not in verified
    read = mqbridge("consume", "-t", f"persistent://public/default/{topic}", "-e", "--at", pulsar.service_url)
    assert sorted(map(int, read.split())) == list(range(100))


@pytest.mark.cluster
def test_mirroring_a_topic(tmp_path: Path, rocketmq: RocketMQ, pulsar: Pulsar) -> None:
    [mirrored] = run("docs/how-to/mirror-a-topic.md", tmp_path, rocketmq_names(rocketmq) | pulsar_names(pulsar))
    assert mirrored.splitlines()[-3:] == [f"customer-7 paid {text}" for text in ("first", "second", "third")]


@pytest.mark.cluster
def test_keeping_a_pulsar_sdk(tmp_path: Path, rocketmq: RocketMQ) -> None:
    pytest.importorskip("pulsar", reason="the official Python SDK is not installed")
    (port,) = free_ports(1)
    names = rocketmq_names(rocketmq) | {"127.0.0.1:6650": f"127.0.0.1:{port}"}
    _, application = run("docs/how-to/keep-your-pulsar-sdk.md", tmp_path, names)
    lines = application.splitlines()
    received = [line for line in lines if line.endswith(" north")]  # beside the lines that the SDK logs
    assert sorted(received) == sorted(f"order {number} north" for number in range(10))
    assert names["billing"] in application, "its subscription is a group of RocketMQ"
    assert sorted(line for line in lines if line.startswith("customer-")) == sorted(
        f"customer-{number % 3} order {number}" for number in range(10)
    )


@pytest.mark.cluster
def test_moving_a_group(tmp_path: Path, rocketmq: RocketMQ) -> None:
    names = rocketmq_names(rocketmq)
    topic, group, at = names["orders"], names["billing"], f"rocketmq://{rocketmq.name_server}"
    mqbridge("produce", "-t", topic, "--at", at, text="".join(f"{number}\n" for number in range(20)))
    mqbridge("consume", "-t", topic, "-G", group, "-e", "--at", at)
    names["http://10.0.0.9:8080"] = "http://127.0.0.1:1"  # the page only mentions this address
    run("docs/how-to/move-a-group.md", tmp_path, names)
    assert total(mqbridge("offsets", topic, "-G", group, "--at", at), "lag") in (0, 20)
    again = mqbridge("consume", "-t", topic, "-G", group, "-e", "--at", at)
    assert sorted(map(int, again.split())) == list(range(20)), "the group was moved two hours back"
    assert mqbridge("consume", "-t", topic, "-G", names["reporting"], "-e", "--at", at) == ""


@pytest.mark.cluster
@pytest.mark.thorough
def test_running_two_instances(tmp_path: Path, rocketmq: RocketMQ, pulsar: Pulsar) -> None:
    names = rocketmq_names(rocketmq) | pulsar_names(pulsar)
    members, _ = run("docs/how-to/two-instances.md", tmp_path, names)
    assert names["orders"] in members
    read = mqbridge("consume", "-t", f"persistent://public/default/{names['orders']}", "-e", "--at", pulsar.service_url)
    assert set(map(int, read.split())) == set(range(1, 1001))
