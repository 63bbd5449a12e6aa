"""Changes between two requests of a source: partitions that are deleted, return or grow, and targets that do not exist yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, GapError, Unreachable
from mqbridge.message import Batch, Position
from mqbridge.net import backoff
from mqbridge.spark.mirror.stop import StopFile
from mqbridge.spark.options import Usage
from mqbridge.spark.source import stream_reader
from mqbridge.spark.source.batch_reader import MessageReader
from mqbridge.spark.source.cluster_queries import ClusterQueries
from mqbridge.spark.source.planner import StreamPlanner
from mqbridge.spark.source.read import RangeReader
from mqbridge.spark.source.stream_reader import MessageStreamReader
from mqbridge.spark.source.tasks import RangeTask, plan_tasks
from tests.spark.fake_cluster import FakeCluster, FakePartition, settings, use_fake_cluster

A, B = ("orders", "0"), ("orders", "1")
ALL = ReadAllAvailable()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Two partitions of 100 and 10 packs."""
    cluster = FakeCluster(orders=[FakePartition([4] * 100), FakePartition([4] * 10)])
    use_fake_cluster(monkeypatch, cluster)
    monkeypatch.setattr(backoff.Backoff, "delay", lambda _: 0.01)
    return cluster


async def read(cluster: FakeCluster, begin: Position, end: Position, **options: str) -> list[int]:
    """Read a range of partition B, and return the pack of each message."""
    reader = RangeReader(settings(**options), RangeTask(B, begin, end), lambda: nullcontext(cluster))
    return [message.position[0] async for batch in reader.batches() for message in batch.messages]


# --- deleted and missing partitions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_whole_topic", [True, False])
async def test_a_partition_that_is_deleted_before_its_task_runs_is_a_loss(cluster: FakeCluster, is_whole_topic: bool) -> None:
    """Otherwise, a query with failOnDataLoss=false would repeat the batch forever."""
    cluster.partitions_by_topic.clear() if is_whole_topic else cluster.partitions_by_topic["orders"].pop(1)
    with pytest.raises(GapError, match=r"partition '1' .* from 0 to 10 failed: .* does not exist any more.*failOnDataLoss"):
        await read(cluster, (0,), (10,), retryTimeout="100ms")
    assert await read(cluster, (0,), (10,), retryTimeout="100ms", failOnDataLoss="false") == []


@pytest.mark.parametrize("is_whole_topic", [True, False])
async def test_a_partition_that_is_deleted_before_its_ranges_are_planned_is_a_loss(
    cluster: FakeCluster, is_whole_topic: bool
) -> None:
    cluster.partitions_by_topic["bills"] = {0: FakePartition([4] * 10)}
    cluster.partitions_by_topic.pop("orders") if is_whole_topic else cluster.partitions_by_topic["orders"].pop(1)
    strict, lenient = (settings(retryTimeout="100ms", failOnDataLoss=word, mode="ranges") for word in ("true", "false"))
    ranges = {B: ((0,), (10,)), ("bills", "0"): ((0,), (10,))}
    with pytest.raises(GapError, match=r"partition '1' of topic 'orders' .* does not exist any more"):
        await plan_tasks(ClusterQueries(strict), strict, ranges)
    assert [task.key for task in await plan_tasks(ClusterQueries(lenient), lenient, ranges)] == [("bills", "0")]


async def test_a_partition_that_returns_during_the_wait_is_planned(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = cluster.partitions_by_topic.pop("orders")

    def delay(_: backoff.Backoff) -> float:
        cluster.partitions_by_topic["orders"] = removed
        return 0.0

    monkeypatch.setattr(backoff.Backoff, "delay", delay)
    ranges_mode = settings(mode="ranges")
    assert [task.index for task in await plan_tasks(ClusterQueries(ranges_mode), ranges_mode, {B: ((0,), (10,))})] == [1]


async def test_a_range_is_read_completely_even_if_each_read_ends_early(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_read = FakeCluster.read
    monkeypatch.setattr(
        FakeCluster,
        "read",
        lambda self, topic, name, begin, end=None: real_read(self, topic, name, begin, min(end, (begin[0] + 2,))),
    )
    assert len(await read(cluster, (0,), (10,))) == 40


class TwoNumberCluster(FakeCluster):
    """A cluster whose positions have two numbers, so that they are not dense."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        all_bounds = await super().bounds(topic)
        return {name: Bounds((*bounds.first, 0), (*bounds.next, 0)) for name, bounds in all_bounds.items()}

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        async for batch in super().read(topic, partition, begin[:1], None if end is None else end[:1]):
            first, following = (*batch.first, 0), (*batch.next, 0)
            yield Batch(batch.partition, batch.messages, count=batch.count, size=batch.size, first=first, next=following)


async def test_a_partition_that_ends_before_the_range_is_a_loss_with_positions_of_two_numbers() -> None:
    """A killed broker loses the messages in its memory, and gives their positions to later messages, which a batch would skip."""
    cluster = TwoNumberCluster(orders=[FakePartition(), FakePartition([1] * 20)])
    assert len(await read(cluster, (0, 0), (20, 0))) == 20
    with pytest.raises(GapError, match="now ends before 25:0"):
        await read(cluster, (0, 0), (25, 0))
    assert len(await read(cluster, (0, 0), (25, 0), failOnDataLoss="false")) == 20


async def test_a_partition_that_retention_emptied_is_a_loss() -> None:
    """A read in Pulsar then yields no message and raises no error."""
    cluster = TwoNumberCluster(orders=[FakePartition(), FakePartition()])
    with pytest.raises(GapError, match="is empty now"):
        await read(cluster, (0, 0), (20, 0))
    assert await read(cluster, (0, 0), (20, 0), failOnDataLoss="false") == []


# --- where queries begin -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
async def test_a_time_after_the_end_of_a_busy_topic_is_no_loss(cluster: FakeCluster, fail_on_data_loss: str) -> None:
    """Messages are stored between the request for bounds and the request for positions by time."""

    class Operations:
        async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
            cluster.partitions_by_topic["orders"][0].packs += [4] * 5
            return {str(index): (partition.next,) for index, partition in cluster.partitions_by_topic["orders"].items()}

    cluster.operations = Operations()  # type: ignore[assignment]
    planner = StreamPlanner(settings(startingTimestamp="4102444800000", failOnDataLoss=fail_on_data_loss))
    start = await planner.initial_offsets()
    assert start == {A: (105,), B: (10,)}
    assert await planner.end_offsets(start, ALL) == start


class BackgroundLoop:
    """Replaces the background loop: runs each coroutine on a new event loop in another thread."""

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, coroutine).result(timeout_s)


def test_a_repeated_first_batch_includes_a_partition_that_was_missing_at_the_restart(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint contains where the first batch began."""
    monkeypatch.setattr(stream_reader, "background_loop", BackgroundLoop)
    source_settings = settings(startingOffsets="earliest", retryTimeout="200ms")
    first = MessageStreamReader(source_settings)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    planned = first.partitions(start, end)
    assert len(planned) == 2
    removed = cluster.partitions_by_topic["orders"].pop(1)
    second = MessageStreamReader(source_settings)
    second_start = second.initialOffset()
    assert second_start["topics"] == {"orders": {"0": "0"}}
    with pytest.raises(GapError, match=r"partition '1' of topic 'orders' .* does not exist any more"):
        second.partitions(second_start, end)
    cluster.partitions_by_topic["orders"][1] = removed
    assert second.partitions(second_start, end) == planned


async def test_a_batch_read_accepts_a_position_before_the_first_stored_one_if_no_message_was_between(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in streams: users may pass the offsets of a stream to a batch read."""
    cluster.partitions_by_topic["orders"][1].first = 4
    real_read = FakeCluster.read
    monkeypatch.setattr(
        FakeCluster, "read", lambda self, topic, name, begin, end=None: real_read(self, topic, name, max(begin, (4,)), end)
    )
    tasks = await MessageReader(settings(Usage.BATCH, startingOffsets='{"orders": {"1": 3}}'))._plan_tasks()
    assert RangeTask(B, (3,), (14,)) in tasks


# --- targets that do not exist ---------------------------------------------------------------------------------------


class FakeTargetCreator:
    """Stands in for `NewTargetCreator`, and reports some targets as missing."""

    def __init__(self, *missing: tuple[str, str]) -> None:
        self.missing = frozenset(missing)

    async def create(self, new: Any) -> frozenset[tuple[str, str]]:
        return self.missing & frozenset(new)


async def test_a_partition_whose_target_is_created_late_begins_at_its_initial_offset(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(metadataInterval="0ms"))
    planner._target_creator = targets = FakeTargetCreator(B)  # type: ignore[assignment]
    start = await planner.initial_offsets()
    assert start == {A: (100,)}
    targets.missing = frozenset()
    cluster.partitions_by_topic["orders"][1].packs += [4]
    assert await planner.end_offsets(start, ALL) == start, "the empty first batch writes the initial offsets into the checkpoint"
    assert await planner.end_offsets(start, ALL) == {A: (100,), B: (10,)}, (
        "its initial offset is the latest, as for the other partition"
    )


async def test_a_query_with_available_now_waits_for_the_target_of_each_partition(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(metadataInterval="0ms", startingOffsets="earliest", retryTimeout="100ms"))
    planner._target_creator = targets = FakeTargetCreator(B)  # type: ignore[assignment]
    await planner.freeze()
    end = await planner.end_offsets(await planner.initial_offsets(), ALL)
    assert end == {A: (100,)}
    with pytest.raises(ClusterError, match=r"the targets of partition '1' of topic 'orders' could not be created within 0\.1 s"):
        await planner.end_offsets(end, ALL)
    targets.missing = frozenset()
    end = await planner.end_offsets(end, ALL)
    assert end == {A: (100,), B: (0,)}
    assert await planner.end_offsets(end, ALL) == {A: (100,), B: (10,)}


# --- assigned partitions -------------------------------------------------------------------------------------


async def test_an_assigned_index_means_the_same_partition_during_the_whole_query(cluster: FakeCluster) -> None:
    """While a broker restarts, its partitions are missing in the topic, and the other partitions have other indexes."""
    assigned_settings = settings(
        assign='{"orders": [1]}', startingOffsets="earliest", metadataInterval="0ms", newTopicsInterval="0ms"
    )
    planner = StreamPlanner(assigned_settings)
    start = await planner.initial_offsets()
    removed = cluster.partitions_by_topic["orders"].pop(1)

    async def restore_partition() -> None:
        await asyncio.sleep(0.05)
        cluster.partitions_by_topic["orders"][1] = removed

    restoring = asyncio.create_task(restore_partition())
    assert await planner.end_offsets(start, ALL) == {B: (10,)}
    await restoring


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty_packs", [0, 20, 5000])
async def test_a_limit_is_obeyed_if_the_first_units_contain_no_message(cluster: FakeCluster, empty_packs: int) -> None:
    """Partitions of TubeMQ share an index file, so thousands of consecutive entries may belong to other partitions."""
    cluster.partitions_by_topic["orders"] = {0: FakePartition([0] * empty_packs + [4] * 10_000)}
    planner = StreamPlanner(settings(startingOffsets="earliest", maxBytesPerTrigger="40000"))
    start = await planner.initial_offsets()
    end = await planner.end_offsets(start, ReadMaxBytes(40_000))
    assert 50 <= end[A][0] <= 110


def test_a_stop_request_is_obeyed_while_the_source_is_unreachable(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A mirror retries requests to its source as long as its route demands, which may be forever."""
    monkeypatch.setattr(stream_reader, "background_loop", BackgroundLoop)
    stop_file = StopFile(tmp_path / "stop")
    reader = MessageStreamReader(settings(startingOffsets="earliest", retryTimeout="20s", stopFile=str(stop_file.path)))
    start = reader.initialOffset()
    cluster.errors = [Unreachable("down")] * 100_000
    reader._planner.state._bounds_time = None
    with ThreadPoolExecutor(1) as thread:
        latest_offset = thread.submit(reader.latestOffset, start, ALL)
        with pytest.raises(TimeoutError):
            latest_offset.result(0.2)
        stop_file.request()
        assert latest_offset.result(5) == start
    assert stop_file.is_confirmed
