"""Reading one range: every message in order, or an error."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

from mqbridge.errors import ClusterError, Failure, GapError, Unreachable
from mqbridge.message import NO_SOURCE, Batch, Message
from mqbridge.net import backoff
from mqbridge.spark.source import read
from mqbridge.spark.source.read import RangeReader, merge_small_batches
from mqbridge.spark.source.tasks import RangeTask
from tests.spark.fake_cluster import FakeCluster, FakePartition, settings


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setattr(backoff.Backoff, "delay", lambda _: 0.0)
    return FakeCluster(orders=[FakePartition([2] * 20)])


async def positions(cluster: FakeCluster, begin: int, end: int, **options: str) -> list[int]:
    """Read a range, and return the position of each message."""
    task = RangeTask(("orders", "0"), (begin,), (end,))
    reader = RangeReader(settings(**options), task, lambda: nullcontext(cluster))
    return [message.position[0] async for batch in reader.batches() for message in batch.messages]


async def test_a_range_is_read_from_begin_to_end_exclusive(cluster: FakeCluster) -> None:
    assert await positions(cluster, 4, 9) == [4, 4, 5, 5, 6, 6, 7, 7, 8, 8]


async def test_a_read_resumes_at_its_last_position_after_a_failure(cluster: FakeCluster) -> None:
    """The first request succeeds, then the connection is lost twice during the range."""
    expected = await positions(cluster, 0, 20)

    cluster.errors = [None, Unreachable("down"), Unreachable("down"), None, None, Unreachable("down")]
    assert await positions(cluster, 0, 20) == expected
    assert cluster.errors == []


async def test_a_task_fails_after_the_retry_timeout(cluster: FakeCluster) -> None:
    cluster.errors = [Unreachable("down")] * 3
    with pytest.raises(ClusterError, match=r"reading partition '0' of topic 'orders' failed for 0 s \(retryTimeout\): down"):
        await positions(cluster, 0, 20, retryTimeout="0s")


@pytest.mark.parametrize("is_whole_topic", [True, False])
async def test_a_missing_partition_is_awaited(
    is_whole_topic: bool, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = await positions(cluster, 0, 20)
    partitions: dict[Any, Any] = cluster.partitions_by_topic if is_whole_topic else cluster.partitions_by_topic["orders"]
    removed = dict(partitions)
    partitions.clear()
    delays: list[float] = []

    def delay(_: backoff.Backoff) -> float:
        delays.append(0.0)
        if len(delays) == 3:
            partitions.update(removed)
        return 0.0

    monkeypatch.setattr(backoff.Backoff, "delay", delay)
    assert await positions(cluster, 0, 20) == expected
    assert len(delays) == 3


async def test_a_fatal_error_is_not_retried(cluster: FakeCluster) -> None:
    cluster.errors = [ClusterError("no rights", Failure.FATAL)]
    cluster.packs_per_batch = 20
    with pytest.raises(ClusterError, match="no rights"):
        await positions(cluster, 0, 20)


async def test_messages_that_retention_deleted_fail_the_task_or_are_skipped(cluster: FakeCluster) -> None:
    partition = cluster.partitions_by_topic["orders"][0]
    partition.first, partition.packs = 5, [2] * 15
    with pytest.raises(GapError, match=r"partition '0' of topic 'orders' from 2 to 8 failed: it begins at 5.*failOnDataLoss"):
        await positions(cluster, 2, 8)
    assert await positions(cluster, 2, 8, failOnDataLoss="false") == [5, 5, 6, 6, 7, 7]
    assert await positions(cluster, 2, 4, failOnDataLoss="false") == []


async def test_a_partition_that_ends_before_the_range_is_a_loss(cluster: FakeCluster) -> None:
    """`Cluster.read` itself raises no error in this case."""
    with pytest.raises(GapError, match="now ends before 25"):
        await positions(cluster, 15, 25)
    assert len(await positions(cluster, 15, 25, failOnDataLoss="false")) == 10


async def test_messages_removed_by_compaction_are_no_loss(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real_read = FakeCluster.read
    monkeypatch.setattr(
        FakeCluster, "read", lambda self, topic, name, begin, end=None: real_read(self, topic, name, begin, min(end, (12,)))
    )
    assert len(await positions(cluster, 10, 20)) == 4


async def test_out_of_order_batches_cause_another_read(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real_read, begins = FakeCluster.read, []

    def read(self: FakeCluster, topic: str, name: str, begin, end=None):  # type: ignore[no-untyped-def]
        begins.append(begin)
        batches = real_read(self, topic, name, begin, end)
        return _yield_twice(batches) if len(begins) == 1 else batches

    monkeypatch.setattr(FakeCluster, "read", read)
    assert await positions(cluster, 0, 9) == [number // 2 for number in range(18)]
    assert begins == [(0,), (3,)]
    monkeypatch.setattr(FakeCluster, "read", lambda *args: _yield_twice(real_read(*args)))
    with pytest.raises(ClusterError, match="it has positions 0 to 3, but reading was to continue at 3 and end at 9"):
        await positions(cluster, 0, 9, retryTimeout="0s")


async def _yield_twice(batches):  # type: ignore[no-untyped-def]
    """Yield each batch two times."""
    async for batch in batches:
        yield batch
        yield batch


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 60), st.integers(1, 3000))
@profile(deadline=None)
def test_small_batches_are_merged_within_the_limits(counts: list[int], max_rows: int, max_bytes: int) -> None:
    async def run() -> list[Batch]:
        return [batch async for batch in merge_small_batches(small_batches())]

    async def small_batches():  # type: ignore[no-untyped-def]
        first = 0
        for count in counts:
            messages = [Message(bytes(10), position=(first + index,)) for index in range(count)]
            yield Batch(NO_SOURCE, messages, count=count, size=10 * count, first=(first,), next=(first + count,))
            first += count

    import asyncio

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "MAX_ROWS", max_rows)
        patch.setattr(read, "MERGED_BATCH_BYTES", max_bytes)
        merged = asyncio.run(run())
    assert [message.position[0] for batch in merged for message in batch.messages] == list(range(sum(counts)))
    for batch in merged:
        assert batch.count == len(batch.messages)
        assert (batch.first[0], batch.next[0]) == (batch.messages[0].position[0], batch.messages[-1].position[0] + 1)
        assert batch.size == batch.held_bytes == 10 * batch.count
        assert batch.count in counts or (batch.count <= max_rows and batch.held_bytes <= max_bytes)
