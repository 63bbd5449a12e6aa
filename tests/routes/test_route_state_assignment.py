"""A group member without a partition logs that it waits."""

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.testing.memory.adapter.registration import ADAPTER
from tests.gateway.world import World, everything, fill, route, running, until

TOLD = "route r is a member of group g-r and has waited"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.gateway.report.ASSIGNMENT_CHECK_S", 0.001)
    monkeypatch.setattr("mqbridge.gateway.report.UNASSIGNED_LOG_S", 0.01)


async def test_a_route_without_a_partition_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fill(world.a, "t", 1, 5)
    cluster = ADAPTER.make_cluster("a", ADAPTER.cluster_model.model_validate({"broker": f"{world.name}-a"}))
    other = await cluster.inbound(InboundSpec(("t",), "g-r"))
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: TOLD in caplog.text)
        await other.close()
        await until(lambda: everything(world.b, "t") == list(range(5)))
        assert gateway.routes[0].state.unassigned_for(float("inf")) == 0.0
        assert caplog.text.count(TOLD) == 1


async def test_a_route_with_a_partition_is_not_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fill(world.a, "t", 1, 5)
    async with running(world.config(route("r", "a/t", "b/t"))) as gateway:
        await until(lambda: gateway.routes[0].state.deliveries)
        caplog.clear()
        await until(lambda: everything(world.b, "t") == list(range(5)))
        assert TOLD not in caplog.text
