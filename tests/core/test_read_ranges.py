"""Ranges are planned without an event loop."""

from pathlib import Path

import pytest

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.adapter import ADAPTER
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from mqbridge.read_ranges import ReadRange, plan_ranges


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


def test_each_partition_with_messages_is_one_range(config: LogSettings) -> None:
    assert plan_ranges(ADAPTER, config, ["t"]) == [ReadRange("t", "0", (0,), (5,)), ReadRange("t", "2", (0,), (2,))]


def test_begin_and_end_may_be_positions(config: LogSettings) -> None:
    assert plan_ranges(ADAPTER, config, ["t"], {"0": (3,)}, {"2": (1,)}) == [
        ReadRange("t", "0", (3,), (5,)),
        ReadRange("t", "2", (0,), (1,)),
    ]
    assert plan_ranges(ADAPTER, config, ["t"], Start.LATEST) == []


async def test_planning_works_inside_a_running_loop(config: LogSettings) -> None:
    assert len(plan_ranges(ADAPTER, config, ["t"])) == 2


def test_a_missing_topic_is_fatal(config: LogSettings) -> None:
    with pytest.raises(ClusterError, match="the topic 'none'") as raised:
        plan_ranges(ADAPTER, config, ["t", "none"])
    assert raised.value.failure is Failure.FATAL
