"""Heartbeats and groups: who is told what, when, and in which order."""

import asyncio

import pytest

from mqbridge.errors import LocalProtocolError
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.groups import ConsumerData, Heartbeat, SubscriptionData
from mqbridge.rocketmq.wire.codes import Code
from tests.rocketmq.client.broker import NS, TOPIC, A, B, Cluster, in_turn, refuses, scripted_client, silent, success, until

BEAT = Code.HEART_BEAT


def beats(cluster: Cluster, address: str) -> list[Heartbeat]:
    return [Heartbeat.decode(command.body) for command in cluster.asked_at[address] if command.code == BEAT]


def consumer(group: str = "G", version: int = 1) -> ConsumerData:
    return ConsumerData(group, (SubscriptionData(TOPIC, "*", version),))


async def test_an_id_comes_with_the_connection():
    client = scripted_client()
    with pytest.raises(LocalProtocolError, match="before it is connected"):
        _ = client.client_id


async def test_ids_name_our_address_and_differ(cluster: Cluster):
    clients = [scripted_client() for _ in range(2)]
    named = ClusterClient([NS], instance="blue")
    for client in (*clients, named):
        await client.connect()
    assert named.client_id == "10.1.2.3@blue"
    assert len({client.client_id for client in clients}) == 2
    assert len({client.unique_id() for client in clients for _ in range(100)}) == 200
    for client in (*clients, named):
        await client.close()


async def test_without_groups_nobody_gets_a_heartbeat(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    await client.heartbeat()
    await client.pool.get(A)
    assert cluster.asked[BEAT] == []


async def test_a_new_connection_is_greeted_before_it_is_used(cluster: Cluster, client: ClusterClient):
    client.add_consumer(consumer())
    cluster.on[Code.PULL_MESSAGE] = success
    await client.request(A, Code.PULL_MESSAGE)
    assert [command.code for command in cluster.asked_at[A]] == [BEAT, Code.PULL_MESSAGE]
    cluster.link_to(A).drop()
    await asyncio.sleep(0.01)
    await client.request(A, Code.PULL_MESSAGE)
    assert [command.code for command in cluster.asked_at[A]] == [BEAT, Code.PULL_MESSAGE] * 2
    assert not any(command.code == BEAT for command in cluster.asked_at[NS])
    assert client.broker_version(A) == 479


async def test_one_heartbeat_says_everything(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_producer("P")
    client.add_consumer(consumer("G1"))
    client.add_consumer(consumer("G2"))
    client.add_consumer(consumer("G1", version=7))
    await client.heartbeat()
    for address in (A, B):
        said = beats(cluster, address)[-1]
        assert (said.client_id, said.producers) == (client.client_id, ("P",))
        assert [(one.group, one.subscriptions[0].version) for one in said.consumers] == [("G1", 7), ("G2", 1)]


async def test_producers_need_masters_only(cluster: Cluster, client: ClusterClient):
    cluster.brokers["broker-a"] = {0: A, 1: "slave:1"}
    await client.routes.get(TOPIC)
    client.add_producer("P")
    await client.heartbeat()
    assert (len(beats(cluster, A)), len(beats(cluster, "slave:1"))) == (1, 0)
    client.add_consumer(consumer())
    await client.heartbeat()
    assert len(beats(cluster, "slave:1")) == 1


async def test_heartbeats_to_a_broker_come_one_after_the_other(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_consumer(consumer(version=1))
    await client.heartbeat()
    cluster.at[A, BEAT] = silent
    first = asyncio.ensure_future(client.heartbeat())
    await until(lambda: len(beats(cluster, A)) == 2)
    client.add_consumer(consumer(version=2))
    second = asyncio.ensure_future(client.heartbeat())
    await until(lambda: len(beats(cluster, B)) == 3)
    assert len(beats(cluster, A)) == 2, "the broker works on one of them still"
    cluster.at[A, BEAT] = success
    success(cluster.link_to(A), cluster.asked_at[A][-1])
    await asyncio.gather(first, second)
    assert beats(cluster, A)[-1].consumers[0].subscriptions[0].version == 2


async def test_a_farewell_never_overtakes_a_heartbeat_that_was_cut_short(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_consumer(consumer())
    await client.heartbeat()
    cluster.at[A, BEAT] = silent
    beat = asyncio.ensure_future(client.heartbeat())
    await until(lambda: len(beats(cluster, A)) == 2)
    beat.cancel()
    leaving = asyncio.ensure_future(client.remove_consumer("G"))
    await until(lambda: Code.UNREGISTER_CLIENT in [command.code for command in cluster.asked_at[B]])
    assert cluster.asked_at[A][-1].code == BEAT, "the broker works on it still"
    success(cluster.link_to(A), cluster.asked_at[A][-1])
    await leaving
    assert cluster.asked_at[A][-1].code == Code.UNREGISTER_CLIENT


async def test_they_are_repeated_and_outlive_brokers_that_fail(cluster: Cluster, caplog):
    caplog.set_level("DEBUG")  # a broker that cannot be reached is said once, for its cluster
    client = scripted_client(heartbeat=0.01, request=0.05)
    await client.connect()
    await client.routes.get(TOPIC)
    cluster.unreachable.add(B)
    cluster.at[A, BEAT] = in_turn(refuses(1, "not today"), silent, success)
    client.add_consumer(consumer())
    await until(lambda: len(beats(cluster, A)) >= 5)
    assert "not today" in caplog.text
    assert f"heartbeat to broker {B} failed" in caplog.text
    await client.close()


async def test_leaving_is_told_to_every_connected_broker(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_producer("P")
    client.add_producer("P")
    client.add_consumer(consumer())
    await client.heartbeat()
    await client.remove_producer("P")
    assert cluster.asked[Code.UNREGISTER_CLIENT] == []
    await client.remove_producer("P")
    await client.remove_consumer("G")
    await client.remove_consumer("G")
    left = cluster.asked[Code.UNREGISTER_CLIENT]
    assert [{**one.ext} for one in left] == [{"clientID": client.client_id, "producerGroup": "P"}] * 2 + [
        {"clientID": client.client_id, "consumerGroup": "G"}
    ] * 2
    count = len(cluster.asked[BEAT])
    await client.heartbeat()
    assert len(cluster.asked[BEAT]) == count


async def test_close_unregisters_what_is_left(cluster: Cluster):
    client = scripted_client(request=0.05)
    await client.connect()
    await client.routes.get(TOPIC)
    client.add_producer("P")
    client.add_consumer(consumer())
    await client.heartbeat()
    cluster.at[A, Code.UNREGISTER_CLIENT] = silent
    await client.close()
    left = [command for command in cluster.asked_at[B] if command.code == Code.UNREGISTER_CLIENT]
    assert sorted(sorted(one.ext) for one in left) == [["clientID", "consumerGroup"], ["clientID", "producerGroup"]]
    assert any(command.code == Code.UNREGISTER_CLIENT for command in cluster.asked_at[A])
    assert [link for link in cluster.links if link.open] == []


async def test_a_broker_that_goes_away_is_connected_anew(cluster: Cluster, client: ClusterClient):
    await client.routes.get(TOPIC)
    client.add_producer("P")
    await client.heartbeat()
    cluster.at[A, BEAT] = in_turn(refuses(1500), success)
    await client.heartbeat()
    await client.heartbeat()
    assert cluster.dialled.count(A) == 2


async def test_a_connection_that_opens_as_the_client_closes_does_not_stay(cluster: Cluster):
    client = scripted_client()
    pool = client.pool
    dialing = pool._start_dialing(A)
    while not dialing.done():
        await asyncio.sleep(0)
    await pool.close()
    await until(lambda: not pool._dialing)
    assert (pool.open_connections(), cluster.links_to(A)) == ([], [])
