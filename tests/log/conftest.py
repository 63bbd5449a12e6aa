from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest_asyncio

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.inbound import LogInbound
from mqbridge.log.adapter.lane import LogLane
from mqbridge.log.adapter.outbound import LogOutbound
from mqbridge.log.adapter.registration import ADAPTER

OpenLog = Callable[..., Awaitable[LogCluster]]


@pytest_asyncio.fixture
async def open_log(tmp_path: Path) -> AsyncIterator[OpenLog]:
    """Return a function that opens the same log file again, with the given settings; all clusters are closed after the test."""
    clusters = []

    async def open_(**settings: object) -> LogCluster:
        cluster = LogCluster("log", ADAPTER.cluster_model(**({"path": tmp_path / "log.db", "poll": "5ms"} | settings)))
        await cluster.connect()
        clusters.append(cluster)
        return cluster

    yield open_
    for cluster in clusters:
        await cluster.close()


async def outbound_of(cluster: LogCluster, topic: str = "t", **settings: float) -> LogOutbound:
    """Create the topic with one partition if it is missing, and open an outbound into it."""
    await cluster.create(topic, 1)
    outbound = await cluster.outbound(OutboundSpec(topic, keep_units=True, **settings))  # type: ignore[arg-type]
    assert isinstance(outbound, LogOutbound)
    return outbound


async def lane_of(cluster: LogCluster, group: str = "g", topic: str = "t") -> tuple[LogInbound, LogLane]:
    """Join a group; return the inbound and its first lane."""
    inbound = await cluster.inbound(InboundSpec((topic,), group))
    assert isinstance(inbound, LogInbound)
    return inbound, await anext(inbound.lanes())
