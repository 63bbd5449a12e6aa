"""The reading of one range: complete and in order, or an error."""

from __future__ import annotations

from contextlib import nullcontext

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
    task = RangeTask(("orders", "0"), (begin,), (end,))
    reading = RangeReader(settings(**options), task, lambda: nullcontext(cluster))
    return [message.position[0] async for batch in reading.batches() for message in batch.messages]


async def test_a_range_is_read_exactly(cluster: FakeCluster) -> None:
    assert await positions(cluster, 4, 9) == [4, 4, 5, 5, 6, 6, 7, 7, 8, 8]


async def test_it_goes_on_where_it_was_when_the_cluster_failed(cluster: FakeCluster) -> None:
    """The first question works, then the connection ends twice in the middle."""
    plain = await positions(cluster, 0, 20)

    cluster.errors = [None, Unreachable("down"), Unreachable("down"), None, None, Unreachable("down")]
    assert await positions(cluster, 0, 20) == plain
    assert cluster.errors == []


async def test_failures_that_do_not_pass_fail_the_task(cluster: FakeCluster) -> None:
    cluster.errors = [Unreachable("down")] * 3
    with pytest.raises(ClusterError, match=r"reading partition '0' of topic 'orders' failed for 0 s \(retryTimeout\): down"):
        await positions(cluster, 0, 20, retryTimeout="0s")


@pytest.mark.parametrize("is_whole_topic", [True, False])
async def test_a_partition_that_is_missing_for_a_while_is_waited_for(
    is_whole_topic: bool, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = await positions(cluster, 0, 20)
    held = cluster.held if is_whole_topic else cluster.held["orders"]
    gone = dict(held)
    held.clear()
    tries: list[float] = []

    def delay(_: backoff.Backoff) -> float:
        tries.append(0.0)
        if len(tries) == 3:
            held.update(gone)
        return 0.0

    monkeypatch.setattr(backoff.Backoff, "delay", delay)
    assert await positions(cluster, 0, 20) == plain
    assert len(tries) == 3


async def test_rights_that_are_missing_are_not_waited_for(cluster: FakeCluster) -> None:
    cluster.errors = [ClusterError("no rights", Failure.FATAL)]
    cluster.per_batch = 20
    with pytest.raises(ClusterError, match="no rights"):
        await positions(cluster, 0, 20)


async def test_data_lost_before_it_was_read(cluster: FakeCluster) -> None:
    held = cluster.held["orders"][0]
    held.first, held.packs = 5, [2] * 15
    with pytest.raises(GapError, match=r"partition '0' of topic 'orders' from 2 to 8 failed: it begins at 5.*failOnDataLoss"):
        await positions(cluster, 2, 8)
    assert await positions(cluster, 2, 8, failOnDataLoss="false") == [5, 5, 6, 6, 7, 7]
    assert await positions(cluster, 2, 4, failOnDataLoss="false") == []


async def test_a_range_that_ends_early_fails(cluster: FakeCluster) -> None:
    """A contract's read ends without a word where the partition held less."""
    with pytest.raises(GapError, match="the partition ends before 25 now"):
        await positions(cluster, 15, 25)
    assert len(await positions(cluster, 15, 25, failOnDataLoss="false")) == 10


async def test_holes_of_a_compacted_topic_are_no_loss(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real = FakeCluster.read
    monkeypatch.setattr(
        FakeCluster, "read", lambda self, topic, name, begin, end=None: real(self, topic, name, begin, min(end, (12,)))
    )
    assert len(await positions(cluster, 10, 20)) == 4


async def test_batches_that_go_back_are_read_again(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = FakeCluster.read, []

    def read_twice(self: FakeCluster, topic: str, name: str, begin, end=None):  # type: ignore[no-untyped-def]
        calls.append(begin)
        return _repeating(real(self, topic, name, begin, end)) if len(calls) == 1 else real(self, topic, name, begin, end)

    monkeypatch.setattr(FakeCluster, "read", read_twice)
    assert await positions(cluster, 0, 9) == [number // 2 for number in range(18)]
    assert calls == [(0,), (3,)]
    monkeypatch.setattr(FakeCluster, "read", lambda *args: _repeating(real(*args)))
    with pytest.raises(ClusterError, match="out-of-order batch 0 to 3 at position 3, the range ends at 9"):
        await positions(cluster, 0, 9, retryTimeout="0s")


async def _repeating(batches):  # type: ignore[no-untyped-def]
    async for batch in batches:
        yield batch
        yield batch


@given(st.lists(st.integers(1, 30), max_size=40), st.integers(1, 60), st.integers(1, 3000))
@profile(deadline=None)
def test_small_batches_are_put_together_within_limits(counts: list[int], most_rows: int, most_bytes: int) -> None:
    async def run() -> list[Batch]:
        return [batch async for batch in merge_small_batches(made())]

    async def made():  # type: ignore[no-untyped-def]
        at = 0
        for count in counts:
            messages = [Message(bytes(10), position=(at + index,)) for index in range(count)]
            yield Batch(NO_SOURCE, messages, count=count, size=10 * count, first=(at,), next=(at + count,))
            at += count

    import asyncio

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read, "MAX_ROWS", most_rows)
        patch.setattr(read, "MERGED_BATCH_BYTES", most_bytes)
        found = asyncio.run(run())
    assert [message.position[0] for batch in found for message in batch.messages] == list(range(sum(counts)))
    for batch in found:
        assert batch.count == len(batch.messages)
        assert (batch.first[0], batch.next[0]) == (batch.messages[0].position[0], batch.messages[-1].position[0] + 1)
        assert batch.size == batch.held_bytes == 10 * batch.count
        assert batch.count in counts or (batch.count <= most_rows and batch.held_bytes <= most_bytes)
