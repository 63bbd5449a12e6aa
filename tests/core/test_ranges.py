"""Planning a reading without an event loop."""

from pathlib import Path

import pytest

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.adapter.cluster import ADAPTER
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from mqbridge.ranges import Range, plan


@pytest.fixture
async def config(tmp_path: Path) -> LogSettings:
    """A log with topic t, of whose three partitions the first holds five messages, the last two."""
    config = LogSettings(path=tmp_path / "log.db")
    cluster = ADAPTER.make_cluster("log", config)
    await cluster.connect()
    await cluster.create("t", 3)
    outbound = await cluster.outbound(OutboundSpec("t"))
    for partition, count in ((0, 5), (2, 2)):
        assert not (await outbound.send(partition, Share(Batch.of([Message(b"x")] * count)))).failures
    await outbound.close()
    await cluster.close()
    return config


def test_every_partition_that_holds_something_is_a_range(config: LogSettings) -> None:
    assert plan(ADAPTER, config, ["t"]) == [Range("t", "0", (0,), (5,)), Range("t", "2", (0,), (2,))]


def test_ends_may_be_positions(config: LogSettings) -> None:
    assert plan(ADAPTER, config, ["t"], {"0": (3,)}, {"2": (1,)}) == [Range("t", "0", (3,), (5,)), Range("t", "2", (0,), (1,))]
    assert plan(ADAPTER, config, ["t"], Start.LATEST) == []


async def test_it_may_be_called_where_a_loop_runs(config: LogSettings) -> None:
    assert len(plan(ADAPTER, config, ["t"])) == 2


def test_a_missing_topic(config: LogSettings) -> None:
    with pytest.raises(ClusterError, match="no topic 'none'") as raised:
        plan(ADAPTER, config, ["t", "none"])
    assert raised.value.failure is Failure.FATAL
