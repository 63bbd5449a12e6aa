"""The tasks that a batch read plans, with an in-memory cluster."""

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
    """Two partitions: one with the packs 20 to 119, which have 4 messages of 100 bytes each, and an empty one."""
    cluster = FakeCluster(orders=[FakePartition([4] * 100, first=20), FakePartition()])
    use_fake_cluster(monkeypatch, cluster)
    return cluster


async def tasks(**options: str) -> list[RangeTask]:
    return await MessageReader(settings(Usage.BATCH, **options))._plan_tasks()


async def ranges(**options: str) -> list[tuple[Position, Position]]:
    return [(task.begin, task.end) for task in await tasks(**options)]


async def test_each_partition_with_messages_has_a_task() -> None:
    assert await tasks() == [RangeTask(("orders", "0"), (20,), (120,))]


async def test_tasks_begin_and_end_at_given_positions() -> None:
    exact = {"startingOffsets": '{"orders": {"0": 30, "1": -2}}', "endingOffsets": '{"orders": {"0": "40"}}'}
    assert await ranges(**exact) == [((30,), (40,))]
    assert await ranges(startingOffsets='{"orders": {"0": 40}}', endingOffsets='{"orders": {"0": 40}}') == []


@pytest.mark.parametrize(
    ("options", "problem", "stored_range"),
    [
        ({"startingOffsets": '{"orders": {"0": 5}}'}, "at 5, but retention deleted messages: it stores 20 to 120", (20, 120)),
        ({"endingOffsets": '{"orders": {"0": 500}}'}, "at 500, but .*: it stores 20 to 120", (20, 120)),
        ({"startingOffsets": '{"orders": {"0": 500}}'}, "at 500, but .*: it stores 20 to 120", None),
    ],
)
async def test_positions_that_are_not_stored_are_a_loss_or_replaced(
    options: dict[str, str], problem: str, stored_range: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(GapError, match=f"partition '0' of topic 'orders' .*{problem}.*failOnDataLoss"):
        await tasks(**options)
    with caplog.at_level(logging.WARNING):
        planned = await ranges(**options, failOnDataLoss="false")
    assert planned == ([] if stored_range is None else [((stored_range[0],), (stored_range[1],))])
    assert "reading continues with the stored messages" in caplog.text


async def test_missing_topics_and_unsupported_options_are_errors() -> None:
    with pytest.raises(ClusterError, match="no topic 'missing'"):
        await tasks(subscribe="orders,missing")
    with pytest.raises(ConfigError, match="no topic matches"):
        await tasks(subscribePattern="order")
    with pytest.raises(ConfigError, match="'fake' cannot find positions by time"):
        await tasks(startingTimestamp="5")


async def test_ranges_are_split_into_tasks_of_about_the_given_size() -> None:
    """400 messages in 100 packs: a sample shows how many messages a pack has."""
    parts = await tasks(maxRecordsPerPartition="100")
    assert [(task.begin[0], task.end[0], task.is_part) for task in parts] == [
        (20, 45, True), (45, 70, True), (70, 95, True), (95, 120, True),
    ]  # fmt: skip
    assert len(await tasks(minPartitions="7")) == 7
    assert len(await tasks(minPartitions="1000")) == 100


async def test_tasks_of_ranges_have_a_partition_index_and_estimates() -> None:
    (task,) = await tasks(mode="ranges")
    assert (task.index, task.rows, task.size) == (0, 400, 40_000)
