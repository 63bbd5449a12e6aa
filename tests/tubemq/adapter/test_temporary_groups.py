"""Requests for bounds leave no partition held at the Broker, and only one temporary group."""

import asyncio
from datetime import UTC
from typing import Any

import pytest
from google.protobuf.message import Message

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, ConnectionLost, Failure, RequestTimeout
from mqbridge.tubemq.adapter import temporary_groups
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.adapter.operations import READER_GROUP_PREFIX
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.wire import rpc
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from mqbridge.tubemq.wire.string_formats import PartitionRef
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import STEP, Model

PARTITIONS = 3


class Cluster(Model):
    """A model that shows which groups its Broker keeps."""

    @property
    def groups(self) -> set[str]:
        """The groups whose offsets the Broker keeps."""
        return {group for group, _, _ in self.broker.confirmed}


@pytest.fixture
def model() -> Cluster:
    made = Cluster({"demo": PARTITIONS})
    for number in range(PARTITIONS):
        for _ in range(2):
            made.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=number, data=b"x", flag=0))
    return made


async def test_all_requests_for_bounds_share_one_group(cluster: TubeMQ, model: Cluster) -> None:
    """Brokers keep every group until it is removed, and a gateway requests bounds at each assignment."""
    for deleted in (0, 0, STEP):
        model.broker.deleted = {("demo", number): deleted for number in range(PARTITIONS)}
        assert set((await cluster.bounds("demo")).values()) == {Bounds((deleted, 0), (2 * STEP, 0))}
    assert not model.broker.owners
    (group,) = model.groups
    assert group.startswith(READER_GROUP_PREFIX)


async def test_concurrent_requests_for_bounds_share_one_group(cluster: TubeMQ, model: Cluster) -> None:
    asked = await asyncio.gather(*(cluster.bounds("demo") for _ in range(5)))
    assert all(found == asked[0] and len(found) == PARTITIONS for found in asked)
    assert not model.broker.owners
    assert len(model.groups) == 1


@pytest.mark.parametrize("fault", ["before", "after", "silent", "refused"])
async def test_a_failed_request_for_bounds_leaves_no_partition_held(cluster: TubeMQ, model: Cluster, fault: str) -> None:
    """Whether the Broker has executed the request or not. A registration that is left over does not disturb the next request."""

    def register(request: b.RegisterRequestC2B) -> Message:
        is_spoilt = (request.partitionId, request.opType) == (1, rpc.OP_REGISTER)
        if is_spoilt and fault == "refused":
            return b.RegisterResponseB2C(success=False, errCode=500, errMsg="no")
        answer = model.broker.register(request) if fault != "before" or not is_spoilt else b.RegisterResponseB2C()
        if is_spoilt:
            raise ConnectionLost("cut") if fault != "silent" else RequestTimeout("silence")
        return answer

    well = model.handlers[rpc.PARTITION_REGISTER]
    model.handlers[rpc.PARTITION_REGISTER] = b.RegisterRequestC2B, register
    with pytest.raises(ClusterError):
        await cluster.bounds("demo")
    assert not model.broker.owners
    model.handlers[rpc.PARTITION_REGISTER] = well
    assert len(await cluster.bounds("demo")) == PARTITIONS
    assert not model.broker.owners


@pytest.mark.parametrize("fault", [ConnectionLost("cut"), RequestTimeout("silence"), None])
async def test_requests_for_bounds_that_fail_create_no_further_group(
    cluster: TubeMQ, model: Cluster, fault: Exception | None
) -> None:
    """The lag is requested every few seconds; the healthy Brokers must not get a new group each time."""

    def register(request: b.RegisterRequestC2B) -> Message:
        if (request.partitionId, request.opType) == (1, rpc.OP_REGISTER):
            if fault is not None:
                raise fault
            return b.RegisterResponseB2C(success=False, errCode=500, errMsg="no")
        return model.broker.register(request)

    model.handlers[rpc.PARTITION_REGISTER] = b.RegisterRequestC2B, register
    for _ in range(5):
        with pytest.raises(ClusterError):
            await cluster.bounds("demo")
    assert not model.broker.owners
    assert len(model.groups) == 1


async def test_an_error_is_raised_after_all_requests_for_bounds_have_ended(
    cluster: TubeMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise closing the cluster after the error would leave requests running."""
    go, done = asyncio.Event(), []

    async def store_range(_: Any, ref: PartitionRef, __: str) -> tuple[int, int]:
        if ref.partition == 1:
            raise ClusterError("no", Failure.REFUSED)
        await go.wait()
        done.append(ref.partition)
        return 0, 0

    monkeypatch.setattr(temporary_groups, "store_range", store_range)
    asking = asyncio.ensure_future(cluster.bounds("demo"))
    await asyncio.sleep(0.01)
    assert not asking.done()
    go.set()
    with pytest.raises(ClusterError, match="no"):
        await asking
    assert done == [0, 2]


async def test_bounds_of_an_occupied_partition_are_requested_with_a_new_group(cluster: TubeMQ, model: Cluster) -> None:
    """A partition that could not be released stays held for half a minute, so the next request uses another group."""
    await cluster.bounds("demo")
    (group,) = model.groups
    model.broker.owners[group, "demo", 1] = "somebody"
    assert len(await cluster.bounds("demo")) == PARTITIONS
    assert model.broker.owners == {(group, "demo", 1): "somebody"}


@pytest.mark.parametrize("iterations", range(1, 3 * PARTITIONS))
async def test_a_cancelled_request_for_bounds_leaves_no_partition_held(cluster: TubeMQ, model: Cluster, iterations: int) -> None:
    asking = asyncio.ensure_future(cluster.bounds("demo"))
    await until(lambda: model.faults.counts[rpc.PARTITION_REGISTER] >= min(iterations, PARTITIONS))
    for _ in range(iterations):
        await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert not model.broker.owners
    assert len(await asyncio.wait_for(cluster.bounds("demo"), PATIENCE_S)) == PARTITIONS
    assert not model.broker.owners


async def test_closing_repeats_a_removal_of_temporary_groups_that_failed() -> None:
    removals: list[str] = []

    class Admin:
        """Refuses the first removal."""

        async def remove_idle_groups(self, prefix: str) -> None:
            removals.append(prefix)
            if len(removals) == 1:
                raise ClusterError("no", Failure.REFUSED)

    masters = Masters([], ConnectionPool())  # no request is sent
    admin: Any = Admin()
    reader = temporary_groups.TemporaryGroups(masters, admin, UTC)
    await reader.bounds_of([])
    for _ in range(2):  # as when the cluster is closed; nothing is left for the second call
        await reader.sweep()
    assert removals == [READER_GROUP_PREFIX] * 2
