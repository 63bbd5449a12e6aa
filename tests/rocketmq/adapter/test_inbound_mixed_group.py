"""A route whose group has members with other subscriptions: it reports an error, does not join, and continues once they left."""

from collections.abc import Sequence
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.wire.bodies.configs import GroupConfig, GroupConfigs
from mqbridge.rocketmq.wire.bodies.groups import SubscriptionData
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.routes.route import Route
from tests.rocketmq.client.broker import A, cluster, responds_with, until
from tests.rocketmq.client.consumer.test_subscription_consistency import join_foreign_member
from tests.rocketmq.client.groups import ScriptedEnvironment, environment

__all__ = ["cluster", "environment"]

CONFIG = {
    "clusters": {"rocket": {"system": "rocketmq", "name_servers": "ns:9876"}, "here": {"system": "memory", "broker": "mixed"}},
    "routes": [
        {"name": "r", "from": {"cluster": "rocket", "topic": "T", "group": "G"}, "to": {"cluster": "here", "topic": "copy"}},
    ],
}


async def join_mixed(environment: ScriptedEnvironment) -> None:
    """Answer what a route asks of the cluster, and have a member with other subscriptions join the group."""
    brokers = {"brokerAddrTable": {"broker-a": {"brokerAddrs": {"0": A}, "brokerName": "broker-a", "cluster": "c"}}}
    environment.cluster.on[Code.GET_BROKER_CLUSTER_INFO] = responds_with({**brokers, "clusterAddrTable": {"c": ["broker-a"]}})
    environment.cluster.on[Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG] = lambda link, request: link.answer(
        request, body=GroupConfigs({"G": GroupConfig("G")}).encode()
    )
    await join_foreign_member(environment, SubscriptionData("OTHER"))


class NotedOwners:
    """Names of members that may have locked queues."""

    def __init__(self) -> None:
        self.abandoned: list[str] = []
        self.recorded = 0
        self.names: list[str] = []

    async def record(self, owner: str) -> None:
        self.names.append(owner)
        self.recorded += 1

    async def forget(self, owners: Sequence[str]) -> None:
        self.names = [name for name in self.names if name not in owners]


async def test_a_member_that_could_not_join_has_locked_nothing(environment: ScriptedEnvironment) -> None:
    await join_mixed(environment)
    owners: Any = NotedOwners()
    async with connected_clusters(from_dict(CONFIG)) as clusters:
        with pytest.raises(ClusterError, match="java@1"):
            await clusters["rocket"].inbound(InboundSpec(("T",), "G", release_wait_s=5, sent_back=False, lock_owners=owners))
    assert (owners.recorded, owners.names) == (1, [])


async def test_a_route_reports_a_member_with_other_subscriptions(environment: ScriptedEnvironment) -> None:
    await join_mixed(environment)
    config = from_dict(CONFIG)
    async with connected_clusters(config) as clusters:
        route = Route(config.routes[0], clusters, None, 1.0)
        await route.prepare()
        running = spawn(route.run(), "route")
        await until(lambda: route.state.retry_reason is not None)
        assert "java@1" in str(route.state.retry_reason)
        assert not route.state.deliveries
        del environment.groups.members["G"]["java@1"]
        await until(lambda: route.state.deliveries)
        assert route.state.retry_reason is None
        route.stop()
        await running
        await route.close()
        await cancel(running)
