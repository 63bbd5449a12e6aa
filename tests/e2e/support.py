"""Helpers of the end-to-end tests and the bench: fill TubeMQ, read Pulsar back, and configure a route between them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import InboundLane, InboundSpec, ask_caught_up
from mqbridge.adapter.operations import ReportsUnprotected
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.adapter.registry import load_adapters
from mqbridge.message import Batch, Message, Share
from tests.kit.oracle import Oracle, message
from tests.kit.pulsar import KEEPER, Pulsar
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S

BATCH = 500
WINDOW = 8
"""Batches in flight per partition while filling."""
HEARTBEAT = "2s"
QUIET_S = 3.0
"""A target is read to its end when no message arrived for this time, and every lane has caught up."""
KEPT = {"subscriptions": [KEEPER]}
"""Settings of a Pulsar target topic: its messages must survive restarts and unloads until the test reads them."""


def tubemq_settings(tubemq: TubeMQ) -> dict[str, Any]:
    """Return the options of the cluster in a configuration, with a short heartbeat for tests that wait for assignments."""
    return {"masters": tubemq.masters, "admin_url": tubemq.admin_url, "heartbeat": HEARTBEAT, **tubemq.keys}


def pulsar_settings(pulsar: Pulsar) -> dict[str, Any]:
    """Return the options of the cluster in a configuration."""
    return {"service_url": pulsar.service_url, "admin_url": pulsar.admin_url}


def config(tubemq: TubeMQ, pulsar: Pulsar, source: str, target: str, **delivery: Any) -> dict[str, Any]:
    """Return a configuration of one route from TubeMQ to Pulsar."""
    return {
        "clusters": {
            "tube": {"system": "tubemq", **tubemq_settings(tubemq)},
            "pulsar": {"system": "pulsar", **pulsar_settings(pulsar)},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "tube", "topic": source, "group": f"g_{source}"},
                "to": {"cluster": "pulsar", "topic": target, "create": KEPT},
                "delivery": delivery,
            }
        ],
    }


def environment(tubemq: TubeMQ, pulsar: Pulsar, source: str, target: str) -> dict[str, str]:
    """Return the environment variables that the shipped configurations read."""
    return {
        "TUBEMQ_MASTERS": tubemq.masters,
        "PULSAR_URL": pulsar.service_url,
        "PULSAR_ADMIN_URL": pulsar.admin_url,
        "SOURCE_TOPIC": source,
        "TARGET_TOPIC": target,
        "GROUP": f"g_{time.time_ns()}",
        "START": "earliest",
    }


@contextlib.asynccontextmanager
async def opened(system: str, settings: dict[str, Any]) -> AsyncIterator[Cluster]:
    """Connect to a cluster of this system, and close it at the end."""
    adapter = load_adapters()[system]
    cluster = adapter.make_cluster("tube" if system == "tubemq" else system, adapter.cluster_model(**settings))
    try:
        await cluster.connect()
        yield cluster
    finally:
        await cluster.close()


async def fill(tubemq: TubeMQ, topic: str, counts: Sequence[int], size: int, first: Sequence[int] | None = None) -> None:
    """Send the oracle's messages to TubeMQ in order: to each partition p, `counts[p]` messages from number `first[p]` on."""
    async with opened("tubemq", tubemq_settings(tubemq)) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))
        assert outbound.partitions == len(counts)

        async def fill_partition(partition: int, count: int, begin: int) -> None:
            in_flight: deque[asyncio.Future[Receipt]] = deque()
            for start in range(begin, begin + count, BATCH):
                batch = [message(partition, n, size) for n in range(start, min(start + BATCH, begin + count))]
                in_flight.append(outbound.send(partition, Share(Batch.of(batch))))
                if len(in_flight) >= WINDOW:
                    assert not (await in_flight.popleft()).failures
            for receipt in await asyncio.gather(*in_flight):
                assert not receipt.failures

        begins = first or [0] * len(counts)
        await asyncio.gather(*(fill_partition(p, count, begins[p]) for p, count in enumerate(counts)))
        await outbound.close()


async def judge(pulsar: Pulsar, topic: str, oracle: Oracle) -> Oracle:
    """Read the whole target topic into the oracle."""
    async for partition, messages in read("pulsar", pulsar_settings(pulsar), topic, KEEPER):
        oracle.see(partition, messages)
    return oracle


async def read(system: str, settings: dict[str, Any], topic: str, group: str) -> AsyncIterator[tuple[int, Sequence[Message]]]:
    """Yield every batch of a topic from its beginning to its end, as (partition index, messages)."""
    async with opened(system, settings) as cluster:
        described = await cluster.describe(topic)
        assert described is not None, f"there is no topic {topic}"
        if system == "pulsar":
            assert cluster.operations is not None
            assert isinstance(cluster.operations, ReportsUnprotected)
            assert await cluster.operations.why_unprotected(topic) is None, "Pulsar may have deleted a closed ledger"
        lanes: dict[int, InboundLane] = {}
        inbound = await cluster.inbound(InboundSpec((topic,), group))
        received: asyncio.Queue[tuple[int, Sequence[Message]]] = asyncio.Queue(maxsize=4)

        async def drain(lane: InboundLane) -> None:
            while True:
                batch = await lane.receive()
                await received.put((lane.partition.index, batch.messages))
                lane.acknowledge(batch)

        async def accept() -> None:
            async with asyncio.TaskGroup() as tasks:
                async for lane in inbound.lanes():
                    lanes[lane.partition.index] = lane
                    tasks.create_task(drain(lane))

        async def at_end() -> bool:
            return len(lanes) == len(described.partitions) and all([await ask_caught_up(lane) for lane in lanes.values()])

        reading = asyncio.ensure_future(accept())
        silent_s = 0.0
        try:
            while not (silent_s and await at_end()):
                assert silent_s < SERVER_PATIENCE_S, (
                    f"{topic}: {len(lanes)} of {len(described.partitions)} partitions, not all read"
                )
                try:
                    yield await asyncio.wait_for(received.get(), QUIET_S)
                    silent_s = 0.0
                except TimeoutError:
                    silent_s += QUIET_S
                    if reading.done():
                        reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await inbound.close()
