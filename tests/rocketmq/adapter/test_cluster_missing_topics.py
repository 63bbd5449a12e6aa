"""A topic that no name server knows is missing while Brokers are registered; while none is, nothing is known about it."""

import pytest

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.config.load import from_dict
from mqbridge.errors import ClusterError, Failure
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.rocketmq.wire.bodies.routes import BrokerData, ClusterInfo
from mqbridge.rocketmq.wire.codes import Code
from tests.rocketmq.client import broker
from tests.rocketmq.client.broker import A, Link, cluster, route, scripted_client

__all__ = ["cluster"]

CONFIG = from_dict(
    {
        "clusters": {"rocket": {"system": "rocketmq", "name_servers": "ns:9876"}, "here": {"system": "memory"}},
        "routes": [{"name": "r", "from": {"cluster": "rocket", "topic": "T", "group": "G"}, "to": {"cluster": "here"}}],
    }
)
BROKER = BrokerData("broker-a", "C", {0: A})


@pytest.fixture(autouse=True)
def one_broker(cluster: broker.Cluster) -> None:
    """Register one Broker; without its topics, the name server does not list the Broker either."""
    cluster.brokers, cluster.topics = {"broker-a": {0: A}}, {"T": {"broker-a": 2}}
    cluster.on[Code.GET_BROKER_CLUSTER_INFO] = lambda link, request: link.answer(
        request, body=ClusterInfo({"broker-a": BROKER} if cluster.topics else {}, {"C": ("broker-a",)}).encode()
    )


async def partition_count(rocket: Cluster, topic: str) -> int | None:
    found = await rocket.describe(topic)
    return None if found is None else len(found.partitions)


async def test_a_topic_is_missing_only_while_a_broker_is_registered(cluster: broker.Cluster) -> None:
    async with connected_clusters(CONFIG) as clusters:
        rocket = clusters["rocket"]
        assert await partition_count(rocket, "T") == 2
        assert await partition_count(rocket, "other") is None
        cluster.topics = {}
        with pytest.raises(ClusterError, match="no master is registered") as caught:
            await partition_count(rocket, "T")
        assert caught.value.failure is Failure.RETRY


async def test_a_broker_that_returns_between_two_queries_has_its_topics(cluster: broker.Cluster) -> None:
    async with connected_clusters(CONFIG) as clusters:
        topics, cluster.topics = cluster.topics, {}

        def return_afterwards(link: Link, request: broker.Command) -> None:
            route(link, request)
            cluster.topics, cluster.on[Code.GET_ROUTEINFO_BY_TOPIC] = topics, route

        cluster.on[Code.GET_ROUTEINFO_BY_TOPIC] = return_afterwards
        assert await partition_count(clusters["rocket"], "T") == 2


async def test_opening_during_an_outage_is_retried(cluster: broker.Cluster) -> None:
    """A route that joins again in an outage does not describe its topics first; a FATAL error would end it."""
    async with connected_clusters(CONFIG) as clusters:
        rocket = clusters["rocket"]
        assert await partition_count(rocket, "T") == 2
        cluster.topics = {}
        with pytest.raises(ClusterError, match="no master is registered") as caught:
            await rocket.inbound(InboundSpec(("T",), "G"))
        assert caught.value.failure is Failure.RETRY
        with pytest.raises(ClusterError, match="no master is registered") as caught:
            await rocket.check_inbound(InboundSpec(("other",), "G"))
        assert caught.value.failure is Failure.RETRY
        async with scripted_client() as client:
            with pytest.raises(ClusterError, match="no master is registered") as caught:
                await client.producer("P", "T").route()
            assert caught.value.failure is Failure.RETRY
