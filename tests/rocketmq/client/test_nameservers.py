"""Name servers: one at a time until it fails, and only as far as what they say can be."""

import json

import pytest

from mqbridge.errors import ClusterError, Failure, ServerRefused, Unreachable
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.name_server_address import parse_name_servers
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
    route,
    route_body,
    says,
    scripted_client,
    silent,
)

ROUTE = Code.GET_ROUTEINFO_BY_TOPIC


def asked(cluster: Cluster, address: str) -> int:
    return sum(command.code == ROUTE for command in cluster.asked_at[address])


async def connected(*name_servers: str, **timing: float) -> ClusterClient:
    client = scripted_client(*name_servers, **timing)
    await client.connect()
    return client


def test_addresses_are_read_as_people_write_them():
    assert parse_name_servers("a:1;b ,c:3;") == ["a:1", "b:9876", "c:3"]
    assert parse_name_servers("[::1]:9;[::2]") == ["[::1]:9", "[::2]:9876"]
    for wrong in ("", " ; ", "a:b", "a:0", "a:99999"):
        with pytest.raises(ValueError, match=r"host:port|no name server"):
            parse_name_servers(wrong)


async def test_the_next_one_is_taken_when_the_first_cannot_be_reached(cluster: Cluster):
    cluster.unreachable.add(NS)
    client = await connected(NS, NS2)
    assert client.client_id.startswith("10.1.2.3@")
    assert await client.routes.get(TOPIC) is not None
    assert (asked(cluster, NS), asked(cluster, NS2)) == (0, 1)
    await client.close()


async def test_nobody_reachable_names_all(cluster: Cluster):
    cluster.unreachable |= {NS, NS2}
    with pytest.raises(Unreachable, match=r"ns:9876 cannot be reached; ns2:9876 cannot be reached"):
        await connected(NS, NS2)


async def test_one_is_asked_until_it_fails(cluster: Cluster):
    client = await connected(NS, NS2, request=0.1)
    for _ in range(3):
        await client.routes.get(TOPIC, fresh=True)
    assert (asked(cluster, NS), asked(cluster, NS2)) == (3, 0)
    for trouble in (hangs_up, refuses(Status.SYSTEM_ERROR, "name server not ready"), silent):
        cluster.at[NS, ROUTE] = trouble
        assert await client.routes.get(TOPIC, fresh=True) is not None
        before = asked(cluster, NS)
        assert await client.routes.get(TOPIC, fresh=True) is not None
        assert asked(cluster, NS) == before, "the one that failed is not asked first again"
        client.name_servers.switch()
    await client.close()


def lie(**change: object):
    """A route in which something cannot be."""

    def answer(link, request):
        body = route_body(link.cluster, TOPIC)
        for name, value in change.items():
            for part in (*body["brokerDatas"], *body["queueDatas"]):
                if name in part:
                    part[name] = value
        says(body)(link, request)

    return answer


LIES = {
    "no JSON": says(b"<html>"),
    "not an object": says([1, 2]),
    "no body": says(b""),
    "a negative number of queues": lie(writeQueueNums=-1),
    "an absurd number of queues": lie(readQueueNums=1 << 30),
    "a number that is none": lie(readQueueNums="many"),
    "an address without a port": lie(brokerAddrs={"0": "broker"}),
    "a port that cannot be": lie(brokerAddrs={"0": "broker:99999"}),
    "an empty address": lie(brokerAddrs={"0": ""}),
    "a broker id that is none": lie(brokerAddrs={"master": A}),
    "a negative broker id": lie(brokerAddrs={"-1": A}),
}


@pytest.mark.parametrize("what", LIES)
async def test_what_cannot_be_is_asked_of_the_next(cluster: Cluster, what: str):
    cluster.at[NS, ROUTE] = LIES[what]
    client = await connected(NS, NS2)
    found = await client.routes.get(TOPIC)
    assert found is not None
    assert len(found.write_queues()) == 4
    cluster.at[NS2, ROUTE] = LIES[what]
    with pytest.raises(Unreachable, match=r"ns2?:9876 sent an invalid response.*ns2?:9876 sent"):
        await client.routes.get(TOPIC, fresh=True)
    await client.close()


async def test_an_order_configuration_that_cannot_be_read(cluster: Cluster, client: ClusterClient):
    cluster.on[ROUTE] = says(route_body(cluster, TOPIC, orderTopicConf="broker-a"))
    with pytest.raises(Unreachable, match="order configuration"):
        await client.routes.get(TOPIC)


async def test_a_missing_topic_is_believed_when_all_say_so(cluster: Cluster):
    cluster.at[NS, ROUTE] = refuses(Status.TOPIC_NOT_EXIST)  # it was just restarted
    client = await connected(NS, NS2)
    assert await client.routes.get(TOPIC) is not None
    assert await client.routes.get("missing") is None
    cluster.unreachable.add(NS2)
    cluster.link_to(NS2).drop()
    assert await client.routes.get("missing", fresh=True) is None
    await client.close()


async def test_what_will_not_change_is_not_asked_twice(cluster: Cluster):
    cluster.on[ROUTE] = refuses(Status.NO_PERMISSION, "who are you")
    client = await connected(NS, NS2)
    with pytest.raises(ServerRefused, match="who are you") as caught:
        await client.routes.get(TOPIC)
    assert caught.value.failure is Failure.FATAL
    assert (asked(cluster, NS), asked(cluster, NS2)) == (1, 0)
    await client.close()


@pytest.mark.parametrize(
    "more", [{"topicQueueMappingByBroker": {"broker-a": {"bname": "broker-a", "totalQueues": 4}}}, {"syslo": True}]
)
async def test_static_topics_are_refused_clearly(cluster: Cluster, client: ClusterClient, more):
    body = route_body(cluster, TOPIC)
    if more.pop("syslo", False):
        body["queueDatas"][0]["brokerName"] = "__syslo__global__"
    cluster.on[ROUTE] = says(body | more)
    with pytest.raises(ClusterError, match="static topic") as caught:
        await client.routes.get(TOPIC)
    assert caught.value.failure is Failure.FATAL


async def test_routes_of_old_name_servers_are_read(cluster: Cluster, client: ClusterClient):
    text = json.dumps(route_body(cluster, TOPIC)).replace('{"0":', "{0:")
    cluster.on[ROUTE] = in_turn(says(text.encode()), route)
    found = await client.routes.get(TOPIC)
    assert found == await client.routes.get(TOPIC, fresh=True)
    assert cluster.asked[ROUTE][0].ext == {"topic": TOPIC, "acceptStandardJsonOnly": "true"}


async def test_one_that_will_not_let_us_in_is_passed_over(cluster: Cluster, monkeypatch: pytest.MonkeyPatch):
    client = await connected(NS, NS2)
    locked, get = {NS}, client.pool.get

    async def dial(address: str):
        if address in locked:
            raise Unreachable(f"{address} demands a certificate", Failure.FATAL)
        return await get(address)

    monkeypatch.setattr(client.pool, "get", dial)
    assert await client.routes.get(TOPIC, fresh=True) is not None
    locked.add(NS2)
    with pytest.raises(Unreachable, match=r"ns2?:9876 demands a certificate; ns2?:9876 demands a certificate") as caught:
        await client.routes.get(TOPIC, fresh=True)
    assert caught.value.failure is Failure.FATAL
    await client.close()
