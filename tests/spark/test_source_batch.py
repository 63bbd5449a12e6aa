"""What a batch read is planned to read, over a cluster in memory."""

from __future__ import annotations

import logging

import pytest

from mqbridge.errors import ClusterError, ConfigError, GapError
from mqbridge.message import Position
from mqbridge.spark.options import Usage
from mqbridge.spark.source.batch_reader import MessageReader
from mqbridge.spark.source.tasks import RangeTask
from tests.spark.fake_cluster import FakeCluster, FakePartition, settings, use_fake_cluster


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Partitions of 100 and 0 packs, with 4 messages of 100 bytes each, the first one from pack 20 on."""
    found = FakeCluster(orders=[FakePartition([4] * 100, first=20), FakePartition()])
    use_fake_cluster(monkeypatch, found)
    return found


async def tasks(**options: str) -> list[RangeTask]:
    return await MessageReader(settings(Usage.BATCH, **options))._plan_tasks()


async def ranges(**options: str) -> list[tuple[Position, Position]]:
    return [(one.begin, one.end) for one in await tasks(**options)]


async def test_a_task_for_each_partition_that_holds_anything() -> None:
    assert await tasks() == [RangeTask(("orders", "0"), (20,), (120,))]


async def test_exact_ends() -> None:
    exact = {"startingOffsets": '{"orders": {"0": 30, "1": -2}}', "endingOffsets": '{"orders": {"0": "40"}}'}
    assert await ranges(**exact) == [((30,), (40,))]
    assert await ranges(startingOffsets='{"orders": {"0": 40}}', endingOffsets='{"orders": {"0": 40}}') == []


@pytest.mark.parametrize(
    ("options", "problem", "otherwise"),
    [
        ({"startingOffsets": '{"orders": {"0": 5}}'}, "at 5, but retention deleted messages: it stores 20 to 120", (20, 120)),
        ({"endingOffsets": '{"orders": {"0": 500}}'}, "at 500, but .*: it stores 20 to 120", (20, 120)),
        ({"startingOffsets": '{"orders": {"0": 500}}'}, "at 500, but .*: it stores 20 to 120", None),
    ],
)
async def test_positions_that_are_not_held(
    options: dict[str, str], problem: str, otherwise: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GapError, match=f"partition '0' of topic 'orders' .*{problem}.*failOnDataLoss"):
        await tasks(**options)
    with caplog.at_level(logging.WARNING):
        found = await ranges(**options, failOnDataLoss="false")
    assert found == ([] if otherwise is None else [((otherwise[0],), (otherwise[1],))])
    assert "reading continues with the stored messages" in caplog.text


async def test_topics_that_are_not_there() -> None:
    with pytest.raises(ClusterError, match="no topic 'missing'"):
        await tasks(subscribe="orders,missing")
    with pytest.raises(ConfigError, match="no topic matches"):
        await tasks(subscribePattern="order")
    with pytest.raises(ConfigError, match="'fake' cannot find positions by time"):
        await tasks(startingTimestamp="5")


async def test_parts_have_about_as_many_messages_as_is_asked_for() -> None:
    """400 messages in 100 packs: how many are in a pack is known from a sample."""
    parts = await tasks(maxRecordsPerPartition="100")
    assert [(one.begin[0], one.end[0], one.is_part) for one in parts] == [
        (20, 45, True), (45, 70, True), (70, 95, True), (95, 120, True),
    ]  # fmt: skip
    assert len(await tasks(minPartitions="7")) == 7
    assert len(await tasks(minPartitions="1000")) == 100


async def test_ranges_have_indexes_and_estimates() -> None:
    (task,) = await tasks(mode="ranges")
    assert (task.index, task.rows, task.size) == (0, 400, 40_000)
