"""Heartbeats and the unregistering of groups: their receivers, contents and order."""

import asyncio
import logging

import pytest

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData, Heartbeat, SubscriptionData
from mqbridge.rocketmq.wire.codes import Code
from tests.rocketmq.client.broker import NS, TOPIC, A, B, Cluster, in_turn, refuses, scripted_client, silent, success, until

HEARTBEAT = Code.HEART_BEAT


def heartbeats(cluster: Cluster, address: str) -> list[Heartbeat]:
    return [Heartbeat.decode(command.body) for command in cluster.requests_to[address] if command.code == HEARTBEAT]


def consumer(group: str = "G", version: int = 1) -> ConsumerData:
    return ConsumerData(group, (SubscriptionData(TOPIC, "*", version),))


async def test_the_client_id_is_unknown_before_the_client_is_connected():
    client = scripted_client()
    with pytest.raises(LocalProtocolError, match="call connect first"):
        _ = client.client_id


async def test_client_ids_contain_the_own_address_and_differ(cluster: Cluster):
    clients = [scripted_client() for _ in range(2)]
    named = ClusterClient([NS], instance="blue")
    for client in (*clients, named):
        await client.connect()
    assert named.client_id == "10.1.2.3@blue"
    assert len({client.client_id for client in clients}) == 2
    assert len({client.unique_id() for client in clients for _ in range(100)}) == 200
    for client in (*clients, named):
        await client.close()


async def test_without_groups_no_heartbeat_is_sent(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    await client.heartbeat()
    await client.pool.get(A)
    assert cluster.requests[HEARTBEAT] == []


async def test_the_first_request_on_a_new_connection_is_a_heartbeat(cluster: Cluster, client: ClusterClient):
    client.add_consumer(consumer())
    cluster.on[Code.PULL_MESSAGE] = success
    await client.request(A, Code.PULL_MESSAGE)
    assert [command.code for command in cluster.requests_to[A]] == [HEARTBEAT, Code.PULL_MESSAGE]
    cluster.link_to(A).drop()
    await asyncio.sleep(0.01)
    await client.request(A, Code.PULL_MESSAGE)
    assert [command.code for command in cluster.requests_to[A]] == [HEARTBEAT, Code.PULL_MESSAGE] * 2
    assert not any(command.code == HEARTBEAT for command in cluster.requests_to[NS])
    assert client.broker_version(A) == 479


async def test_one_heartbeat_contains_all_producers_and_consumers(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_producer("P")
    client.add_consumer(consumer("G1"))
    client.add_consumer(consumer("G2"))
    client.add_consumer(consumer("G1", version=7))
    await client.heartbeat()
    for address in (A, B):
        heartbeat = heartbeats(cluster, address)[-1]
        assert (heartbeat.client_id, heartbeat.producers) == (client.client_id, ("P",))
        assert [(one.group, one.subscriptions[0].version) for one in heartbeat.consumers] == [("G1", 7), ("G2", 1)]


async def test_heartbeats_of_producers_go_to_masters_only(cluster: Cluster, client: ClusterClient):
    cluster.brokers["broker-a"] = {0: A, 1: "slave:1"}
    await client.routes.get(TOPIC)
    client.add_producer("P")
    await client.heartbeat()
    assert (len(heartbeats(cluster, A)), len(heartbeats(cluster, "slave:1"))) == (1, 0)
    client.add_consumer(consumer())
    await client.heartbeat()
    assert len(heartbeats(cluster, "slave:1")) == 1


async def test_the_next_heartbeat_to_a_broker_waits_for_the_response_to_the_previous_one(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_consumer(consumer(version=1))
    await client.heartbeat()
    cluster.at[A, HEARTBEAT] = silent
    first = asyncio.ensure_future(client.heartbeat())
    await until(lambda: len(heartbeats(cluster, A)) == 2)
    client.add_consumer(consumer(version=2))
    second = asyncio.ensure_future(client.heartbeat())
    await until(lambda: len(heartbeats(cluster, B)) == 3)
    assert len(heartbeats(cluster, A)) == 2, "the broker has not responded to the first heartbeat yet"
    cluster.at[A, HEARTBEAT] = success
    success(cluster.link_to(A), cluster.requests_to[A][-1])
    await asyncio.gather(first, second)
    assert heartbeats(cluster, A)[-1].consumers[0].subscriptions[0].version == 2


async def test_unregistering_waits_for_the_response_to_a_cancelled_heartbeat(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_consumer(consumer())
    await client.heartbeat()
    cluster.at[A, HEARTBEAT] = silent
    beat = asyncio.ensure_future(client.heartbeat())
    await until(lambda: len(heartbeats(cluster, A)) == 2)
    beat.cancel()
    leaving = asyncio.ensure_future(client.remove_consumer("G"))
    await until(lambda: Code.UNREGISTER_CLIENT in [command.code for command in cluster.requests_to[B]])
    assert cluster.requests_to[A][-1].code == HEARTBEAT, "the broker has not responded to the heartbeat yet"
    success(cluster.link_to(A), cluster.requests_to[A][-1])
    await leaving
    assert cluster.requests_to[A][-1].code == Code.UNREGISTER_CLIENT


async def test_heartbeats_continue_although_brokers_fail(cluster: Cluster, caplog):
    caplog.set_level("DEBUG")  # at INFO, an unreachable broker is logged only once for its cluster
    client = scripted_client(heartbeat=0.01, request=0.05)
    await client.connect()
    await client.routes.get(TOPIC)
    cluster.unreachable.add(B)
    cluster.at[A, HEARTBEAT] = in_turn(refuses(1, "not today"), silent, success)
    client.add_consumer(consumer())
    await until(lambda: len(heartbeats(cluster, A)) >= 5)
    assert "not today" in caplog.text
    assert f"heartbeat to broker {B} failed" in caplog.text
    await client.close()


async def test_only_the_first_of_several_failures_is_a_warning(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    client = scripted_client(heartbeat=0.01)
    await client.connect()
    await client.routes.get(TOPIC)
    cluster.at[A, HEARTBEAT] = in_turn(*[refuses(1, "not today")] * 3, success, refuses(1, "not today either"), success)
    client.add_consumer(consumer())
    await until(lambda: len(heartbeats(cluster, A)) >= 8)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2
    assert "not today either" in warnings[1]
    await client.close()


async def test_a_removed_group_is_unregistered_at_every_connected_broker(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_producer("P")
    client.add_producer("P")
    client.add_consumer(consumer())
    await client.heartbeat()
    await client.remove_producer("P")
    assert cluster.requests[Code.UNREGISTER_CLIENT] == []
    await client.remove_producer("P")
    await client.remove_consumer("G")
    await client.remove_consumer("G")
    left = cluster.requests[Code.UNREGISTER_CLIENT]
    assert [{**one.ext} for one in left] == [{"clientID": client.client_id, "producerGroup": "P"}] * 2 + [
        {"clientID": client.client_id, "consumerGroup": "G"}
    ] * 2
    count = len(cluster.requests[HEARTBEAT])
    await client.heartbeat()
    assert len(cluster.requests[HEARTBEAT]) == count


async def test_close_unregisters_all_groups_at_every_broker(cluster: Cluster):
    client = scripted_client(request=0.05)
    await client.connect()
    await client.routes.get(TOPIC)
    client.add_producer("P")
    client.add_consumer(consumer())
    await client.heartbeat()
    cluster.at[A, Code.UNREGISTER_CLIENT] = silent
    await client.close()
    left = [command for command in cluster.requests_to[B] if command.code == Code.UNREGISTER_CLIENT]
    assert sorted(sorted(one.ext) for one in left) == [["clientID", "consumerGroup"], ["clientID", "producerGroup"]]
    assert any(command.code == Code.UNREGISTER_CLIENT for command in cluster.requests_to[A])
    assert [link for link in cluster.links if link.open] == []


async def test_a_heartbeat_refused_with_go_away_opens_a_new_connection(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_producer("P")
    await client.heartbeat()
    cluster.at[A, HEARTBEAT] = in_turn(refuses(1500), success)
    await client.heartbeat()
    await client.heartbeat()
    assert cluster.dialled.count(A) == 2


async def test_a_connection_that_opens_while_the_client_closes_is_closed(cluster: Cluster):
    client = scripted_client()
    pool = client.pool
    dialing = pool._start_dialing(A)
    while not dialing.done():
        await asyncio.sleep(0)
    await pool.close()
    await until(lambda: not pool._dialing)
    assert (pool.open_connections(), cluster.links_to(A)) == ([], [])
