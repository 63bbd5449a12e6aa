"""Read-only partitions, listed to consumers only: their Broker accepts subscriptions to the topic, but no messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Inbound, InboundLane, InboundSpec
from mqbridge.adapter.reading import read
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.errors import ClusterError, Failure
from mqbridge.net.tasks import cancel, spawn
from mqbridge.routing.partitions import partitions_needed
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.wire.pb import broker_pb2 as b
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.tubemq.client.model import STEP, Model


@pytest.fixture
def model() -> Model:
    """A topic of four partitions, two of which are listed to producers."""
    made = Model({"demo": 4})
    made.master.published["demo"] = 2
    return made


@pytest_asyncio.fixture
async def lanes(cluster: TubeMQ) -> AsyncIterator[dict[str, InboundLane]]:
    """The lanes of a member that holds all four partitions, by partition name."""
    inbound: Inbound = await cluster.inbound(InboundSpec(("demo",), "g"))
    found: dict[str, InboundLane] = {}

    async def collect() -> None:
        async for lane in inbound.lanes():
            found[lane.partition.name] = lane

    collecting = spawn(collect(), "test lanes", log_errors=False)
    await until(lambda: len(found) == 4 or collecting.done())
    if collecting.done():
        await collecting
    yield found
    await cancel(collecting)
    await inbound.close()


def store(model: Model, partition: int, body: bytes) -> None:
    model.broker.send(b.SendMessageRequestP2B(topicName="demo", partitionId=partition, data=body, flag=0))


async def test_read_only_partitions_become_lanes(model: Model, cluster: TubeMQ, lanes: dict[str, InboundLane]) -> None:
    assert {name: lane.partition.index for name, lane in lanes.items()} == {"1:0": 0, "1:1": 1, "1:2": 2, "1:3": 3}
    store(model, 3, b"to be read")
    batch = await asyncio.wait_for(lanes["1:3"].receive(), PATIENCE_S)
    assert [message.payload for message in batch.messages] == [b"to be read"]
    described = await cluster.describe("demo")
    assert described is not None
    assert described.partitions == ("1:0", "1:1"), "nothing is sent there"
    assert described.read_only == {"1:2": 2, "1:3": 3}
    assert partitions_needed(PartitionRule(by="identity"), described) == 4, "a target needs a partition for each"


async def test_read_only_partitions_have_bounds_and_can_be_read(
    model: Model, cluster: TubeMQ, lanes: dict[str, InboundLane]
) -> None:
    store(model, 3, b"to be read")
    assert (await cluster.bounds("demo"))["1:3"].next == (STEP, 0)
    async with aclosing(read(cluster, "demo", "1:3", (0, 0), (STEP, 0))) as batches:
        assert [message.payload async for batch in batches for message in batch.messages] == [b"to be read"]


async def test_a_partition_that_accepts_messages_again_is_no_longer_read_only(
    model: Model, cluster: TubeMQ, lanes: dict[str, InboundLane]
) -> None:
    model.master.published["demo"] = 4
    route = await cluster._connected_routes.topic("demo")
    await until(lambda: list(route.partitions) == list(route.readable) == ["1:0", "1:1", "1:2", "1:3"])
    described = await cluster.describe("demo")
    assert described is not None
    assert described.index_by_partition == {"1:0": 0, "1:1": 1, "1:2": 2, "1:3": 3}


async def test_reading_an_unlisted_partition_is_a_fatal_error(cluster: TubeMQ) -> None:
    with pytest.raises(ClusterError, match="no partition 1:7") as error:
        await anext(read(cluster, "demo", "1:7", (0, 0)))
    assert error.value.failure is Failure.FATAL
