"""The shipped deployments lose no message on a Pulsar with default settings, also when ledgers are closed and trimmed."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.e2e.support import HEARTBEAT, config, fill, judge, pulsar_settings, read
from tests.kit.gateway import CONFIG, REPOSITORY, GatewayProcess
from tests.kit.oracle import Oracle
from tests.kit.pulsar import Pulsar
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PARTITIONS, PER_PARTITION, SIZE = 2, 500, 200


def kubernetes() -> tuple[str, dict[str, str]]:
    """Return the configuration that the manifest runs, and its environment."""
    settings, deployment = yaml.safe_load_all((REPOSITORY / "deploy/kubernetes/mqbridge.yaml").read_text())
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return container["args"][-1], dict(settings["data"])


def compose() -> tuple[str, dict[str, str]]:
    """Return the configuration that the compose file runs, and its environment where no variable is set."""
    service = yaml.safe_load((REPOSITORY / "deploy/compose/compose.yaml").read_text())["services"]["mqbridge"]
    defaults = {name: re.sub(r"\$\{\w+:-?\??(.*?)\}", r"\1", value) for name, value in service["environment"].items()}
    return service["command"][-1], defaults


def image() -> tuple[str, dict[str, str]]:
    """Return the configuration that the image runs by default, and its environment."""
    [command] = re.findall(r"^CMD (.*)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    return yaml.safe_load(command)[-1], {}


def path_of(topic: str) -> str:
    return topic.replace("://", "/")


def first_ledger(pulsar: Pulsar, topic: str) -> int:
    """Return the id of the oldest ledger of an unpartitioned topic."""
    return int(pulsar.admin("GET", f"{path_of(topic)}/internalStats")["ledgers"][0]["ledgerId"])


def close_and_trim(pulsar: Pulsar, *topics: str) -> None:
    """Close the ledgers as a rollover does, and let the broker delete those that it does not need."""
    for topic in topics:
        pulsar.admin("PUT", f"{path_of(topic)}/unload")
        pulsar.admin("GET", f"{path_of(topic)}/stats")  # loads it again
        pulsar.admin("POST", f"{path_of(topic)}/trim")


@pytest.fixture(scope="module")
def pulsar_as_shipped() -> Iterator[Pulsar]:
    """Start a broker that deletes inactive topics, as one with default settings does."""
    with Pulsar({"brokerDeleteInactiveTopicsEnabled": "true"}) as server:
        yield server


@pytest.mark.parametrize("deployment", [kubernetes, compose, image])
async def test_a_shipped_deployment_keeps_every_message(
    tubemq: TubeMQ, pulsar_as_shipped: Pulsar, tmp_path: Path, deployment: Any
) -> None:
    pulsar = pulsar_as_shipped
    file, shipped = deployment()
    source, target = tubemq.take_topic(PARTITIONS), f"persistent://public/default/{deployment.__name__}-{time.time_ns()}"
    control = pulsar.create_topic(f"control-{time.time_ns()}")  # without subscription: it loses its message
    await fill(tubemq, source, [PER_PARTITION] * PARTITIONS, SIZE)
    addresses: Mapping[str, str] = {
        "TUBEMQ_MASTERS": tubemq.masters,
        "TUBEMQ_HEARTBEAT": HEARTBEAT,
        "PULSAR_URL": pulsar.service_url,
        "PULSAR_ADMIN_URL": pulsar.admin_url,
        "SOURCE_TOPIC": source,
        "TARGET_TOPIC": target,
        "GROUP": f"g_{time.time_ns()}",
    }
    env = {name: value for name, value in shipped.items() if name != "LISTEN"} | addresses
    with GatewayProcess(CONFIG / Path(file).name, tmp_path, env=env) as gateway:
        await asyncio.to_thread(gateway.wait_stored, PARTITIONS * PER_PARTITION)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    await asyncio.to_thread(pulsar.send, control, "lost")
    before, partitions = first_ledger(pulsar, control), [f"{target}-partition-{number}" for number in range(PARTITIONS)]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while first_ledger(pulsar, control) == before:  # until the broker has trimmed
            await asyncio.to_thread(close_and_trim, pulsar, *partitions, control)
    oracle = Oracle([PER_PARTITION] * PARTITIONS, SIZE)
    async for partition, messages in read("pulsar", pulsar_settings(pulsar), target, shipped.get("SUBSCRIPTION", "consumers")):
        oracle.see(partition, messages)
    oracle.assert_complete()


def ready(gateway: GatewayProcess) -> int:
    """Return the HTTP status of the gateway's readiness."""
    return httpx.get(f"http://127.0.0.1:{gateway.port}/health/ready", timeout=10).status_code


async def test_a_route_from_tubemq_waits_for_a_subscription(tubemq: TubeMQ, pulsar_as_shipped: Pulsar, tmp_path: Path) -> None:
    """Without `create.subscriptions` nothing is written or confirmed before consumers subscribe to the topic."""
    pulsar, source, target = (
        pulsar_as_shipped,
        tubemq.take_topic(PARTITIONS),
        f"persistent://public/default/late-{time.time_ns()}",
    )
    await fill(tubemq, source, [PER_PARTITION] * PARTITIONS, SIZE)
    settings = config(tubemq, pulsar, source, target)
    settings["routes"][0]["to"]["create"] = True
    with GatewayProcess(settings, tmp_path) as gateway:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while len((await asyncio.to_thread(gateway.route)).get("stopped", ())) < PARTITIONS:
                await asyncio.sleep(0.1)
        route = gateway.route()
        assert (route["stored"], route["acknowledged"], list(route["unprotected"])) == (0, 0, [f"pulsar/{target}"])
        assert await asyncio.to_thread(ready, gateway) == 503
        pulsar.keep(target)
        await asyncio.to_thread(gateway.wait_stored, PARTITIONS * PER_PARTITION)
        assert await asyncio.to_thread(ready, gateway) == 200
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    oracle = await judge(pulsar, target, Oracle([PER_PARTITION] * PARTITIONS, SIZE))
    oracle.assert_complete()
    assert oracle.repeats == 0
