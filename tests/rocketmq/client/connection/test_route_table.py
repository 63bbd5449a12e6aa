"""RouteTable: routes are cached, refreshed and invalidated, and watchers are called for every change."""

import asyncio

import pytest

from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.route_table import Queue, TopicRoute
from mqbridge.rocketmq.wire.codes import Code, Status
from tests.patience import PATIENCE_S
from tests.rocketmq.client.broker import (
    NS,
    TOPIC,
    A,
    B,
    Cluster,
    refuses,
    responds_with,
    route,
    route_body,
    scripted_client,
    until,
)

ROUTE = Code.GET_ROUTEINFO_BY_TOPIC


def queues(*names: str) -> list[Queue]:
    """Return queues by short names: `a0` is queue 0 of broker-a."""
    return [Queue(TOPIC, f"broker-{name[0]}", int(name[1:])) for name in names]


async def test_a_route_lists_sorted_queues_and_the_addresses_of_brokers(cluster: Cluster, client: ClusterClient):
    cluster.brokers["broker-a"] = {0: A, 1: "slave:1"}
    cluster.topics[TOPIC] = {"broker-b": 1, "broker-a": 11}
    found = await client.routes.get(TOPIC)
    assert found is not None
    assert list(found.read_queues()) == queues(*(f"a{n}" for n in range(11)), "b0")
    assert found.write_queues() == found.read_queues()
    assert (found.master("broker-a"), found.master("broker-b"), found.master("broker-c")) == (A, B, None)
    assert (found.addresses(), found.masters()) == ([B, A, "slave:1"], [B, A])


async def test_queues_without_a_master_are_read_only(cluster: Cluster, client: ClusterClient):
    cluster.brokers["broker-a"] = {2: "two:1", 1: "one:1"}
    found = await client.routes.get(TOPIC)
    assert found is not None
    assert list(found.write_queues()) == queues("b0", "b1")
    assert list(found.read_queues()) == queues("a0", "a1", "b0", "b1")
    assert (found.reader("broker-a"), found.reader("broker-b"), found.reader("broker-c")) == ("one:1", B, None)


async def test_permissions_and_the_order_configuration_determine_the_queues(cluster: Cluster, client: ClusterClient):
    body = route_body(cluster, TOPIC)
    body["queueDatas"][0]["perm"], body["queueDatas"][1]["perm"] = 4, 2
    cluster.on[ROUTE] = responds_with(body)
    found = await client.routes.get(TOPIC)
    assert found is not None
    assert (list(found.read_queues()), list(found.write_queues())) == (queues("a0", "a1"), queues("b0", "b1"))
    assert found.frozen_queues == {*queues("a0", "a1")}
    cluster.on[ROUTE] = responds_with(route_body(cluster, TOPIC, orderTopicConf="broker-b:1;broker-a:3"))
    found = await client.routes.get(TOPIC, fresh=True)
    assert found is not None
    assert (list(found.write_queues()), found.frozen_queues) == (queues("a0", "a1", "a2", "b0"), frozenset())


async def test_a_route_is_cached_until_it_is_invalidated(cluster: Cluster, client: ClusterClient):
    first = await client.routes.get(TOPIC)
    assert await client.routes.get(TOPIC) is first
    assert len(cluster.requests[ROUTE]) == 1
    client.routes.invalidate(TOPIC)
    await asyncio.gather(*(client.routes.get(TOPIC) for _ in range(5)))
    assert len(cluster.requests[ROUTE]) == 2, "concurrent calls share one query"
    await client.routes.get(TOPIC, fresh=True)
    assert len(cluster.requests[ROUTE]) == 3


async def test_a_missing_topic_is_cached_no_longer_than_a_route(cluster: Cluster):
    client = scripted_client(route=0.05)
    await client.connect()
    assert await client.routes.get("new") is None
    cluster.topics["new"] = {"broker-a": 1}
    async with asyncio.timeout(PATIENCE_S):
        while await client.routes.get("new") is None:
            await asyncio.sleep(0.01)
    await client.close()


async def test_watchers_are_called_when_queues_or_addresses_change(cluster: Cluster):
    client = scripted_client(route=0.01)
    await client.connect()
    seen: list[TopicRoute] = []
    unwatch = client.routes.watch(TOPIC, seen.append)
    await until(lambda: len(seen) == 1)
    cluster.topics[TOPIC]["broker-a"] = 3
    await until(lambda: len(seen) == 2)
    assert len(seen[-1].read_queues()) == 5
    cluster.topics[TOPIC]["broker-a"] = 1
    await until(lambda: len(seen) == 3)
    assert len(seen[-1].read_queues()) == 3
    cluster.brokers["broker-a"][0] = "elsewhere:1"
    await until(lambda: len(seen) == 4)
    assert seen[-1].master("broker-a") == "elsewhere:1"
    count = len(cluster.requests[ROUTE])
    await until(lambda: len(cluster.requests[ROUTE]) > count + 2)
    assert len(seen) == 4, "an unchanged route is no news"
    unwatch()
    cluster.topics[TOPIC]["broker-a"] = 9
    await client.routes.get(TOPIC, fresh=True)
    assert len(seen) == 4
    await client.close()


async def test_a_lost_broker_invalidates_its_routes_at_once(cluster: Cluster, client: ClusterClient):
    cluster.topics["other"] = {"broker-b": 1}
    seen: list[TopicRoute] = []
    client.routes.watch(TOPIC, seen.append)
    await client.routes.get(TOPIC)
    await client.routes.get("other")
    await client.pool.get(A)
    cluster.brokers["broker-a"][0] = "elsewhere:1"
    cluster.link_to(A).drop()
    await until(lambda: len(seen) == 2)
    assert seen[-1].master("broker-a") == "elsewhere:1"
    count = len(cluster.requests[ROUTE])
    await client.routes.get("other")
    assert len(cluster.requests[ROUTE]) == count, "the other topic is not at that broker"


async def test_a_refusal_that_contradicts_the_route_invalidates_it(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    for code, count in ((Status.SYSTEM_BUSY, 1), (Status.TOPIC_NOT_EXIST, 2), (Status.SERVICE_NOT_AVAILABLE, 3)):
        cluster.on[Code.GET_MAX_OFFSET] = refuses(code)
        with pytest.raises(ServerRefused):
            await client.request(A, Code.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"})
        await client.routes.get(TOPIC)
        assert len(cluster.requests[ROUTE]) == count


async def test_watchers_keep_the_last_route_if_name_servers_forget_the_topic(cluster: Cluster, caplog):
    client = scripted_client(route=0.01)
    await client.connect()
    seen: list[TopicRoute] = []
    client.routes.watch(TOPIC, seen.append)
    await until(lambda: len(seen) == 1)
    cluster.on[ROUTE] = refuses(Status.TOPIC_NOT_EXIST)
    # An earlier query may still be in progress, and would be shared.
    await until(lambda: "continuing with its last known route" in caplog.text)
    assert await client.routes.get(TOPIC, fresh=True) is None
    assert client.routes.last_known(TOPIC) is seen[0]
    cluster.on[ROUTE] = route
    while (found := await client.routes.get(TOPIC, fresh=True)) is None:
        pass
    assert found == seen[0]
    assert len(seen) == 1
    await client.close()


async def test_a_query_that_has_ended_is_not_shared(cluster: Cluster):
    """Its result may be old, and awaiting it would not yield to the loop: a caller in a loop would block the whole process."""
    client = scripted_client(route=60)
    await client.connect()
    ended = client.routes._queries[TOPIC] = asyncio.ensure_future(asyncio.sleep(0))
    await ended
    assert await client.routes.get(TOPIC, fresh=True) is not None
    client.routes._on_query_done(TOPIC, ended)
    await client.close()


async def test_refreshing_continues_while_no_name_server_responds(cluster: Cluster, caplog):
    caplog.set_level("DEBUG")  # at INFO, unreachable name servers are logged only once for their cluster
    client = scripted_client(route=0.01)
    await client.connect()
    seen: list[TopicRoute] = []
    client.routes.watch(TOPIC, seen.append)
    await until(lambda: len(seen) == 1)
    cluster.unreachable.add(NS)
    cluster.link_to(NS).drop()
    await until(lambda: f"refresh of the route of topic {TOPIC} failed" in caplog.text)
    cluster.topics[TOPIC]["broker-a"] = 7
    cluster.unreachable.clear()
    await until(lambda: len(seen) == 2)
    await client.close()
