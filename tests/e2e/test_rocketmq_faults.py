"""RocketMQ's servers and the gateway are killed while RocketMQ is source and target: no message is lost, queues keep their order.

The tests use a cluster of their own with two name servers and two brokers. Both directions run in one gateway, so that each fault
affects both.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.cli.process.exit_codes import STOPPED
from mqbridge.message import Batch, Share
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.queue import Queue
from tests.e2e.support import opened, pulsar_settings, read
from tests.kit import rocketmq_remoting as remoting
from tests.kit.gateway import GatewayProcess
from tests.kit.oracle import Oracle, message
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(900)]

BROKERS = 2
PER_BROKER = 4
PARTITIONS = BROKERS * PER_BROKER
AT_FIRST, OF_SECOND = range(0, PARTITIONS, BROKERS), 1
"""The partitions of the first broker, and the first one of the second broker: indexes count by queue number first."""
SIZE = 1000
BATCH = 250
WINDOW = 4
"""Batches in flight per partition while filling."""
IDLE_S = "4"
POLL_S = 0.1
QUIET_S = 3.0
DELETE_EXPIRED_COMMIT_LOG = 329
"""Request code: delete the files older than fileReservedTime, except for the one that is written to."""
SETTINGS: dict[str, object] = {
    # The Broker deletes old messages by whole files: small files, and checked every second, make it delete early.
    "mappedFileSizeCommitLog": 4 << 20,
    "cleanResourceInterval": 1000,
}

Total = pytest.mark.parametrize("total", [16_000, pytest.param(1_000_000, marks=pytest.mark.long)])


@pytest.fixture(scope="module")
def fragile() -> Iterator[RocketMQ]:
    """Start a cluster that these tests may kill."""
    with RocketMQ(SETTINGS, brokers=BROKERS, name_servers=2, heap_mb=384) as cluster:
        yield cluster


@dataclass
class Direction:
    """Source and target system, settings by system, and topics by system."""

    source: str
    target: str
    settings: dict[str, dict[str, Any]]
    topics: dict[str, str]

    @property
    def name(self) -> str:
        return f"{self.source}-to-{self.target}"

    def route(self, **delivery: Any) -> dict[str, Any]:
        topic = self.topics[self.source]
        return {
            "name": self.name,
            "from": {"cluster": self.source, "topic": topic, "group": f"g_{self.topics['rocketmq']}"},
            "to": {"cluster": self.target, "topic": self.topics[self.target], "partitions": {"by": "identity"}},
            "delivery": delivery,
        }

    async def fill(self, counts: Sequence[int]) -> None:
        """Send the oracle's messages, `counts[p]` to partition p in order."""
        async with opened(self.source, self.settings[self.source]) as cluster:
            outbound = await cluster.outbound(OutboundSpec(self.topics[self.source], stamp_origin=False))
            assert outbound.partitions == len(counts)

            async def fill_partition(partition: int, count: int) -> None:
                waiting: deque[asyncio.Future[Receipt]] = deque()
                for start in range(0, count, BATCH):
                    numbers = range(start, min(start + BATCH, count))
                    waiting.append(outbound.send(partition, Share(Batch.of([message(partition, n, SIZE) for n in numbers]))))
                    if len(waiting) >= WINDOW:
                        assert not (await waiting.popleft()).failures
                for receipt in await asyncio.gather(*waiting):
                    assert not receipt.failures

            await asyncio.gather(*(fill_partition(p, count) for p, count in enumerate(counts)))
            await outbound.close()

    async def judge(self, counts: Sequence[int]) -> Oracle:
        """Read the whole target topic, and check that no message is missing."""
        oracle = Oracle(counts, SIZE)
        async for partition, messages in read(self.target, self.settings[self.target], self.topics[self.target], "judge"):
            oracle.see(partition, messages)
        oracle.assert_complete()
        return oracle


class World:
    """The cluster and the two directions between it and Pulsar."""

    def __init__(self, cluster: RocketMQ, pulsar: Pulsar) -> None:
        self.cluster = cluster
        rocketmq = {"name_servers": list(cluster.name_servers), "brokers": list(cluster.broker_names)}
        settings = {"rocketmq": rocketmq, "pulsar": pulsar_settings(pulsar)}
        self.settings: dict[str, dict[str, Any]] = settings
        self.directions: list[Direction] = []
        for source, target in (("rocketmq", "pulsar"), ("pulsar", "rocketmq")):
            topic, name = cluster.take_topic(PER_BROKER), f"faults-{time.time_ns()}"
            full = pulsar.keep(pulsar.create_topic(name, PARTITIONS))
            self.directions.append(Direction(source, target, settings, {"rocketmq": topic, "pulsar": full}))

    @property
    def from_rocketmq(self) -> Direction:
        return self.directions[0]

    def config(self, *directions: Direction, **delivery: Any) -> dict[str, Any]:
        return {
            "clusters": {name: {"system": name, **settings} for name, settings in self.settings.items()},
            "routes": [direction.route(**delivery) for direction in directions or self.directions],
        }

    async def fill(self, counts: Sequence[int]) -> None:
        await asyncio.gather(*(direction.fill(counts) for direction in self.directions))

    async def finish(self, counts: Sequence[int], folder: Path) -> list[Oracle]:
        """Deliver the remaining messages, and return an oracle per direction.

        The counter of stored messages includes repeated ones, so only an idle gateway shows that all are delivered.
        """
        with GatewayProcess(self.config(), folder, "--until-idle", IDLE_S) as gateway:
            assert await asyncio.to_thread(gateway.wait, 900) == 0, gateway.log
        return await asyncio.gather(*(direction.judge(counts) for direction in self.directions))

    def queue(self, topic: str, partition: int) -> Queue:
        return Queue(topic, self.cluster.broker_names[partition % BROKERS], partition // BROKERS)

    def lane(self, direction: Direction, partition: int) -> str:
        """Return the name by which the gateway shows a partition of a RocketMQ topic."""
        topic, broker, number = self.queue(direction.topics["rocketmq"], partition)
        return f"rocketmq/{topic}/{broker}:{number}"


@pytest.fixture
def world(fragile: RocketMQ, pulsar: Pulsar) -> World:
    return World(fragile, pulsar)


def counts(total: int) -> list[int]:
    """Divide `total` messages unevenly over the partitions."""
    shares = [total // PARTITIONS + (p - PARTITIONS // 2) * 10 for p in range(PARTITIONS)]
    shares[0] += total - sum(shares)
    return shares


Rows = dict[str, dict[str, Any]]


async def routes(gateway: GatewayProcess) -> Rows:
    """Return the rows of the gateway's page about its routes, by name; {} while the page is not served yet."""
    try:
        response = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{gateway.port}/routes", timeout=5)
    except httpx.HTTPError:
        return {}
    return {row["name"]: row for row in response.json()}


async def until(
    gateway: GatewayProcess, condition: Callable[[Rows], Awaitable[bool]], patience_s: float = SERVER_PATIENCE_S
) -> Rows:
    """Wait until the rows of the routes meet the condition, and return them."""
    deadline = time.monotonic() + patience_s
    while not ((rows := await routes(gateway)) and await condition(rows)):
        assert gateway.process.poll() is None, gateway.log
        assert time.monotonic() < deadline, f"{rows}\n{gateway.log}"
        await asyncio.sleep(POLL_S)
    return rows


async def until_stored(gateway: GatewayProcess, count: int) -> None:
    """Wait until every route has stored `count` messages."""

    async def stored(rows: Rows) -> bool:
        return all(row["stored"] >= count for row in rows.values())

    await until(gateway, stored, SERVER_PATIENCE_S + count / 1000)


@asynccontextmanager
async def connected(cluster: RocketMQ) -> AsyncIterator[ClusterClient]:
    client = ClusterClient(cluster.name_servers)
    try:
        await client.connect()
        yield client
    finally:
        await client.close()


# --- faults ---------------------------------------------------------------------------------------------------------------


@Total
async def test_kills_of_servers_and_gateway_lose_nothing(world: World, tmp_path: Path, total: int) -> None:
    """Kill a name server, one of the brokers, and the gateway, one after the other; all other traffic continues."""
    shares, cluster = counts(total), world.cluster
    await world.fill(shares)
    cluster.name_server_process.kill()  # the gateway must start with the other name server
    with GatewayProcess(world.config(rate=total // 4, in_flight_bytes="16MiB"), tmp_path) as gateway:
        await until_stored(gateway, total // 20)
        cluster.kill_broker(1)
        async with connected(cluster) as client:
            await until(gateway, lambda rows: _first_broker_is_complete(world, client, rows, shares))
        cluster.name_server_process.start()
        await asyncio.to_thread(cluster.restart_broker, 1)
        await until_stored(gateway, total * 6 // 10)
        gateway.kill()
    await world.finish(shares, tmp_path)


async def _first_broker_is_complete(world: World, client: ClusterClient, rows: Rows, shares: Sequence[int]) -> bool:
    """Return True if all messages of the first broker's queues are read, and all messages to its queues are stored."""
    from_it, to_it = world.directions
    lanes, topic = rows[from_it.name]["lanes"], to_it.topics["rocketmq"]
    for partition in AT_FIRST:
        if int(lanes.get(world.lane(from_it, partition)) or 0) < shares[partition]:
            return False
        if await client.positions.next(world.queue(topic, partition)) < shares[partition]:
            return False
    return True


@Total
async def test_sigterm_and_restart_repeat_nothing(world: World, tmp_path: Path, total: int) -> None:
    await world.fill(counts(total))
    for stored in (total // 10, 0):  # stop in the middle, and immediately after the start
        with GatewayProcess(world.config(rate=total // 5, in_flight_bytes="1MiB"), tmp_path) as gateway:
            await until_stored(gateway, stored)
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    assert [oracle.arrived for oracle in await world.finish(counts(total), tmp_path)] == [total, total]


async def test_a_gap_stops_only_its_own_queue(world: World, tmp_path: Path) -> None:
    direction, each = world.from_rocketmq, 2500
    topic, group = direction.topics["rocketmq"], direction.route()["from"]["group"]
    address = world.cluster.broker_address
    await direction.fill([each] * PARTITIONS)
    with GatewayProcess(world.config(direction, rate=2000, in_flight_bytes="256KiB"), tmp_path) as gateway:
        await until_stored(gateway, 500)
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log

    async with connected(world.cluster) as client:
        deleted = {world.queue(topic, partition): 0 for partition in AT_FIRST}
        for queue in deleted:
            deleted[queue] = await client.positions.committed(queue, group) or 0
        remoting.call(address, remoting.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=0\n")
        remoting.call(address, DELETE_EXPIRED_COMMIT_LOG)
        deadline = time.monotonic() + SERVER_PATIENCE_S
        while not all([await client.positions.first(queue) > reached for queue, reached in deleted.items()]):
            assert time.monotonic() < deadline, "nothing was deleted"
            await asyncio.sleep(POLL_S)
        remoting.call(address, remoting.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=72\n")
        # As after the topic was deleted and created again: the group's offset is beyond the end.
        await client.positions.commit(world.queue(topic, OF_SECOND), group, 10 * each)

    lanes = [world.lane(direction, partition) for partition in range(PARTITIONS)]
    stopped = {lanes[partition] for partition in (*AT_FIRST, OF_SECOND)}
    going = [lane for lane in lanes if lane not in stopped]

    async def settled(rows: Rows) -> bool:
        row = rows[direction.name]
        return row["stopped"].keys() == stopped and all(int(row["lanes"].get(lane) or 0) == each for lane in going)

    with GatewayProcess(world.config(direction), tmp_path) as gateway:
        stopped_reasons = (await until(gateway, settled))[direction.name]["stopped"]
        for partition, reached in zip(AT_FIRST, deleted.values(), strict=True):
            assert f"has a gap: the messages at offsets {reached} to" in stopped_reasons[lanes[partition]]
        assert f"but reading was to continue at offset {10 * each}" in stopped_reasons[lanes[OF_SECOND]]
        ready = await asyncio.to_thread(httpx.get, f"http://127.0.0.1:{gateway.port}/health/ready")
        assert ready.status_code == 503
        log = gateway.log
        await asyncio.sleep(QUIET_S)
        assert gateway.log.count("ERROR") == log.count("ERROR"), f"the error is logged once:\n{gateway.log}"
        assert await asyncio.to_thread(gateway.terminate) == STOPPED, gateway.log

    with GatewayProcess(world.config(direction, on_gap="continue"), tmp_path) as gateway:
        row = (await until(gateway, lambda rows: _passed(rows[direction.name], PER_BROKER)))[direction.name]
        assert list(row["stopped"]) == [lanes[OF_SECOND]], "it is unknown which messages of the last queue were read"
        async with connected(world.cluster) as client:  # as the error advises; the queue then continues without a restart
            await client.groups.reset(group, topic, -1)
        await until(gateway, lambda rows: _nothing_is_stopped(rows[direction.name]))
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log


async def _passed(row: dict[str, Any], gaps: int) -> bool:
    return bool(row["gaps"] == gaps and row["stopped"])


async def _nothing_is_stopped(row: dict[str, Any]) -> bool:
    return not row["stopped"]
