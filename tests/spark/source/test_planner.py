"""The ends of a stream's batches, with an in-memory cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, ConfigError, Failure, GapError, Unreachable
from mqbridge.net import backoff
from mqbridge.spark.source.offsets import Offsets
from mqbridge.spark.source.planner import StreamPlanner
from tests.spark.fake_cluster import FakeCluster, FakePartition, settings, use_fake_cluster

A, B = ("orders", "0"), ("orders", "1")
ALL = ReadAllAvailable()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Two partitions of 100 and 10 packs, with 4 messages of 100 bytes each."""
    cluster = FakeCluster(orders=[FakePartition([4] * 100), FakePartition([4] * 10)])
    use_fake_cluster(monkeypatch, cluster)
    monkeypatch.setattr(backoff.Backoff, "delay", lambda _: 0.0)
    return cluster


async def test_the_initial_offsets_are_resolved_once(cluster: FakeCluster) -> None:
    """Spark requests them twice, and the latest offsets may change between the two requests."""
    planner = StreamPlanner(settings(metadataInterval="0ms"))
    first = await planner.initial_offsets()
    cluster.partitions_by_topic["orders"][0].packs.append(1)
    await planner.end_offsets(first, ALL)
    assert await planner.initial_offsets() == first == {A: (100,), B: (10,)}


async def test_bounds_are_requested_once_per_metadata_interval(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(metadataInterval="1h"))
    start = await planner.initial_offsets()
    for _ in range(100):
        assert await planner.end_offsets(start, ReadMaxRows(5)) == start
    assert cluster.request_counts == {"bounds": 1}


async def test_a_query_from_latest_begins_with_an_empty_batch(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(metadataInterval="0ms"))
    start = await planner.initial_offsets()
    cluster.partitions_by_topic["orders"][0].packs.append(1)
    assert await planner.end_offsets(start, ALL) == start
    assert await planner.end_offsets(start, ALL) == {A: (101,), B: (10,)}


async def test_a_planning_process_that_is_killed_in_the_first_batch_loses_no_message(cluster: FakeCluster) -> None:
    """The checkpoint does not contain the start of the first batch, so the new process resolves the initial offsets again."""
    first = StreamPlanner(settings(metadataInterval="0ms"))
    first_start = await first.initial_offsets()
    cluster.partitions_by_topic["orders"][0].packs += [1, 1]
    end = await first.end_offsets(first_start, ALL)
    cluster.partitions_by_topic["orders"][0].packs += [1]
    second = StreamPlanner(settings(metadataInterval="0ms"))
    second_start = await second.initial_offsets()
    next_end = await second.end_offsets(end, ALL)
    read = [offset for begin, until in ((second_start, end), (end, next_end)) for offset in range(*begin[A], *until[A])]
    assert read == list(range(*first_start[A], 103))


async def test_limits_of_messages_and_bytes_are_applied_by_estimates_from_a_sample(cluster: FakeCluster) -> None:
    row_limited = StreamPlanner(settings(startingOffsets="earliest", maxOffsetsPerTrigger="88"))
    start = await row_limited.initial_offsets()
    assert start == {A: (0,), B: (0,)}
    assert await row_limited.end_offsets(start, ReadMaxRows(88)) == {A: (19,), B: (2,)}
    assert cluster.request_counts["read"] == 1
    byte_limited = StreamPlanner(settings(startingOffsets="earliest", maxOffsetsPerTrigger="10000", maxBytesPerTrigger="4400"))
    assert await byte_limited.end_offsets(start, ReadMaxRows(10000)) == {A: (9,), B: (1,)}
    assert await byte_limited.end_offsets(start, ALL) == {A: (100,), B: (10,)}


async def test_batches_end_at_the_frozen_target(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(startingOffsets="earliest", maxOffsetsPerTrigger="40", metadataInterval="0ms"))
    await planner.freeze()
    ends = [await planner.initial_offsets()]
    for _ in range(30):
        cluster.partitions_by_topic["orders"][0].packs.append(1)
        ends.append(await planner.end_offsets(ends[-1], ReadMaxRows(40)))
    assert ends[-1] == ends[-2] == {A: (100,), B: (10,)}
    assert len({str(end) for end in ends}) >= 11


async def test_the_backlog_is_measured_once_per_metadata_interval(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(minOffsetsPerTrigger="1000", metadataInterval="1h"))
    for _ in range(100):
        assert await planner.end_offsets({A: (50,), B: (0,)}, ALL) == {A: (50,), B: (0,)}
    assert (cluster.request_counts["measure"], cluster.request_counts["read"]) == (2, 1)


async def test_a_batch_waits_for_the_minimum_of_messages_or_the_maximum_delay(cluster: FakeCluster) -> None:
    start: Offsets = {A: (99,), B: (9,)}
    waiting = StreamPlanner(settings(minOffsetsPerTrigger="9", metadataInterval="0ms"))
    assert await waiting.end_offsets(start, ALL) == start
    cluster.partitions_by_topic["orders"][0].packs.append(4)
    assert await waiting.end_offsets(start, ALL) == {A: (101,), B: (10,)}
    overdue = StreamPlanner(settings(minOffsetsPerTrigger="1000", maxTriggerDelay="0s"))
    assert await overdue.end_offsets(start, ALL) == {A: (101,), B: (10,)}
    frozen = StreamPlanner(settings(minOffsetsPerTrigger="1000"))
    await frozen.freeze()
    assert await frozen.end_offsets(start, ALL) == {A: (101,), B: (10,)}


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (
            {A: (200,), B: (0,)},
            r"partition '0' of topic 'orders' is required at 200, but .* created again: it stores 0 to 100",
        ),
        ({A: (0,), ("orders", "7"): (3,)}, r"partition '7' of topic 'orders' .* at 3, but the partition does not exist"),
        ({("orders", "1"): (0,)}, r"partition '1' .* retention deleted messages: it stores 4 to 14"),
    ],
)
async def test_a_data_loss_is_an_error_or_one_warning(
    cluster: FakeCluster, start: Offsets, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.partitions_by_topic["orders"][1].first = 4 if start.keys() == {B} else 0
    with pytest.raises(GapError, match=problem + ".*failOnDataLoss=false"):
        await StreamPlanner(settings(retryTimeout="0s")).end_offsets(start, ALL)
    planner = StreamPlanner(settings(failOnDataLoss="false", metadataInterval="0ms"))
    with caplog.at_level(logging.WARNING):
        end = start
        for _ in range(4):
            end = await planner.end_offsets(end, ALL)
    assert start.keys() <= end.keys()
    assert end[B if B in start else A] in {(100,), (10,), (14,)}
    assert len([record for record in caplog.records if "reading continues" in record.message]) == planner.loss_counts.total() == 1


async def test_a_deleted_topic_is_a_data_loss(cluster: FakeCluster) -> None:
    del cluster.partitions_by_topic["orders"]
    with pytest.raises(GapError, match="does not exist any more"):
        await StreamPlanner(settings(retryTimeout="0s")).end_offsets({A: (3,)}, ALL)
    with pytest.raises(ClusterError, match="no topic 'orders'"):
        await StreamPlanner(settings()).initial_offsets()


async def test_missing_partitions_are_awaited(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a broker restarts, its partitions are missing in the topic."""
    removed, real_bounds = cluster.partitions_by_topic["orders"].pop(1), FakeCluster.bounds

    async def bounds(self: FakeCluster, topic: str) -> Mapping[str, Bounds]:
        if self.request_counts["bounds"] == 3:
            self.partitions_by_topic["orders"][1] = removed
        return await real_bounds(self, topic)

    monkeypatch.setattr(FakeCluster, "bounds", bounds)
    planner = StreamPlanner(settings(metadataInterval="1h"))
    await planner.freeze()
    assert await planner.end_offsets({A: (100,), B: (3,)}, ALL) == {A: (100,), B: (10,)}


async def test_a_partition_that_goes_missing_during_the_wait_is_awaited_too(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a rolling restart, the next broker may stop as soon as the first one is back."""
    partitions, real_bounds = cluster.partitions_by_topic["orders"], FakeCluster.bounds
    removed = {0: partitions.pop(0)}

    async def bounds(self: FakeCluster, topic: str) -> Mapping[str, Bounds]:
        if self.request_counts["bounds"] == 1:
            partitions[0], removed[1] = removed[0], partitions.pop(1)
        elif self.request_counts["bounds"] == 3:
            partitions[1] = removed[1]
        return await real_bounds(self, topic)

    monkeypatch.setattr(FakeCluster, "bounds", bounds)
    planner = StreamPlanner(settings(metadataInterval="1h"))
    assert await planner.end_offsets({A: (100,), B: (3,)}, ALL) == {A: (100,), B: (10,)}


async def test_the_log_names_only_partitions_that_are_still_missing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    partitions, real_bounds = cluster.partitions_by_topic["orders"], FakeCluster.bounds
    removed = {index: partitions.pop(index) for index in (0, 1)}

    async def bounds(self: FakeCluster, topic: str) -> Mapping[str, Bounds]:
        if self.request_counts["bounds"] in (2, 3):
            index = self.request_counts["bounds"] - 2
            partitions[index] = removed[index]
        return await real_bounds(self, topic)

    monkeypatch.setattr(FakeCluster, "bounds", bounds)
    planner = StreamPlanner(settings(metadataInterval="1h"))
    with caplog.at_level(logging.WARNING):
        await planner.end_offsets({A: (100,), B: (3,)}, ALL)
    missing = [record.message.split(" among")[0] for record in caplog.records if "are missing" in record.message]
    assert list(dict.fromkeys(missing)) == [
        "cluster fake: 2 partitions to read are missing, partition '0' of topic 'orders'",
        "cluster fake: 1 partitions to read are missing, partition '1' of topic 'orders'",
    ]


async def test_a_deleted_part_of_the_store_that_was_read_is_no_loss(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Pulsar the end of a ledger comes before the beginning of the next one, and nothing lies between."""
    cluster.partitions_by_topic["orders"][1].first = 4
    real = FakeCluster.read

    def read(self: FakeCluster, topic: str, partition: str, begin, end=None):  # type: ignore[no-untyped-def]
        return real(self, topic, partition, max(begin, (4,)), end)

    monkeypatch.setattr(FakeCluster, "read", read)
    planner = StreamPlanner(settings(metadataInterval="0ms"))
    assert await planner.end_offsets({B: (3,)}, ALL) == {A: (0,), B: (14,)}
    assert await planner.end_offsets({B: (3,)}, ALL) == {A: (0,), B: (14,)}
    assert cluster.request_counts["read"] == 1


async def test_transient_failures_are_retried_and_others_end_the_query(cluster: FakeCluster) -> None:
    cluster.errors = [Unreachable("down"), Unreachable("down")]
    assert await StreamPlanner(settings()).initial_offsets() == {A: (100,), B: (10,)}
    cluster.errors = [Unreachable("down")] * 5
    with pytest.raises(ClusterError, match=r"requesting bounds in cluster 'fake' failed for 0 s \(retryTimeout\): down"):
        await StreamPlanner(settings(retryTimeout="0s")).initial_offsets()
    cluster.errors = [ClusterError("no rights", Failure.FATAL)]
    with pytest.raises(ClusterError, match="no rights"):
        await StreamPlanner(settings()).initial_offsets()


async def test_patterns_find_new_topics_and_assigned_partitions_stay_the_same(cluster: FakeCluster) -> None:
    by_pattern = StreamPlanner(
        settings(subscribePattern="ord.*", startingOffsets="earliest", metadataInterval="0ms", newTopicsInterval="0ms")
    )
    start = await by_pattern.initial_offsets()
    cluster.partitions_by_topic["order"] = {0: FakePartition([1, 1])}
    cluster.partitions_by_topic["border"] = {0: FakePartition([1, 1])}
    end = await by_pattern.end_offsets(start, ALL)
    assert end == {A: (100,), B: (10,), ("order", "0"): (0,)}
    assert await by_pattern.end_offsets(end, ALL) == {**end, ("order", "0"): (2,)}
    assigned = StreamPlanner(settings(assign='{"orders": [1]}', startingOffsets="earliest"))
    assert await assigned.initial_offsets() == {B: (0,)}
    assert await assigned.end_offsets({B: (0,)}, ALL) == {B: (10,)}
    assert await assigned.end_offsets({A: (5,), B: (0,)}, ALL) == {A: (5,), B: (10,)}


async def test_explicit_positions_are_checked(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(startingOffsets='{"orders": {"1": 3}}'))
    assert await planner.initial_offsets() == {A: (0,), B: (3,)}
    for text, problem in (
        ('{"order": {"0": 3}}', "topic 'order', which is not read. Did you mean 'orders'"),
        ('{"orders": {"2": 3}}', "topic 'orders' has no partition '2'"),
        ('{"orders": {"²": 3}}', "topic 'orders' has no partition '²'"),
        ('{"orders": {"0": "3:1"}}', "'3:1' is not a position of partition '0' of topic 'orders'. Positions there look like '0'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            await StreamPlanner(settings(startingOffsets=text)).initial_offsets()
    assert cluster.request_counts["read"] == 0
