"""Name servers: one is used until it fails, and impossible routes are not accepted."""

import asyncio
import json

import pytest

from mqbridge.errors import ClusterError, Failure, ServerRefused, Unreachable
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.connection.name_server_address import parse_name_servers
from mqbridge.rocketmq.wire.codes import Code, Status
from tests.rocketmq.client.broker import (
    NS,
    NS2,
    TOPIC,
    A,
    Cluster,
    hangs_up,
    in_turn,
    refuses,
    responds_with,
    route,
    route_body,
    scripted_client,
    silent,
)

ROUTE = Code.GET_ROUTEINFO_BY_TOPIC


def route_queries(cluster: Cluster, address: str) -> int:
    """Return how many route queries this name server received."""
    return sum(command.code == ROUTE for command in cluster.requests_to[address])


async def connected(*name_servers: str, **timing: float) -> ClusterClient:
    client = scripted_client(*name_servers, **timing)
    await client.connect()
    return client


def test_name_server_addresses_are_parsed_in_all_common_forms():
    assert parse_name_servers("a:1;b ,c:3;") == ["a:1", "b:9876", "c:3"]
    assert parse_name_servers("[::1]:9;[::2]") == ["[::1]:9", "[::2]:9876"]
    for wrong in ("", " ; ", "a:b", "a:0", "a:99999"):
        with pytest.raises(ValueError, match=r"host:port|no name server"):
            parse_name_servers(wrong)


async def test_the_next_name_server_is_used_if_the_first_is_unreachable(cluster: Cluster):
    cluster.unreachable.add(NS)
    client = await connected(NS, NS2)
    assert client.client_id.startswith("10.1.2.3@")
    assert await client.routes.get(TOPIC) is not None
    assert (route_queries(cluster, NS), route_queries(cluster, NS2)) == (0, 1)
    await client.close()


async def test_the_error_without_a_reachable_name_server_names_all_of_them(cluster: Cluster):
    cluster.unreachable |= {NS, NS2}
    with pytest.raises(Unreachable, match=r"ns:9876 cannot be reached; ns2:9876 cannot be reached"):
        await connected(NS, NS2)


async def test_one_name_server_is_used_until_it_fails(cluster: Cluster):
    client = await connected(NS, NS2, request=0.1)
    for _ in range(3):
        await client.routes.get(TOPIC, fresh=True)
    assert (route_queries(cluster, NS), route_queries(cluster, NS2)) == (3, 0)
    for trouble in (hangs_up, refuses(Status.SYSTEM_ERROR, "name server not ready"), silent):
        cluster.at[NS, ROUTE] = trouble
        assert await client.routes.get(TOPIC, fresh=True) is not None
        before = route_queries(cluster, NS)
        assert await client.routes.get(TOPIC, fresh=True) is not None
        assert route_queries(cluster, NS) == before, "the name server that failed is not asked first again"
        client.name_servers.switch()
    await client.close()


async def test_concurrent_requests_that_fail_at_one_server_all_try_the_next(cluster: Cluster):
    client = await connected(NS, NS2)
    cluster.at[NS, ROUTE] = hangs_up
    ext = {"topic": TOPIC}
    requests = [client.name_servers.request(ROUTE, ext, lambda response: response.body) for _ in range(4)]
    assert all(await asyncio.gather(*requests))
    assert route_queries(cluster, NS2) == 4
    failed = route_queries(cluster, NS)
    assert await client.name_servers.request(ROUTE, ext, lambda response: response.body)
    assert route_queries(cluster, NS) == failed  # the calls have switched once, all together
    await client.close()


async def test_concurrent_connections_that_fail_at_one_server_all_try_the_next(cluster: Cluster):
    client = scripted_client(NS, NS2)
    cluster.unreachable.add(NS)
    assert await asyncio.gather(*(client.name_servers.connect() for _ in range(4))) == ["10.1.2.3"] * 4
    await client.close()


def changed_route(**changes: object):
    """Return a handler that sends the route of TOPIC with these fields changed."""

    def answer(link, request):
        body = route_body(link.cluster, TOPIC)
        for name, value in changes.items():
            for part in (*body["brokerDatas"], *body["queueDatas"]):
                if name in part:
                    part[name] = value
        responds_with(body)(link, request)

    return answer


INVALID_ROUTES = {
    "no JSON": responds_with(b"<html>"),
    "not an object": responds_with([1, 2]),
    "no body": responds_with(b""),
    "a negative number of queues": changed_route(writeQueueNums=-1),
    "an absurd number of queues": changed_route(readQueueNums=1 << 30),
    "a number that is none": changed_route(readQueueNums="many"),
    "an address without a port": changed_route(brokerAddrs={"0": "broker"}),
    "a port that cannot be": changed_route(brokerAddrs={"0": "broker:99999"}),
    "an empty address": changed_route(brokerAddrs={"0": ""}),
    "a broker id that is none": changed_route(brokerAddrs={"master": A}),
    "a negative broker id": changed_route(brokerAddrs={"-1": A}),
}


@pytest.mark.parametrize("problem", INVALID_ROUTES)
async def test_an_impossible_route_is_queried_from_the_next_name_server(cluster: Cluster, problem: str):
    cluster.at[NS, ROUTE] = INVALID_ROUTES[problem]
    client = await connected(NS, NS2)
    found = await client.routes.get(TOPIC)
    assert found is not None
    assert len(found.write_queues()) == 4
    cluster.at[NS2, ROUTE] = INVALID_ROUTES[problem]
    with pytest.raises(Unreachable, match=r"ns2?:9876 sent an invalid response.*ns2?:9876 sent"):
        await client.routes.get(TOPIC, fresh=True)
    await client.close()


async def test_an_invalid_order_configuration_is_an_error(cluster: Cluster, client: ClusterClient):
    cluster.on[ROUTE] = responds_with(route_body(cluster, TOPIC, orderTopicConf="broker-a"))
    with pytest.raises(Unreachable, match="order configuration"):
        await client.routes.get(TOPIC)


async def test_a_topic_is_missing_only_if_all_reachable_name_servers_say_so(cluster: Cluster):
    cluster.at[NS, ROUTE] = refuses(Status.TOPIC_NOT_EXIST)  # as after a restart
    client = await connected(NS, NS2)
    assert await client.routes.get(TOPIC) is not None
    assert await client.routes.get("missing") is None
    cluster.unreachable.add(NS2)
    cluster.link_to(NS2).drop()
    assert await client.routes.get("missing", fresh=True) is None
    await client.close()


async def test_a_permanent_refusal_is_not_repeated_at_the_next_name_server(cluster: Cluster):
    cluster.on[ROUTE] = refuses(Status.NO_PERMISSION, "who are you")
    client = await connected(NS, NS2)
    with pytest.raises(ServerRefused, match="who are you") as caught:
        await client.routes.get(TOPIC)
    assert caught.value.failure is Failure.FATAL
    assert (route_queries(cluster, NS), route_queries(cluster, NS2)) == (1, 0)
    await client.close()


@pytest.mark.parametrize(
    "more", [{"topicQueueMappingByBroker": {"broker-a": {"bname": "broker-a", "totalQueues": 4}}}, {"syslo": True}]
)
async def test_the_route_of_a_static_topic_is_refused(cluster: Cluster, client: ClusterClient, more):
    body = route_body(cluster, TOPIC)
    if more.pop("syslo", False):
        body["queueDatas"][0]["brokerName"] = "__syslo__global__"
    cluster.on[ROUTE] = responds_with(body | more)
    with pytest.raises(ClusterError, match="static topic") as caught:
        await client.routes.get(TOPIC)
    assert caught.value.failure is Failure.FATAL


async def test_routes_of_old_name_servers_are_parsed(cluster: Cluster, client: ClusterClient):
    text = json.dumps(route_body(cluster, TOPIC)).replace('{"0":', "{0:")
    cluster.on[ROUTE] = in_turn(responds_with(text.encode()), route)
    found = await client.routes.get(TOPIC)
    assert found == await client.routes.get(TOPIC, fresh=True)
    assert cluster.requests[ROUTE][0].ext == {"topic": TOPIC, "acceptStandardJsonOnly": "true"}


async def test_a_name_server_that_refuses_the_client_is_skipped(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    client = await connected(NS, NS2)
    locked, get = {NS}, client.pool.get

    async def get_unless_locked(address: str):
        if address in locked:
            raise Unreachable(f"{address} demands a certificate", Failure.FATAL)
        return await get(address)

    monkeypatch.setattr(client.pool, "get", get_unless_locked)
    assert await client.routes.get(TOPIC, fresh=True) is not None
    locked.add(NS2)
    with pytest.raises(Unreachable, match=r"ns2?:9876 demands a certificate; ns2?:9876 demands a certificate") as caught:
        await client.routes.get(TOPIC, fresh=True)
    assert caught.value.failure is Failure.FATAL
    await client.close()
