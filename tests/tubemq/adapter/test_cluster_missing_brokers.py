"""The Master does not list the partitions of a Broker that is down: what is known about it keeps the indexes of the others."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from zlib import crc32

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.delivery.checkpoint import Checkpoints
from mqbridge.errors import ClusterError, Failure
from mqbridge.tubemq.adapter import cluster as adapter
from mqbridge.tubemq.adapter.cluster import TubeMQ
from mqbridge.tubemq.adapter.config import TubeMQCluster
from mqbridge.tubemq.adapter.outbound import TubeMQOutbound
from tests.tubemq.client.model import Model
from tests.tubemq.client.quick import shorten_pauses

SPEC = OutboundSpec("demo")


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    """A topic with two partitions at each of two Brokers."""
    made = Model({"demo": 2})
    made.master.at_second["demo"] = 2
    shorten_pauses(monkeypatch)
    monkeypatch.setattr(adapter, "ConnectionPool", lambda **_: made)
    return made


@asynccontextmanager
async def opened(brokers: Iterable[str] = ()) -> AsyncIterator[TubeMQ]:
    cluster = TubeMQ("c", TubeMQCluster(masters=("10.0.0.1",), heartbeat="5ms", brokers=tuple(brokers)))
    await cluster.connect()
    yield cluster
    await cluster.close()


async def names(cluster: TubeMQ) -> list[str]:
    """Return the partitions of an outbound, in the order of their indexes."""
    outbound = await cluster.outbound(SPEC)
    assert isinstance(outbound, TubeMQOutbound)
    await outbound.close()
    return outbound._names


async def test_partitions_are_counted_by_number_first(model: Model) -> None:
    async with opened() as cluster:
        assert await names(cluster) == ["1:0", "2:0", "1:1", "2:1"]
        described = await cluster.describe("demo")
        assert described is not None
        assert described.index_by_partition == {"1:0": 0, "2:0": 1, "1:1": 2, "2:1": 3}
        model.master.topics["demo"] = model.master.at_second["demo"] = 3
        described = await cluster.describe("demo")
        assert described is not None
        assert described.index_by_partition == {"1:0": 0, "2:0": 1, "1:1": 2, "2:1": 3, "1:2": 4, "2:2": 5}


async def test_indexes_stay_when_a_broker_joins_a_target(model: Model) -> None:
    model.master.topics["demo"], model.master.at_second["demo"] = 0, 2
    async with opened() as cluster:
        for expected in (["2:0", "2:1"], ["2:0", "2:1", "1:0", "1:1"]):
            outbound = await cluster.outbound(SPEC)
            assert isinstance(outbound, TubeMQOutbound)
            assert [outbound._names[partition] for partition in outbound.indexed] == expected
            await outbound.close()
            model.master.topics["demo"] = 2
            await cluster._connected_routes.refresh()


async def test_a_key_goes_to_the_partition_that_it_has_in_the_library(model: Model) -> None:
    async with opened() as cluster:
        outbound = await cluster.outbound(SPEC)
        by_broker = ["1:0", "1:1", "2:0", "2:1"]
        for key in (b"a", b"b", b"c", b"d", b"e"):
            assert (await names(cluster))[outbound.partition_of(key)] == by_broker[crc32(key) % 4]
        await outbound.close()


async def test_a_target_is_not_opened_without_a_named_broker(model: Model) -> None:
    model.master.second_is_down = True
    async with opened(["1", "2"]) as cluster:
        described = await cluster.describe("demo")
        assert described is not None
        assert described.index_by_partition == {"1:0": 0, "1:1": 2}
        with pytest.raises(ClusterError, match="lists no partition of topic demo at Broker 2") as caught:
            await cluster.outbound(SPEC)
        assert caught.value.failure is Failure.RETRY
        model.master.second_is_down = False
        await cluster._connected_routes.refresh()
        assert await names(cluster) == ["1:0", "2:0", "1:1", "2:1"]


async def test_a_target_is_not_opened_without_a_broker_that_is_in_the_state(model: Model, tmp_path: Path) -> None:
    for is_down in (False, True):
        model.master.second_is_down = is_down
        checkpoints = Checkpoints(tmp_path / "state.db")
        async with opened() as cluster:
            checkpoints.keep_brokers("c", cluster.known_brokers)
            if is_down:
                with pytest.raises(ClusterError, match=r"at Broker 2. .* with `mqbridge state FILE --forget-broker c/2`"):
                    await cluster.outbound(SPEC)
            else:
                assert len(await names(cluster)) == 4
        await checkpoints.close()
