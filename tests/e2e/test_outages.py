"""The target broker of a route is killed: users see one warning, the reason and the lag, and one line when it is back.

The source is the embedded log, so that each test case starts only one cluster.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Message, Share
from tests.e2e.sides import HEARTBEAT
from tests.e2e.support import opened, pulsar_settings, read
from tests.kit.gateway import GatewayProcess
from tests.kit.process import JavaProcess
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.started import Started
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.thorough]

PARTITIONS = 2
PART = 200
"""Number of messages sent before the outage, at its begin, and once more during it."""
POLL_S = 0.2


@dataclass
class Target:
    """A cluster that only this test uses, and its broker that is killed."""

    system: str
    settings: dict[str, Any]
    broker: JavaProcess
    topic: str
    kill: Callable[[], None]
    """Kills the broker without a loss of the messages that it has acknowledged."""


@asynccontextmanager
async def started(system: str) -> AsyncIterator[Target]:
    make: dict[str, Callable[[], Started]] = {"pulsar": Pulsar, "rocketmq": RocketMQ, "tubemq": TubeMQ}
    cluster = make[system]()
    try:
        await asyncio.to_thread(cluster.start)
        match cluster:
            case Pulsar():
                topic, server = cluster.create_topic("copy", PARTITIONS), cluster.server
                target = Target(system, pulsar_settings(cluster), server, topic, server.kill)
                async with opened(system, target.settings) as client:  # without a subscription Pulsar would delete the messages
                    await (await client.inbound(InboundSpec((target.topic,), "judge"))).close()
            case RocketMQ():
                settings = {"name_servers": cluster.name_server}
                target = Target(system, settings, cluster.broker, cluster.take_topic(PARTITIONS), cluster.kill_broker)
            case TubeMQ():
                settings = {"masters": cluster.masters, "admin_url": cluster.admin_url, "heartbeat": HEARTBEAT}
                topic = cluster.take_topic(PARTITIONS)
                target = Target(system, settings, cluster.broker, topic, partial(cluster.kill_broker_when_stored, topic))
            case _:
                raise AssertionError(system)
        yield target
    finally:
        await asyncio.to_thread(cluster.kill)


class Source:
    """A topic of a log; the payload of each message is its number."""

    def __init__(self, path: Path) -> None:
        self.settings = {"path": str(path)}
        self.sent = 0

    async def send(self, count: int) -> None:
        async with opened("log", self.settings) as cluster:
            await cluster.create("orders", PARTITIONS)
            outbound = await cluster.outbound(OutboundSpec("orders", stamp_origin=False))
            for _ in range(count):
                message = Message(b"%d" % self.sent)
                assert not (await outbound.send(self.sent % PARTITIONS, Share(Batch.of([message])))).failures
                self.sent += 1
            await outbound.close()


class Page:
    """A client of the gateway's HTTP endpoints."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self._gateway = gateway
        self._url = f"http://127.0.0.1:{gateway.port}"

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient() as client:
            return await client.get(f"{self._url}{path}", timeout=10)

    async def metric(self, sample: str) -> float | None:
        found = re.search(f"^{re.escape(sample)} (.+)$", (await self.get("/metrics")).text, re.MULTILINE)
        return float(found[1]) if found else None

    async def until(self, sample: str, condition: Callable[[float], bool]) -> float:
        """Wait until the metric's value meets the condition, and return it."""
        deadline, value = time.monotonic() + SERVER_PATIENCE_S, None
        while time.monotonic() < deadline:
            if (value := await self.metric(sample)) is not None and condition(value):
                return value
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"{sample} is {value} after {SERVER_PATIENCE_S:g} s:\n{self._gateway.log}")


@pytest.mark.parametrize(
    "system",
    ["pulsar", pytest.param("rocketmq", marks=pytest.mark.thorough), pytest.param("tubemq", marks=pytest.mark.thorough)],
)
async def test_an_outage_of_the_target_logs_one_warning_and_loses_nothing(system: str, tmp_path: Path) -> None:
    source = Source(tmp_path / "source.db")
    await source.send(PART)
    async with started(system) as target:
        config = {
            "clusters": {"here": {"system": "log", **source.settings}, "there": {"system": system, **target.settings}},
            "routes": [
                {
                    "name": "r",
                    "from": {"cluster": "here", "topic": "orders", "group": "g"},
                    "to": {"cluster": "there", "topic": target.topic},
                }
            ],
        }
        up, lag = 'mqbridge_cluster_up{cluster="there"}', 'mqbridge_lag{route="r",unit="messages"}'
        with GatewayProcess(config, tmp_path) as gateway:
            page = Page(gateway)
            await asyncio.to_thread(gateway.wait_stored, PART)
            await page.until(up, lambda value: value == 1.0)
            assert (await page.get("/health/ready")).status_code == 200

            log_length = len(gateway.log)
            await asyncio.to_thread(target.kill)
            await source.send(PART)
            await page.until(up, lambda value: value == 0.0)
            ready = await page.get("/health/ready")
            assert ready.status_code == 503
            assert "has been unreachable for" in ready.json()["away"]["there"]
            assert "has been unreachable for" in gateway.route()["retrying"]
            first_lag = await page.until(lag, lambda value: value >= PART)
            await source.send(PART)
            assert await page.until(lag, lambda value: value > first_lag) >= 2 * PART
            assert await page.metric('mqbridge_in_flight_messages{route="r"}')
            assert await page.metric('mqbridge_connection_failures_total{cluster="there"}')

            await asyncio.to_thread(target.broker.start)
            await asyncio.to_thread(gateway.wait_stored, source.sent)
            await page.until(up, lambda value: value == 1.0)
            await page.until(lag, lambda value: value == 0.0)
            assert (await page.get("/health/ready")).status_code == 200
            lines = gateway.log[log_length:].splitlines()
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log

        # The name server may drop the topic first, and a broker that starts slowly is also reported by its partitions.
        also = ("no name server knows topic", "have failed for")
        problems = [
            line for line in lines if (" WARNING " in line or " ERROR " in line) and not any(text in line for text in also)
        ]
        assert len(problems) == 1, "\n".join(lines)
        assert "cluster there cannot be reached" in problems[0]
        assert sum("cluster there can be reached again after" in line for line in lines) == 1, "\n".join(lines)
        print(f"{len(lines)} lines in the outage of {system}", *lines, sep="\n")
        payloads = [m.payload async for _, batch in read(system, target.settings, target.topic, "judge") for m in batch]
        assert {int(payload or b"-1") for payload in payloads} == set(range(source.sent))
