"""A topic that the Master does not list to producers exists if the Master accepts a group for it, and is missing otherwise."""

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.client.consumer.topic_probe import PROBE_GROUP_PREFIX
from tests.tubemq.client.model import Model


@pytest.fixture
def model() -> Model:
    """A Master that has just started: it knows the topic, but no Broker has reported the topic yet."""
    made = Model({"demo": 4})
    made.master.published["demo"] = 0
    return made


async def test_a_topic_that_no_broker_has_reported_yet_is_not_missing(cluster: TubeMQ, model: Model) -> None:
    with pytest.raises(ClusterError, match="knows topic 'demo', but no Broker accepts messages for it now") as caught:
        await cluster.describe("demo")
    assert caught.value.failure is Failure.RETRY
    model.master.published["demo"] = 4
    found = await cluster.describe("demo")
    assert found is not None
    assert len(found.partitions) == 4


async def test_a_topic_that_the_master_does_not_know_is_missing(cluster: TubeMQ) -> None:
    assert await cluster.describe("other") is None


async def test_a_topic_probe_leaves_its_group(cluster: TubeMQ, model: Model) -> None:
    with pytest.raises(ClusterError):
        await cluster.describe("demo")
    groups = {group: members for group, members in model.master.members.items() if group.startswith(PROBE_GROUP_PREFIX)}
    assert len(groups) == 1
    assert not any(groups.values())
