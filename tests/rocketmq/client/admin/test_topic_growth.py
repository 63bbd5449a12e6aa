"""Growth of a topic at scripted brokers: changes of other clients in between, fixed queue lists, and levels."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.admin import topic_growth
from mqbridge.rocketmq.client.admin.topic_growth import TopicGrowth, level_for
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.admin import CreateTopicHeader
from tests.rocketmq.client.broker import TOPIC, A, B, Cluster, Link, responds_with, route_body

NAMES = {A: "broker-a", B: "broker-b"}


@pytest.fixture(autouse=True)
def brokers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both brokers return their settings of a topic, and apply updates."""

    def query(link: Link, request: Command) -> None:
        queues = cluster.topics[request.ext["topic"]][NAMES[link.address]]
        link.answer(request, body=TopicConfig(TOPIC, queues, queues).encode())

    cluster.on[Code.GET_TOPIC_CONFIG] = query
    cluster.on[Code.UPDATE_AND_CREATE_TOPIC] = update
    monkeypatch.setattr(topic_growth, "SETTLE_S", 0.0)


def update(link: Link, request: Command) -> None:
    header = CreateTopicHeader.decode(request.ext)
    link.cluster.topics[header.topic][NAMES[link.address]] = header.write_queue_nums
    link.answer(request)


async def test_an_update_that_another_client_overwrites_is_repeated(cluster: Cluster, client: ClusterClient) -> None:
    def overwritten(link: Link, request: Command) -> None:
        update(link, request)
        cluster.topics[TOPIC] = {"broker-a": 3, "broker-b": 3}
        cluster.on[Code.UPDATE_AND_CREATE_TOPIC] = update

    cluster.on[Code.UPDATE_AND_CREATE_TOPIC] = overwritten
    await TopicGrowth(client.admin, client.routes, TOPIC, 10).run()
    assert cluster.topics[TOPIC] == {"broker-a": 5, "broker-b": 5}


async def test_a_broker_to_which_another_client_gave_more_queues_is_not_updated(cluster: Cluster, client: ClusterClient) -> None:
    def grown_elsewhere(link: Link, request: Command) -> None:
        update(link, request)
        cluster.topics[TOPIC]["broker-b"] = 9

    cluster.at[A, Code.UPDATE_AND_CREATE_TOPIC] = grown_elsewhere
    await TopicGrowth(client.admin, client.routes, TOPIC, 10).run()
    assert cluster.topics[TOPIC] == {"broker-a": 5, "broker-b": 9}
    assert [command.code for command in cluster.requests_to[B]].count(Code.UPDATE_AND_CREATE_TOPIC) == 0


async def test_a_topic_with_a_fixed_queue_list_is_not_changed(cluster: Cluster, client: ClusterClient) -> None:
    order = route_body(cluster, TOPIC, orderTopicConf="broker-a:2;broker-b:2")
    cluster.on[Code.GET_ROUTEINFO_BY_TOPIC] = responds_with(order)
    await TopicGrowth(client.admin, client.routes, TOPIC, 4).run()
    with pytest.raises(ClusterError, match="fixed list of 4 queues") as caught:
        await TopicGrowth(client.admin, client.routes, TOPIC, 5).run()
    assert caught.value.failure is Failure.FATAL
    assert not cluster.requests[Code.UPDATE_AND_CREATE_TOPIC]


async def test_a_topic_whose_broker_has_only_slaves_is_not_changed(cluster: Cluster, client: ClusterClient) -> None:
    cluster.brokers["broker-b"] = {1: B}
    with pytest.raises(ClusterError, match="broker-b have no registered master") as caught:
        await TopicGrowth(client.admin, client.routes, TOPIC, 6).run()
    assert caught.value.failure is Failure.RETRY
    assert not cluster.requests[Code.UPDATE_AND_CREATE_TOPIC]


@given(counts=st.lists(st.integers(0, 50), min_size=1, max_size=6), missing=st.integers(1, 200))
@example(counts=[0, 0, 0, 39], missing=114)
def test_the_level_is_the_smallest_that_reaches_the_sum(counts: list[int], missing: int) -> None:
    level = level_for(counts, sum(counts) + missing)
    assert sum(max(count, level) for count in counts) >= sum(counts) + missing
    assert sum(max(count, level - 1) for count in counts) < sum(counts) + missing
