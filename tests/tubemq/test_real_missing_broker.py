"""A real Broker is down when a client starts: what the Master lists then, and what is known all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure
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
