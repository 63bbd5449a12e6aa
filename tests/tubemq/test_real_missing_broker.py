"""A real Broker is down when a client starts: what the Master lists then, and what is known all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.errors import ClusterError, Failure
from mqbridge.routes.source_indexes import record_partitions
from mqbridge.routing.partitions import partitions_needed
from tests.e2e.support import opened
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_more import SecondBroker
from tests.patience import SERVER_PATIENCE_S

pytestmark = [pytest.mark.cluster, pytest.mark.thorough, pytest.mark.timeout(240)]


@pytest.fixture
def brokers() -> Iterator[tuple[TubeMQ, SecondBroker]]:
    with TubeMQ({"demo": 2}, pool={}) as server:
        second = SecondBroker(server)
        second.start()
        try:
            second.add_topic("demo", 2)
            yield server, second
        finally:
            second.kill()


async def listed(settings: dict[str, Any]) -> list[str]:
    async with opened("tubemq", settings) as cluster:
        described = await cluster.describe("demo")
        return [] if described is None else list(described.partitions)


async def test_a_target_is_opened_only_with_all_brokers_that_are_known(brokers: tuple[TubeMQ, SecondBroker]) -> None:
    server, second = brokers
    plain = {"masters": [server.masters]}
    knowing: list[dict[str, Any]] = [plain | {"brokers": [1, 2]}, plain | {"admin_url": server.admin_url}]
    assert await listed(plain) == ["1:0", "2:0", "1:1", "2:1"]
    for settings in knowing:
        async with opened("tubemq", settings) as cluster:
            outbound = await cluster.outbound(OutboundSpec("demo"))
            assert outbound.partitions == 4
            await outbound.close()
    await asyncio.to_thread(second.process.kill)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await listed(plain) != ["1:0", "1:1"]:
            await asyncio.sleep(0.5)
    for settings in knowing:
        async with opened("tubemq", settings) as cluster:
            with pytest.raises(ClusterError, match="no partition of topic demo at Broker 2") as caught:
                await cluster.outbound(OutboundSpec("demo"))
            assert caught.value.failure is Failure.RETRY
    second.close_topic("demo", acceptPublish=False)  # then it is no target, whether or not it runs
    async with opened("tubemq", knowing[1]) as cluster:
        await (await cluster.outbound(OutboundSpec("demo"))).close()


@pytest.mark.parametrize("way", ["the topic accepts no messages", "the whole Broker accepts no messages"])
async def test_a_read_only_broker_has_indexes(brokers: tuple[TubeMQ, SecondBroker], way: str) -> None:
    server, second = brokers
    if way == "the topic accepts no messages":
        second.close_topic("demo", acceptPublish=False)
    else:
        second.make_read_only()
    plain = {"masters": [server.masters]}
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await listed(plain) != ["1:0", "1:1"]:
            await asyncio.sleep(0.5)
    async with opened("tubemq", plain | {"admin_url": server.admin_url}) as cluster:
        described = await cluster.describe("demo")
        assert described is not None
        assert described.read_only == {"2:0": 1, "2:1": 3}
        record_partitions(cluster, described, [PartitionRule(by="identity")])
        assert partitions_needed(PartitionRule(by="identity"), described) == 4
        inbound = await cluster.inbound(InboundSpec(("demo",), "g"))
        indexes: dict[str, int] = {}
        async with asyncio.timeout(SERVER_PATIENCE_S):
            async for lane in inbound.lanes():
                indexes[lane.partition.name] = lane.partition.index
                if len(indexes) == 4:
                    break
        await inbound.close()
    assert indexes == {"1:0": 0, "2:0": 1, "1:1": 2, "2:1": 3}
