"""A broker of a topic is down for a while: the order of the others stays, and targets are not written in part."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.support import opened, read
from tests.kit import rocketmq_remoting as remoting
from tests.kit.gateway import GatewayProcess
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def server() -> Iterator[RocketMQ]:
    with RocketMQ(brokers=2, heap_mb=384) as kit:
        yield kit


def settings_of(server: RocketMQ) -> dict[str, Any]:
    return {"name_servers": [server.name_server], "refresh": "1s"}


def wait_until(condition: Any, *gateways: GatewayProcess) -> None:
    deadline = time.monotonic() + SERVER_PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, [gateway.log for gateway in gateways]
        time.sleep(0.1)


def lanes(gateway: GatewayProcess) -> set[str]:
    """Return the source partitions that the gateway reads, without those of messages that were sent back."""
    return {name.rpartition("/")[2] for name in gateway.route().get("lanes", {}) if "%RETRY%" not in name}


async def test_two_instances_keep_the_order_of_a_broker_while_another_crashes_and_returns(
    server: RocketMQ, tmp_path: Path
) -> None:
    topic, path = server.take_topic(2), tmp_path / "target.db"
    config = {
        "clusters": {"here": {"system": "rocketmq", **settings_of(server)}, "there": {"system": "log", "path": str(path)}},
        "routes": [{"name": "r", "from": {"cluster": "here", "topic": topic, "group": f"g-{topic}"}, "to": {"cluster": "there"}}],
    }
    numbers = iter(range(100))

    def put() -> None:
        for queue in (0, 1):
            server.send(topic, b"b%d/%d" % (queue, next(numbers)), queue=queue, broker=1)

    def share(*expected: int) -> bool:
        return sorted(len(lanes(gateway)) for gateway in (one, other)) == sorted(expected)

    with GatewayProcess(config, tmp_path / "one") as one, GatewayProcess(config, tmp_path / "other") as other:
        await asyncio.to_thread(wait_until, lambda: share(2, 2), one, other)
        await asyncio.to_thread(put)
        server.kill_broker(0)
        await asyncio.to_thread(wait_until, lambda: share(1, 1), one, other)
        await asyncio.to_thread(put)
        await asyncio.to_thread(server.restart_broker, 0)
        await asyncio.to_thread(wait_until, lambda: share(2, 2), one, other)
        await asyncio.to_thread(put)
        stored = lambda: sum(gateway.route().get("stored", 0) for gateway in (one, other))  # noqa: E731
        await asyncio.to_thread(wait_until, lambda: stored() >= 6, one, other)
        assert await asyncio.to_thread(one.terminate) == 0, one.log
        assert await asyncio.to_thread(other.terminate) == 0, other.log
    targets: dict[bytes, set[int]] = {}
    async for partition, messages in read("log", {"path": str(path)}, topic, "judge"):
        for message in messages:
            targets.setdefault((message.payload or b"").partition(b"/")[0], set()).add(partition)
    assert {queue: len(partitions) for queue, partitions in targets.items()} == {b"b0": 1, b"b1": 1}


@pytest.mark.parametrize("known_by", ["state", "brokers"])
async def test_a_target_waits_for_a_broker_that_is_known(server: RocketMQ, tmp_path: Path, known_by: str) -> None:
    topic, path = server.take_topic(2), tmp_path / "source.db"
    async with opened("log", {"path": str(path)}) as source:
        await source.create(topic, 6)
    target = {"system": "rocketmq", **settings_of(server)}
    config: dict[str, Any] = {
        "clusters": {"here": {"system": "log", "path": str(path)}, "there": target},
        "routes": [{"name": "r", "from": {"cluster": "here", "topic": topic, "group": "g"}, "to": {"cluster": "there"}}],
    }
    if known_by == "state":
        config["state"] = str(tmp_path / "state.db")
        config["routes"][0]["to"]["create"] = False
        with GatewayProcess(config, tmp_path, "--until-idle", "0.5") as gateway:
            assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    else:
        target["brokers"] = server.broker_names
    server.kill_broker(0)
    await asyncio.to_thread(wait_until, lambda: set(server.queues(topic)) == {server.broker_names[1]})
    with GatewayProcess(config, tmp_path) as gateway:
        await asyncio.to_thread(wait_until, lambda: "no master of broker" in str(gateway.route().get("retrying")), gateway)
        assert server.queues(topic) == {server.broker_names[1]: 2}, "it does not grow there"
        await asyncio.to_thread(server.restart_broker, 0)
        await asyncio.to_thread(wait_until, lambda: gateway.route().get("lanes"), gateway)
        count = 2 if known_by == "state" else 3
        assert server.queues(topic) == dict.fromkeys(server.broker_names, count)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


async def test_a_start_at_the_end_skips_the_history_of_a_broker_that_was_down(server: RocketMQ, tmp_path: Path) -> None:
    topic, path = server.take_topic(1), tmp_path / "target.db"
    for broker in (0, 1):
        server.send(topic, b"before", broker=broker)
    server.settle()
    server.kill_broker(0)
    await asyncio.to_thread(wait_until, lambda: set(server.queues(topic)) == {server.broker_names[1]})
    source = {"cluster": "here", "topic": topic, "group": f"g-{topic}", "start": "latest"}
    config = {
        "clusters": {"here": {"system": "rocketmq", **settings_of(server)}, "there": {"system": "log", "path": str(path)}},
        "routes": [{"name": "r", "from": source, "to": {"cluster": "there"}}],
    }
    with GatewayProcess(config, tmp_path) as gateway:
        await asyncio.to_thread(wait_until, lambda: len(lanes(gateway)) == 1, gateway)
        await asyncio.to_thread(server.restart_broker, 0)
        for broker in (0, 1):
            server.send(topic, b"after", broker=broker)
        await asyncio.to_thread(wait_until, lambda: len(lanes(gateway)) == 2, gateway)
        await asyncio.to_thread(gateway.wait_stored, 2)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    payloads = [message.payload async for _, messages in read("log", {"path": str(path)}, topic, "judge") for message in messages]
    assert payloads == [b"after", b"after"]


async def test_a_source_topic_is_waited_for_while_its_only_broker_is_down(server: RocketMQ, tmp_path: Path) -> None:
    topic, path = f"waited-{time.time_ns()}", tmp_path / "target.db"
    remoting.create_topic(server.broker_addresses[0], topic, 1, "")
    await asyncio.to_thread(wait_until, lambda: set(server.queues(topic)) == {server.broker_names[0]})
    server.send(topic, b"x")
    server.kill_broker(0)
    await asyncio.to_thread(wait_until, lambda: not server.queues(topic))
    config = {
        "clusters": {"here": {"system": "rocketmq", **settings_of(server)}, "there": {"system": "log", "path": str(path)}},
        "routes": [{"name": "r", "from": {"cluster": "here", "topic": topic, "group": "g"}, "to": {"cluster": "there"}}],
    }
    with GatewayProcess(config, tmp_path) as gateway:
        await asyncio.to_thread(wait_until, lambda: "may be down" in str(gateway.route().get("retrying")), gateway)
        await asyncio.to_thread(server.restart_broker, 0)
        await asyncio.to_thread(gateway.wait_stored, 1)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


async def test_a_broker_that_is_removed_for_good_is_forgotten(server: RocketMQ, tmp_path: Path) -> None:
    topic, path, state = server.take_topic(2), tmp_path / "source.db", tmp_path / "state.db"
    async with opened("log", {"path": str(path)}) as source:
        await source.create(topic, 2)
        outbound = await source.outbound(OutboundSpec(topic))
        assert not (await outbound.send(0, Share(Batch.of([Message(b"x")])))).failures
        await outbound.close()
    config: dict[str, Any] = {
        "clusters": {
            "here": {"system": "log", "path": str(path)},
            "there": {"system": "rocketmq", **settings_of(server)},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "here", "topic": topic, "group": "g", "start": "latest"},
                "to": {"cluster": "there", "create": False},
            }
        ],
        "state": str(state),
    }
    with GatewayProcess(config, tmp_path, "--until-idle", "0.5") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    config["routes"][0]["from"] |= {"group": "another", "start": "earliest"}
    gone, left = server.broker_names
    server.kill_broker(0)
    await asyncio.to_thread(wait_until, lambda: set(server.queues(topic)) == {left})
    (tmp_path / "forget.yaml").write_text(yaml.safe_dump(config))
    forget = (tmp_path / "forget.yaml", "--forget-broker", f"there/{gone}")
    with GatewayProcess(config, tmp_path) as gateway:
        await asyncio.to_thread(
            wait_until, lambda: f"--forget-broker there/{gone}" in str(gateway.route().get("retrying")), gateway
        )
        code, output = await asyncio.to_thread(state_command, *forget, "--yes")
        assert (code, "in use by another gateway" in output) == (2, True), output
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    code, output = await asyncio.to_thread(state_command, *forget)
    assert (code, f"{gone} of cluster there would be forgotten for 1 topic" in output) == (2, True), output
    code, output = await asyncio.to_thread(state_command, *forget, "--yes")
    assert (code, f"{gone} of cluster there is forgotten for 1 topic" in output) == (0, True), output
    with GatewayProcess(config, tmp_path, "--until-idle", "0.5") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    await asyncio.to_thread(server.restart_broker, 0)
    assert server.message_count(topic) == 1


def state_command(*arguments: object) -> tuple[int, str]:
    """Run `mqbridge state` and return the exit code and the output."""
    command = [sys.executable, "-m", "mqbridge", "state", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SERVER_PATIENCE_S, check=False)
    return done.returncode, done.stdout + done.stderr
