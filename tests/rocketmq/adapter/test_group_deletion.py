"""A group is deleted only by what the Brokers know of it in this topic, and only while all Brokers run that may know of it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.adapter.cluster import RocketMQ
from mqbridge.rocketmq.adapter.group_deletion import NO_OFFSET
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.routes import TopicList
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.command import Command
from tests.rocketmq.client.broker import Cluster, Link, cluster, success
from tests.rocketmq.client.groups import Groups

__all__ = ["cluster"]

HERE, THERE = Queue("T", "broker-a", 0), Queue("other", "broker-b", 0)


@pytest.fixture
def groups(cluster: Cluster) -> Groups:
    """Brokers with two topics, each at one of them."""
    groups = Groups(cluster)
    cluster.topics |= {"T": {"broker-a": 1}, "other": {"broker-b": 1}}

    def topics_of(link: Link, request: Command) -> None:
        topics = {queue.topic for group, queue in groups.offsets if group == request.ext["group"]}
        link.answer(request, body=TopicList(tuple(sorted(topics))).encode())

    cluster.on[Code.QUERY_TOPICS_BY_CONSUMER] = topics_of
    cluster.on[Code.DELETE_SUBSCRIPTIONGROUP] = success
    return groups


@pytest_asyncio.fixture
async def rocket(cluster: Cluster, groups: Groups) -> AsyncIterator[RocketMQ]:
    rocket = ADAPTER.make_cluster("r", ADAPTER.cluster_model(name_servers="ns:9876", brokers="broker-a,broker-b"))
    assert isinstance(rocket, RocketMQ)
    await rocket.connect()
    yield rocket
    await rocket.close()


def is_untouched(cluster: Cluster) -> bool:
    """Return True if no group was deleted, and no offset changed."""
    return not cluster.requests[Code.DELETE_SUBSCRIPTIONGROUP] and not cluster.requests[Code.UPDATE_CONSUMER_OFFSET]


async def test_a_group_that_has_read_only_another_topic_stays(cluster: Cluster, groups: Groups, rocket: RocketMQ) -> None:
    groups.offsets["G", THERE] = 5
    await rocket.operations.delete_group("T", "G")  # type: ignore[attr-defined]
    assert is_untouched(cluster)


async def test_a_group_without_offsets_stays(cluster: Cluster, groups: Groups, rocket: RocketMQ) -> None:
    """It may be made for a member to come, or its members store their offsets themselves."""
    cluster.topics["%RETRY%G"] = {"broker-a": 1}
    await rocket.operations.delete_group("T", "G")  # type: ignore[attr-defined]
    assert is_untouched(cluster)
    assert not cluster.requests[Code.DELETE_TOPIC_IN_BROKER]


async def test_a_group_that_reads_another_topic_loses_its_offsets_here(
    cluster: Cluster, groups: Groups, rocket: RocketMQ
) -> None:
    groups.offsets |= {("G", HERE): 3, ("G", THERE): 5}
    await rocket.operations.delete_group("T", "G")  # type: ignore[attr-defined]
    assert groups.offsets == {("G", HERE): NO_OFFSET, ("G", THERE): 5}
    assert not cluster.requests[Code.DELETE_SUBSCRIPTIONGROUP]


async def test_a_group_that_reads_nothing_else_is_deleted(cluster: Cluster, groups: Groups, rocket: RocketMQ) -> None:
    groups.offsets["G", HERE] = 3
    await rocket.operations.delete_group("T", "G")  # type: ignore[attr-defined]
    assert len(cluster.requests[Code.DELETE_SUBSCRIPTIONGROUP]) == 2, "one at each Broker"


@pytest.mark.parametrize("down", ["broker-a", "broker-b"])
async def test_a_group_stays_while_a_broker_that_may_know_of_it_is_down(
    cluster: Cluster, groups: Groups, rocket: RocketMQ, down: str
) -> None:
    """Its other topics, or a part of its offsets in this one, would not be seen."""
    cluster.topics["T"]["broker-b" if down == "broker-a" else "broker-a"] = 1
    groups.offsets |= {("G", HERE): 3, ("G", THERE): 5}
    cluster.down.add(down)
    with pytest.raises(ClusterError, match=f"'G' is not deleted now: no master of broker {down}") as raised:
        await rocket.operations.delete_group("T", "G")  # type: ignore[attr-defined]
    assert raised.value.failure is Failure.RETRY
    assert is_untouched(cluster)
