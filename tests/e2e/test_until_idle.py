"""`run --until-idle` ends with success only when the source confirms that everything is read, not after an older response."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.sides import Side, side
from tests.e2e.support import opened
from tests.kit.gateway import GatewayProcess
from tests.kit.rocketmq import RocketMQ
from tests.kit.tcp_proxy import Address, Network

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

PARTITIONS = 2
FIRST, SECOND = 100, 1000
"""Number of messages sent before the outage and during it."""
IDLE_S = 3
OUTAGE_S = 3 * IDLE_S
"""Longer than the idle time, and shorter than a source may be silent before the run ends."""


def addresses(where: Side) -> list[Address]:
    """Return the address of each server of a cluster."""
    if isinstance(where.server, RocketMQ):
        texts = [*where.server.name_servers, *where.server.broker_addresses]
    else:
        texts = [urlsplit(url).netloc for url in where.settings.values()]
    return [(text.rpartition(":")[0], int(text.rpartition(":")[2])) for text in texts]


async def send(settings: dict[str, Any], system: str, topic: str, count: int) -> None:
    async with opened(system, settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        for partition in range(outbound.partitions):
            batch = [Message(b"%d" % number) for number in range(count // outbound.partitions)]
            assert not (await outbound.send(partition, Share(Batch.of(batch)))).failures
        await outbound.close()


@asynccontextmanager
async def idle_run(
    system: str, settings: dict[str, Any], topic: str, network: Network, folder: Path
) -> AsyncIterator[GatewayProcess]:
    """Run a gateway until it is idle; it has stored the first messages."""
    config = {
        "clusters": {"source": {"system": system, **settings}, "target": {"system": "log", "path": str(folder / "target.db")}},
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "source", "topic": topic, "group": f"g_{time.time_ns()}"},
                "to": {"cluster": "target", "topic": "copy"},
            }
        ],
    }
    await send(settings, system, topic, FIRST)
    with GatewayProcess(config, folder, "--until-idle", str(IDLE_S), "--json", network=network) as gateway:
        await asyncio.to_thread(gateway.wait_stored, FIRST)
        await asyncio.sleep(IDLE_S / 3)  # meanwhile the source responds that it has no more messages
        yield gateway


def result(gateway: GatewayProcess) -> dict[str, Any]:
    """Return the JSON document at the end of the log."""
    found = re.search(r"^\{\n.*^\}$|^\{\"routes.*\}$", gateway.log, re.MULTILINE | re.DOTALL)
    assert found is not None, gateway.log
    document: dict[str, Any] = json.loads(found[0])
    return document


def hold(network: Network) -> None:
    """Let no byte pass; connections stay open, so neither side notices."""
    for link in network.links.values():
        link.passes.clear()


@pytest.mark.parametrize("system", ["pulsar", pytest.param("rocketmq", marks=pytest.mark.thorough)])
async def test_a_run_until_idle_waits_for_a_source_that_is_silent_for_a_while(
    system: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = side(system, request)
    topic = source.take_topic(PARTITIONS)
    async with Network(addresses(source)) as network, idle_run(system, source.settings, topic, network, tmp_path) as gateway:
        hold(network)
        await send(source.settings, system, topic, SECOND)
        await asyncio.sleep(OUTAGE_S)
        network.heal()
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    [route] = result(gateway)["routes"]
    assert (route["stored"], route["unread"]) == (FIRST + SECOND, {})


@pytest.mark.thorough
@pytest.mark.parametrize("system", ["pulsar", "rocketmq"])
async def test_a_run_until_idle_names_the_partitions_of_a_source_that_stays_silent(
    system: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = side(system, request)
    topic = source.take_topic(PARTITIONS)
    async with Network(addresses(source)) as network, idle_run(system, source.settings, topic, network, tmp_path) as gateway:
        hold(network)
        await send(source.settings, system, topic, SECOND)
        assert await asyncio.to_thread(gateway.wait) == 3, gateway.log
    document = result(gateway)
    [route] = document["routes"]
    assert not document["clean"]
    assert route["stored"] == FIRST
    assert len(route["unread"]) == PARTITIONS, route
    assert gateway.log.count("may have unread messages") == PARTITIONS


@pytest.mark.thorough
async def test_a_run_until_idle_names_the_queues_of_a_broker_that_was_killed(tmp_path: Path) -> None:
    with RocketMQ(brokers=2, heap_mb=384) as server:
        settings, topic = {"name_servers": server.name_server, "refresh": "1s"}, server.take_topic(1)
        async with Network([]) as network, idle_run("rocketmq", settings, topic, network, tmp_path) as gateway:
            await asyncio.to_thread(server.kill_broker, 1)
            assert await asyncio.to_thread(gateway.wait) == 3, gateway.log
    [route] = result(gateway)["routes"]
    assert list(route["unread"]) == [f"source/{topic}/broker-b:0"]
