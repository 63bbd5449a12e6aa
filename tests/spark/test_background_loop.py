"""Clusters that the tasks of one Spark process share."""

import pytest

from mqbridge.errors import Unreachable
from mqbridge.spark.background_loop import BackgroundLoop
from mqbridge.spark.cluster_ref import ClusterRef
from tests.spark.fake_cluster import REF


class ClusterWithFirstFailure:
    """The first instance cannot connect."""

    name = "down"

    def __init__(self, instances: list["ClusterWithFirstFailure"]) -> None:
        self.is_first = not instances
        self.is_closed = False
        instances.append(self)

    async def connect(self) -> None:
        if self.is_first:
            raise Unreachable("down")

    async def close(self) -> None:
        self.is_closed = True


def test_a_cluster_that_could_not_connect_is_closed_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    instances: list[ClusterWithFirstFailure] = []
    monkeypatch.setattr(ClusterRef, "make_cluster", lambda _: ClusterWithFirstFailure(instances))
    loop = BackgroundLoop()

    async def connect(loop: BackgroundLoop) -> object:
        async with loop.cluster(REF) as cluster:
            return cluster

    with pytest.raises(Unreachable):
        loop.run(connect(loop), 60)
    assert loop.run(connect(loop), 60) is instances[1]
    assert [cluster.is_closed for cluster in instances] == [True, False]
