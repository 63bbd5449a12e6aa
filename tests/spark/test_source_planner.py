"""Where the batches of a stream end, over a cluster in memory."""

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
    found = FakeCluster(orders=[FakePartition([4] * 100), FakePartition([4] * 10)])
    use_fake_cluster(monkeypatch, found)
    monkeypatch.setattr(backoff.Backoff, "delay", lambda _: 0.0)
    return found


async def test_the_beginning_is_resolved_once(cluster: FakeCluster) -> None:
    """Spark asks for it twice, and between the two "latest" may have moved."""
    planner = StreamPlanner(settings(metadataInterval="0ms"))
    first = await planner.initial_offsets()
    cluster.held["orders"][0].packs.append(1)
    await planner.end_offsets(first, ALL)
    assert await planner.initial_offsets() == first == {A: (100,), B: (10,)}


async def test_polling_asks_the_cluster_once_in_an_interval(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(metadataInterval="1h"))
    start = await planner.initial_offsets()
    for _ in range(100):
        assert await planner.end_offsets(start, ReadMaxRows(5)) == start
    assert cluster.asked == {"bounds": 1}


async def test_latest_is_in_the_checkpoint_before_anything_is_read(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(metadataInterval="0ms"))
    start = await planner.initial_offsets()
    cluster.held["orders"][0].packs.append(1)
    assert await planner.end_offsets(start, ALL) == start
    assert await planner.end_offsets(start, ALL) == {A: (101,), B: (10,)}


async def test_a_process_that_dies_in_the_first_batch_loses_nothing(cluster: FakeCluster) -> None:
    """Spark does not write down where the first batch began: the process that repeats it asks for the beginning anew."""
    first = StreamPlanner(settings(metadataInterval="0ms"))
    begun = await first.initial_offsets()
    cluster.held["orders"][0].packs += [1, 1]
    end = await first.end_offsets(begun, ALL)
    cluster.held["orders"][0].packs += [1]
    second = StreamPlanner(settings(metadataInterval="0ms"))
    again = await second.initial_offsets()
    behind = await second.end_offsets(end, ALL)
    read = [offset for begin, until in ((again, end), (end, behind)) for offset in range(*begin[A], *until[A])]
    assert read == list(range(*begun[A], 103))


async def test_rows_and_bytes_are_estimated_from_a_sample(cluster: FakeCluster) -> None:
    rows = StreamPlanner(settings(startingOffsets="earliest", maxOffsetsPerTrigger="88"))
    start = await rows.initial_offsets()
    assert start == {A: (0,), B: (0,)}
    assert await rows.end_offsets(start, ReadMaxRows(88)) == {A: (19,), B: (2,)}
    assert cluster.asked["read"] == 1
    size = StreamPlanner(settings(startingOffsets="earliest", maxOffsetsPerTrigger="10000", maxBytesPerTrigger="4400"))
    assert await size.end_offsets(start, ReadMaxRows(10000)) == {A: (9,), B: (1,)}
    assert await size.end_offsets(start, ALL) == {A: (100,), B: (10,)}


async def test_batches_reach_the_frozen_target_and_end(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(startingOffsets="earliest", maxOffsetsPerTrigger="40", metadataInterval="0ms"))
    await planner.freeze()
    ends = [await planner.initial_offsets()]
    for _ in range(30):
        cluster.held["orders"][0].packs.append(1)
        ends.append(await planner.end_offsets(ends[-1], ReadMaxRows(40)))
    assert ends[-1] == ends[-2] == {A: (100,), B: (10,)}
    assert len({str(end) for end in ends}) >= 11


async def test_polling_measures_once_in_an_interval(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(minOffsetsPerTrigger="1000", metadataInterval="1h"))
    for _ in range(100):
        assert await planner.end_offsets({A: (50,), B: (0,)}, ALL) == {A: (50,), B: (0,)}
    assert (cluster.asked["measure"], cluster.asked["read"]) == (2, 1)


async def test_a_batch_waits_for_enough_messages(cluster: FakeCluster) -> None:
    start: Offsets = {A: (99,), B: (9,)}
    waiting = StreamPlanner(settings(minOffsetsPerTrigger="9", metadataInterval="0ms"))
    assert await waiting.end_offsets(start, ALL) == start
    cluster.held["orders"][0].packs.append(4)
    assert await waiting.end_offsets(start, ALL) == {A: (101,), B: (10,)}
    overdue = StreamPlanner(settings(minOffsetsPerTrigger="1000", maxTriggerDelay="0s"))
    assert await overdue.end_offsets(start, ALL) == {A: (101,), B: (10,)}
    last = StreamPlanner(settings(minOffsetsPerTrigger="1000"))
    await last.freeze()
    assert await last.end_offsets(start, ALL) == {A: (101,), B: (10,)}


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
async def test_losses_are_named_and_may_be_let_go(
    cluster: FakeCluster, start: Offsets, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.held["orders"][1].first = 4 if start.keys() == {B} else 0
    with pytest.raises(GapError, match=problem + ".*failOnDataLoss=false"):
        await StreamPlanner(settings(retryTimeout="0s")).end_offsets(start, ALL)
    planner = StreamPlanner(settings(failOnDataLoss="false", metadataInterval="0ms"))
    with caplog.at_level(logging.WARNING):
        at = start
        for _ in range(4):
            at = await planner.end_offsets(at, ALL)
    assert start.keys() <= at.keys()
    assert at[B if B in start else A] in {(100,), (10,), (14,)}
    assert len([one for one in caplog.records if "reading continues" in one.message]) == planner.loss_counts.total() == 1


async def test_the_whole_topic_may_be_gone(cluster: FakeCluster) -> None:
    del cluster.held["orders"]
    with pytest.raises(GapError, match="does not exist any more"):
        await StreamPlanner(settings(retryTimeout="0s")).end_offsets({A: (3,)}, ALL)
    with pytest.raises(ClusterError, match="no topic 'orders'"):
        await StreamPlanner(settings()).initial_offsets()


async def test_partitions_that_are_missing_for_a_while_are_waited_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that restarts is not among those of its topic meanwhile."""
    gone, real = cluster.held["orders"].pop(1), FakeCluster.bounds

    async def bounds(self: FakeCluster, topic: str) -> Mapping[str, Bounds]:
        if self.asked["bounds"] == 3:
            self.held["orders"][1] = gone
        return await real(self, topic)

    monkeypatch.setattr(FakeCluster, "bounds", bounds)
    planner = StreamPlanner(settings(metadataInterval="1h"))
    await planner.freeze()
    assert await planner.end_offsets({A: (100,), B: (3,)}, ALL) == {A: (100,), B: (10,)}


async def test_a_deleted_part_of_the_store_that_was_read_is_no_loss(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Pulsar the end of a ledger comes before the beginning of the next one, and nothing lies between."""
    cluster.held["orders"][1].first = 4
    real = FakeCluster.read

    def read(self: FakeCluster, topic: str, partition: str, begin, end=None):  # type: ignore[no-untyped-def]
        return real(self, topic, partition, max(begin, (4,)), end)

    monkeypatch.setattr(FakeCluster, "read", read)
    planner = StreamPlanner(settings(metadataInterval="0ms"))
    assert await planner.end_offsets({B: (3,)}, ALL) == {A: (0,), B: (14,)}
    assert await planner.end_offsets({B: (3,)}, ALL) == {A: (0,), B: (14,)}
    assert cluster.asked["read"] == 1


async def test_failures_that_pass_do_not_end_a_query(cluster: FakeCluster) -> None:
    cluster.errors = [Unreachable("down"), Unreachable("down")]
    assert await StreamPlanner(settings()).initial_offsets() == {A: (100,), B: (10,)}
    cluster.errors = [Unreachable("down")] * 5
    with pytest.raises(ClusterError, match=r"requesting bounds in cluster 'fake' failed for 0 s \(retryTimeout\): down"):
        await StreamPlanner(settings(retryTimeout="0s")).initial_offsets()
    cluster.errors = [ClusterError("no rights", Failure.FATAL)]
    with pytest.raises(ClusterError, match="no rights"):
        await StreamPlanner(settings()).initial_offsets()


async def test_patterns_find_topics_later_and_assignments_stay(cluster: FakeCluster) -> None:
    found = StreamPlanner(
        settings(subscribePattern="ord.*", startingOffsets="earliest", metadataInterval="0ms", newTopicsInterval="0ms")
    )
    start = await found.initial_offsets()
    cluster.held["order"] = {0: FakePartition([1, 1])}
    cluster.held["border"] = {0: FakePartition([1, 1])}
    end = await found.end_offsets(start, ALL)
    assert end == {A: (100,), B: (10,), ("order", "0"): (0,)}
    assert await found.end_offsets(end, ALL) == {**end, ("order", "0"): (2,)}
    assigned = StreamPlanner(settings(assign='{"orders": [1]}', startingOffsets="earliest"))
    assert await assigned.initial_offsets() == {B: (0,)}
    assert await assigned.end_offsets({B: (0,)}, ALL) == {B: (10,)}
    assert await assigned.end_offsets({A: (5,), B: (0,)}, ALL) == {A: (5,), B: (10,)}


async def test_exact_positions_are_checked(cluster: FakeCluster) -> None:
    planner = StreamPlanner(settings(startingOffsets='{"orders": {"1": 3}}'))
    assert await planner.initial_offsets() == {A: (0,), B: (3,)}
    for text, problem in (
        ('{"order": {"0": 3}}', "topic 'order', which is not read. Did you mean 'orders'"),
        ('{"orders": {"2": 3}}', "topic 'orders' has no partition '2'"),
        ('{"orders": {"0": "3:1"}}', "'3:1' is not a position of partition '0' of topic 'orders'. Positions there look like '0'"),
    ):
        with pytest.raises(ConfigError, match=problem):
            await StreamPlanner(settings(startingOffsets=text)).initial_offsets()
    assert cluster.asked["read"] == 0
