"""What happens to a source between two questions: partitions that go, come back or grow, and targets that are not there."""

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
    found = FakeCluster(orders=[FakePartition([4] * 100), FakePartition([4] * 10)])
    use_fake_cluster(monkeypatch, found)
    monkeypatch.setattr(backoff.Backoff, "delay", lambda _: 0.01)
    return found


async def read(cluster: FakeCluster, begin: Position, end: Position, **options: str) -> list[int]:
    reading = RangeReader(settings(**options), RangeTask(B, begin, end), lambda: nullcontext(cluster))
    return [message.position[0] async for batch in reading.batches() for message in batch.messages]


# --- partitions that are gone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_whole_topic", [True, False])
async def test_a_partition_that_was_deleted_before_its_task_ran_is_a_loss(cluster: FakeCluster, is_whole_topic: bool) -> None:
    """Without this a query that may go on without it would repeat the batch for ever."""
    cluster.partitions_by_topic.clear() if is_whole_topic else cluster.partitions_by_topic["orders"].pop(1)
    with pytest.raises(GapError, match=r"partition '1' .* from 0 to 10 failed: .* does not exist any more.*failOnDataLoss"):
        await read(cluster, (0,), (10,), retryTimeout="100ms")
    assert await read(cluster, (0,), (10,), retryTimeout="100ms", failOnDataLoss="false") == []


@pytest.mark.parametrize("is_whole_topic", [True, False])
async def test_a_partition_that_was_deleted_before_its_ranges_were_planned(cluster: FakeCluster, is_whole_topic: bool) -> None:
    cluster.partitions_by_topic["bills"] = {0: FakePartition([4] * 10)}
    cluster.partitions_by_topic.pop("orders") if is_whole_topic else cluster.partitions_by_topic["orders"].pop(1)
    strict, lenient = (settings(retryTimeout="100ms", failOnDataLoss=word, mode="ranges") for word in ("true", "false"))
    ranges = {B: ((0,), (10,)), ("bills", "0"): ((0,), (10,))}
    with pytest.raises(GapError, match=r"partition '1' of topic 'orders' .* does not exist any more"):
        await plan_tasks(ClusterQueries(strict), strict, ranges)
    assert [task.key for task in await plan_tasks(ClusterQueries(lenient), lenient, ranges)] == [("bills", "0")]


async def test_a_partition_that_comes_back_is_planned(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = cluster.partitions_by_topic.pop("orders")

    def delay(_: backoff.Backoff) -> float:
        cluster.partitions_by_topic["orders"] = gone
        return 0.0

    monkeypatch.setattr(backoff.Backoff, "delay", delay)
    made = settings(mode="ranges")
    assert [task.index for task in await plan_tasks(ClusterQueries(made), made, {B: ((0,), (10,))})] == [1]


async def test_a_range_is_read_to_its_end_however_often_it_ends_early(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = FakeCluster.read
    monkeypatch.setattr(
        FakeCluster,
        "read",
        lambda self, topic, name, begin, end=None: real(self, topic, name, begin, min(end, (begin[0] + 2,))),
    )
    assert len(await read(cluster, (0,), (10,))) == 40


class Sparse(FakeCluster):
    """Its positions have two parts."""

    async def bounds(self, topic: str) -> Mapping[str, Bounds]:
        return {name: Bounds((*one.first, 0), (*one.next, 0)) for name, one in (await super().bounds(topic)).items()}

    async def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        async for one in super().read(topic, partition, begin[:1], None if end is None else end[:1]):
            first, following = (*one.first, 0), (*one.next, 0)
            yield Batch(one.partition, one.messages, count=one.count, size=one.size, first=first, next=following)


async def test_a_partition_that_went_back_is_a_loss_wherever_positions_have_several_parts() -> None:
    """A broker that was killed gives the positions of what it held in memory to what comes then: a batch would leave that out."""
    cluster = Sparse(orders=[FakePartition(), FakePartition([1] * 20)])
    assert len(await read(cluster, (0, 0), (20, 0))) == 20
    with pytest.raises(GapError, match="the partition ends before 25:0 now"):
        await read(cluster, (0, 0), (25, 0))
    assert len(await read(cluster, (0, 0), (25, 0), failOnDataLoss="false")) == 20


async def test_a_partition_of_which_retention_left_nothing_is_a_loss_too() -> None:
    """Pulsar's readers then find nothing, and no gap either."""
    cluster = Sparse(orders=[FakePartition(), FakePartition()])
    with pytest.raises(GapError, match="the partition is empty now"):
        await read(cluster, (0, 0), (20, 0))
    assert await read(cluster, (0, 0), (20, 0), failOnDataLoss="false") == []


# --- beginnings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", ["true", "false"])
async def test_a_time_behind_the_end_of_a_busy_topic_is_no_loss(cluster: FakeCluster, fails: str) -> None:
    """More comes between the question for bounds and the one for the time."""

    class Operations:
        async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
            cluster.partitions_by_topic["orders"][0].packs += [4] * 5
            return {str(name): (one.next,) for name, one in cluster.partitions_by_topic["orders"].items()}

    cluster.operations = Operations()  # type: ignore[assignment]
    planner = StreamPlanner(settings(startingTimestamp="4102444800000", failOnDataLoss=fails))
    start = await planner.initial_offsets()
    assert start == {A: (105,), B: (10,)}
    assert await planner.end_offsets(start, ALL) == start


class BackgroundLoop:
    """Runs coroutines on a loop of their own, as the background loop does."""

    def run(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, coroutine).result(timeout_s)


def test_a_first_batch_that_is_repeated_while_a_partition_is_missing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning is in no checkpoint."""
    monkeypatch.setattr(stream_reader, "background_loop", BackgroundLoop)
    made = settings(startingOffsets="earliest", retryTimeout="200ms")
    first = MessageStreamReader(made)
    start = first.initialOffset()
    end = first.latestOffset(start, ALL)
    planned = first.partitions(start, end)
    assert len(planned) == 2
    gone = cluster.partitions_by_topic["orders"].pop(1)
    second = MessageStreamReader(made)
    again = second.initialOffset()
    assert again["topics"] == {"orders": {"0": "0"}}
    with pytest.raises(GapError, match=r"partition '1' of topic 'orders' .* does not exist any more"):
        second.partitions(again, end)
    cluster.partitions_by_topic["orders"][1] = gone
    assert second.partitions(again, end) == planned


async def test_a_position_before_a_deleted_part_of_the_store_that_was_read_is_no_loss_in_a_batch(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in streams: the offsets of a stream may be given to a batch read."""
    cluster.partitions_by_topic["orders"][1].first = 4
    real = FakeCluster.read
    monkeypatch.setattr(
        FakeCluster, "read", lambda self, topic, name, begin, end=None: real(self, topic, name, max(begin, (4,)), end)
    )
    tasks = await MessageReader(settings(Usage.BATCH, startingOffsets='{"orders": {"1": 3}}'))._plan_tasks()
    assert RangeTask(B, (3,), (14,)) in tasks


# --- targets that are not there ---------------------------------------------------------------------------------------


class FakeTargetCreator:
    """Stands in for `NewTargetCreator`, and reports some targets as missing."""

    def __init__(self, *missing: tuple[str, str]) -> None:
        self.missing = frozenset(missing)

    async def create(self, new: Any) -> frozenset[tuple[str, str]]:
        return self.missing & frozenset(new)


async def test_a_partition_whose_target_is_made_late_begins_where_the_query_began(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(metadataInterval="0ms"))
    planner._target_creator = targets = FakeTargetCreator(B)  # type: ignore[assignment]
    start = await planner.initial_offsets()
    assert start == {A: (100,)}
    targets.missing = frozenset()
    cluster.partitions_by_topic["orders"][1].packs += [4]
    assert await planner.end_offsets(start, ALL) == start, "brings the beginning into the checkpoint"
    assert await planner.end_offsets(start, ALL) == {A: (100,), B: (10,)}, "the latest, as for the others"


async def test_a_query_of_what_is_there_now_does_not_end_without_it(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(metadataInterval="0ms", startingOffsets="earliest", retryTimeout="100ms"))
    planner._target_creator = targets = FakeTargetCreator(B)  # type: ignore[assignment]
    await planner.freeze()
    end = await planner.end_offsets(await planner.initial_offsets(), ALL)
    assert end == {A: (100,)}
    with pytest.raises(ClusterError, match="the targets of partition '1' of topic 'orders' and 0 others could not be created"):
        await planner.end_offsets(end, ALL)
    targets.missing = frozenset()
    end = await planner.end_offsets(end, ALL)
    assert end == {A: (100,), B: (0,)}
    assert await planner.end_offsets(end, ALL) == {A: (100,), B: (10,)}


# --- partitions that are assigned -------------------------------------------------------------------------------------


async def test_partitions_that_are_assigned_stay_what_they_were_while_the_query_runs(cluster: FakeCluster) -> None:
    """A broker that restarts takes its partitions out of the topic, and the indexes of others change meanwhile."""
    assigned = settings(assign='{"orders": [1]}', startingOffsets="earliest", metadataInterval="0ms", newTopicsInterval="0ms")
    planner = StreamPlanner(assigned)
    start = await planner.initial_offsets()
    gone = cluster.partitions_by_topic["orders"].pop(1)

    async def comes_back() -> None:
        await asyncio.sleep(0.05)
        cluster.partitions_by_topic["orders"][1] = gone

    back = asyncio.create_task(comes_back())
    assert await planner.end_offsets(start, ALL) == {B: (10,)}
    await back


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", [0, 20, 5000])
async def test_a_limit_holds_where_the_first_units_hold_nothing(cluster: FakeCluster, empty: int) -> None:
    """On TubeMQ partitions share an index, so thousands of its entries may be of others."""
    cluster.partitions_by_topic["orders"] = {0: FakePartition([0] * empty + [4] * 10_000)}
    planner = StreamPlanner(settings(startingOffsets="earliest", maxBytesPerTrigger="40000"))
    start = await planner.initial_offsets()
    end = await planner.end_offsets(start, ReadMaxBytes(40_000))
    assert 50 <= end[A][0] <= 110


def test_a_stop_is_obeyed_while_the_source_is_away(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A mirror asks a source that is away for as long as its route says, which may be for ever."""
    monkeypatch.setattr(stream_reader, "background_loop", BackgroundLoop)
    stop_file = StopFile(tmp_path / "stop")
    reader = MessageStreamReader(settings(startingOffsets="earliest", retryTimeout="20s", stopFile=str(stop_file.path)))
    start = reader.initialOffset()
    cluster.errors = [Unreachable("down")] * 100_000
    reader._planner.state._bounds_time = None
    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(reader.latestOffset, start, ALL)
        with pytest.raises(TimeoutError):
            asking.result(0.2)
        stop_file.request()
        assert asking.result(5) == start
    assert stop_file.is_confirmed
