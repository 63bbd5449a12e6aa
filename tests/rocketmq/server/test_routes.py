"""Requests to the name server."""

import json

import pytest

from mqbridge.rocketmq.server.routes import DEFAULT_QUEUES
from mqbridge.rocketmq.server.support import NO_SETTINGS
from mqbridge.rocketmq.server.topic_names import CLUSTER_NAME, REPLY_TOPIC, TEMPLATE_TOPIC, TRACE_TOPIC
from mqbridge.rocketmq.wire.bodies.routes import ClusterInfo, Perm, RouteData, TopicList
from mqbridge.rocketmq.wire.codes import STANDARD_JSON_VERSION, Code, Status
from mqbridge.rocketmq.wire.headers.admin import ClusterHeader, RouteHeader
from tests.rocketmq.server.serving import RawRemotingClient, serving

BROKER = "mqbridge-app"


async def route(client: RawRemotingClient, topic: str) -> tuple[int, int] | None:
    """Return the number of queues of a topic, and its permission; None if it does not exist."""
    answer = await client.ask(Code.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic))
    if answer.code == Status.TOPIC_NOT_EXIST:
        assert topic in (answer.remark or "")
        return None
    (queues,) = RouteData.decode(answer.body).queues
    assert queues.read_queues == queues.write_queues
    assert queues.broker == BROKER
    return queues.read_queues, queues.perm


async def test_a_route_names_one_broker_at_the_address_that_the_client_has_used() -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create(queues=3)
        answer = await client.ask(Code.GET_ROUTEINFO_BY_TOPIC, RouteHeader("t"))
        (broker,) = RouteData.decode(answer.body).brokers
        assert (broker.name, broker.cluster) == (BROKER, CLUSTER_NAME)
        assert broker.addresses == {0: f"127.0.0.1:{served.listener.port.port}"}
        assert await route(client, "t") == (3, Perm.READ_WRITE)


async def test_a_route_names_the_advertised_address() -> None:
    async with serving(advertise="gateway.example:9876") as served:
        client = await served.connect()
        await served.create()
        answer = await client.ask(Code.GET_ROUTEINFO_BY_TOPIC, RouteHeader("t"))
        assert RouteData.decode(answer.body).brokers[0].addresses == {0: "gateway.example:9876"}
        info = ClusterInfo.decode((await client.ask(Code.GET_BROKER_CLUSTER_INFO)).body)
        assert info.brokers[BROKER].addresses == {0: "gateway.example:9876"}


@pytest.mark.parametrize(
    ("version", "asked", "standard"),
    [(STANDARD_JSON_VERSION, None, True), (STANDARD_JSON_VERSION - 1, None, False), (STANDARD_JSON_VERSION - 1, True, True)],
)
async def test_routes_are_standard_json_for_clients_that_read_it(version: int, asked: bool | None, standard: bool) -> None:
    async with serving() as served:
        client = await served.connect()
        await served.create()
        client.version = version
        answer = await client.ask(Code.GET_ROUTEINFO_BY_TOPIC, RouteHeader("t", asked))
        assert (b'{"0":"' in answer.body, b'{0:"' in answer.body) == (standard, not standard)
        if standard:
            json.loads(answer.body)
        assert RouteData.decode(answer.body).queues[0].write_queues == 1


@pytest.mark.parametrize("partitions", [4, None])
async def test_the_template_tells_how_new_topics_are_made(partitions: int | None) -> None:
    async with serving(create_partitions=partitions) as served:
        client = await served.connect()
        expected = None if partitions is None else (4, Perm.READ_WRITE | Perm.INHERIT)
        assert await route(client, TEMPLATE_TOPIC) == expected
    assert DEFAULT_QUEUES == 4


async def test_topics_that_the_listener_makes_have_a_route_before_they_exist() -> None:
    async with serving(create_partitions=None) as served:
        client = await served.connect()
        for name in ("%RETRY%g", TRACE_TOPIC, REPLY_TOPIC):
            assert await route(client, name) == (1, Perm.READ_WRITE)
        assert await route(client, "missing") is None
        assert await route(client, "SCHEDULE_TOPIC_XXXX") is None
        assert await served.listener.topics.names() == [], "a route creates nothing"
        await served.create("%RETRY%h", 2)
        assert await route(client, "%RETRY%h") == (2, Perm.READ_WRITE)


async def test_topics_of_the_gateway_have_no_route() -> None:
    async with serving() as served:
        client = await served.connect()
        await client.store(b"x")
        await served.cluster.create("mqbridge-app-x", 1)
        await served.cluster.create("mqbridge-dead-other", 1)
        assert await route(client, "mqbridge-app-x") is None
        assert await route(client, "mqbridge-dead-other") is None
        answer = await client.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert TopicList.decode(answer.body).topics == ("t",)


async def test_the_cluster_has_one_broker() -> None:
    async with serving() as served:
        client = await served.connect()
        answer = await client.ask(Code.GET_BROKER_CLUSTER_INFO)
        info = ClusterInfo.decode(answer.body)
        assert info.clusters == {CLUSTER_NAME: (BROKER,)}
        assert info.brokers[BROKER].addresses == {0: f"127.0.0.1:{served.listener.port.port}"}
        assert b" " not in answer.body


async def test_lists_of_topics() -> None:
    async with serving() as served:
        client = await served.connect()
        for name in ("b", "a", "%RETRY%g"):
            await served.create(name)
        every = await client.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert sorted(TopicList.decode(every.body).topics) == ["%RETRY%g", "a", "b"]
        own = await client.ask(Code.GET_TOPICS_BY_CLUSTER, ClusterHeader(CLUSTER_NAME))
        assert sorted(TopicList.decode(own.body).topics) == ["%RETRY%g", "a", "b"]
        other = await client.ask(Code.GET_TOPICS_BY_CLUSTER, ClusterHeader("other"))
        assert (other.code, TopicList.decode(other.body).topics) == (0, ())


async def test_there_are_no_settings() -> None:
    async with serving() as served:
        client = await served.connect()
        for code in (Code.GET_KV_CONFIG, Code.GET_KVLIST_BY_NAMESPACE):
            answer = await client.ask(code, {"namespace": "ORDER_TOPIC_CONFIG", "key": "t"})
            assert answer.code == Status.QUERY_NOT_FOUND
        for code in (
            Code.PUT_KV_CONFIG,
            Code.WIPE_WRITE_PERM_OF_BROKER,
            Code.ADD_WRITE_PERM_OF_BROKER,
            Code.UPDATE_BROKER_CONFIG,
        ):
            answer = await client.ask(code, {"brokerName": BROKER})
            assert (answer.code, answer.remark) == (Status.NO_PERMISSION, NO_SETTINGS)


async def test_a_route_without_a_topic_is_refused() -> None:
    async with serving() as served:
        client = await served.connect()
        answer = await client.ask(Code.GET_ROUTEINFO_BY_TOPIC, {})
        assert answer.code == Status.SYSTEM_ERROR
        assert "topic" in (answer.remark or "")
