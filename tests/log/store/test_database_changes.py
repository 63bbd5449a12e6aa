"""A log whose file, clock or partitions change while clients use it."""

import asyncio
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from mqbridge.adapter.inbound import Inbound, InboundSpec, Start
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.inbound import LogInbound
from mqbridge.log.adapter.lane import LogLane
from mqbridge.message import Batch, Share
from mqbridge.net.tasks import cancel
from tests.conformance.arena import numbered, numbers
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.patience import PATIENCE_S

HOUR_NS = 3_600_000_000_000


@pytest.mark.parametrize("jump", [-HOUR_NS, HOUR_NS])
async def test_a_lease_expires_in_time_although_the_wall_clock_is_set(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    cluster = await open_log(lease="400ms")
    await cluster.create("t", 1)
    dead, _ = await lane_of(cluster)
    await cancel(dead._heartbeat_task)
    real = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: real() + jump)
    async with asyncio.timeout(PATIENCE_S):
        living, _ = await lane_of(cluster)
    await living.close()
    await dead.close()


@pytest.mark.parametrize("jump", [-HOUR_NS, HOUR_NS])
async def test_a_living_member_does_not_expire_when_the_wall_clock_is_set(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    cluster = await open_log(lease="60s")
    await cluster.create("t", 1)
    inbound, _ = await lane_of(cluster)
    real = time.time_ns
    monkeypatch.setattr("time.time_ns", lambda: real() + jump)
    assert [member.partitions for member in await cluster.operations.members("t", "g")] == [("0",)]
    await inbound.close()


async def test_a_member_from_before_a_restart_of_the_machine_is_expired(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log(lease="3600s")
    await cluster.create("t", 1)
    dead, _ = await lane_of(cluster)
    await cancel(dead._heartbeat_task)
    connection = sqlite3.connect(tmp_path / "log.db")
    with connection:
        # The clock of leases restarts with the machine, so an earlier member has a later time.
        connection.execute("UPDATE member SET renewed_ms = renewed_ms + 10000000")
    connection.close()
    async with asyncio.timeout(PATIENCE_S):
        living, _ = await lane_of(cluster)
    assert [len(member.partitions or ()) for member in await cluster.operations.members("t", "g")] == [1]
    await living.close()
    await dead.close()


async def test_a_partition_added_while_the_group_had_no_member_is_read_from_its_beginning(open_log: OpenLog) -> None:
    cluster = await open_log()
    await cluster.create("t", 1)
    spec = InboundSpec(("t",), "g", Start.LATEST)
    await (await cluster.inbound(spec)).close()
    await cluster.create("t", 2)
    outbound = await cluster.outbound(OutboundSpec("t"))
    for partition in (0, 1):
        await outbound.send(partition, Share(Batch.of(numbered(0, 3))))
    inbound = await cluster.inbound(spec)
    lanes = inbound.lanes()
    async with asyncio.timeout(PATIENCE_S):
        received = [numbers((await (await anext(lanes)).receive()).messages) for _ in range(2)]
    assert received == [[0, 1, 2], [0, 1, 2]]
    await inbound.close()


async def test_no_send_overtakes_one_that_missed_its_deadline(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log(busy_timeout="50ms")
    outbound = await outbound_of(cluster, max_elapsed_s=0.3)
    lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    first = outbound.send(0, Share(Batch.of(numbered(0, 1))))
    later_sends = []
    while not first.done():
        later_sends.append(outbound.send(0, Share(Batch.of(numbered(len(later_sends) + 1, len(later_sends) + 2)))))
        await asyncio.sleep(0.02)
    lock.execute("ROLLBACK")
    lock.close()
    for receipt in [await first, *await asyncio.gather(*later_sends)]:
        assert [failure.failure_kind for failure in receipt.failures] == [Failure.RETRY]
    again = await outbound.send(0, Share(Batch.of(numbered(0, 3))))
    assert again.positions == [(0,), (1,), (2,)]


async def test_a_send_withdrawn_during_a_failing_transaction_is_not_retried(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log(busy_timeout="100ms")
    outbound = await outbound_of(cluster)
    lock = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    withdrawn, other = (outbound.send(0, Share(Batch.of(numbered(n, n + 1)))) for n in range(2))
    while not cluster._appender._group:
        await asyncio.sleep(0)
    outbound.withdraw([withdrawn])
    async with asyncio.timeout(PATIENCE_S):
        assert [failure.failure_kind for failure in (await withdrawn).failures] == [Failure.RETRY]
        assert not other.done()
        lock.execute("ROLLBACK")
        lock.close()
        assert (await other).positions == [(0,)]


@pytest.mark.parametrize("max_bytes", [1, 64 << 10])
async def test_lanes_that_wait_for_budget_end_when_they_are_revoked(open_log: OpenLog, max_bytes: int) -> None:
    cluster = await open_log()
    await cluster.create("t", 2)
    outbound = await cluster.outbound(OutboundSpec("t"))
    for partition in (0, 1):
        await outbound.send(partition, Share(Batch.of([message.replace(payload=bytes(60_000)) for message in numbered(0, 1)])))
    inbound = await cluster.inbound(InboundSpec(("t",), "g", max_bytes=max_bytes))
    lanes = inbound.lanes()
    one, other = await anext(lanes), await anext(lanes)
    async with asyncio.timeout(PATIENCE_S):
        batch = await one.receive()
        waiting = asyncio.ensure_future(other.receive())
        while not inbound._read_budget._waiters:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        one.acknowledge(batch)
        assert (await waiting).count == 1
        again = asyncio.ensure_future(one.receive())
        await asyncio.sleep(0.05)
        await inbound.close()
        with pytest.raises(Exception, match="belongs to another member"):
            await again
    assert inbound._read_budget.used == 0  # type: ignore[attr-defined]


async def test_a_delayed_heartbeat_does_not_expire_members_that_renewed_meanwhile(open_log: OpenLog) -> None:
    """Another process may renew its membership between the request for a heartbeat and its transaction."""
    first, second = await open_log(lease="3600s"), await open_log(lease="3600s")
    await first.create("t", 2)
    slow = await first.inbound(InboundSpec(("t",), "g"))
    quick, lane = await second_lane(slow, second)
    busy = threading.Event()
    assert first.store._writer is not None
    first.store._writer.thread.submit(busy.wait)
    waiting = asyncio.ensure_future(slow._rebalance())  # type: ignore[attr-defined]
    try:
        await asyncio.sleep(0.02)
        await quick._rebalance()
    finally:
        busy.set()
    await waiting
    await quick._rebalance()
    assert not lane.revoked.is_set()
    assert len(slow._lanes) == len(quick._lanes) == 1  # type: ignore[attr-defined]
    await slow.close()
    await quick.close()


async def test_a_group_is_not_moved_if_a_member_renewed_while_the_move_waited(open_log: OpenLog) -> None:
    first, second = await open_log(lease="3600s"), await open_log(lease="3600s")
    await first.create("t", 1)
    inbound, _ = await lane_of(second)
    busy = threading.Event()
    assert first.store._writer is not None
    first.store._writer.thread.submit(busy.wait)
    moving = asyncio.ensure_future(first.operations.move("t", "g", {"0": (0,)}))
    try:
        await asyncio.sleep(0.02)
        await inbound._rebalance()
    finally:
        busy.set()
    with pytest.raises(ClusterError, match="has members"):
        await moving
    await inbound.close()


async def second_lane(slow: Inbound, second: LogCluster) -> tuple[LogInbound, LogLane]:
    """Join a second member; return it and its lane, after the first member, `slow`, has released that partition."""
    joining = asyncio.ensure_future(lane_of(second))
    async with asyncio.timeout(20):
        while not joining.done():
            await slow._rebalance()  # type: ignore[attr-defined]
            for inbound in second.store.rebalance_events.get("g", ()):
                inbound.set()
            await asyncio.sleep(0.01)
    return await joining


async def test_a_batch_takes_a_quarter_of_the_budget_at_most(open_log: OpenLog) -> None:
    """Otherwise only one batch at a time would be in memory, and the source would not be read while it is sent."""
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    for first in range(0, 600, 10):
        await outbound.send(0, Share(Batch.of([message.replace(payload=bytes(100)) for message in numbered(first, first + 10)])))
    inbound = await cluster.inbound(InboundSpec(("t",), "g", max_bytes=32 << 10))
    lane = await anext(inbound.lanes())
    count = 0
    async with asyncio.timeout(PATIENCE_S):
        while count < 600:
            batch = await lane.receive()
            assert batch.held_bytes <= 8 << 10
            count += batch.count
    await inbound.close()


async def test_a_failed_commit_is_not_repeated_for_a_later_lane_of_the_partition(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member has read on in between: the group's offset would go back."""
    cluster = await open_log(lease="3600s")
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 10))))
    inbound, lane = await lane_of(cluster)
    await lane.receive()
    failing: list[asyncio.Future[None]] = []

    def fail_later(*_: object) -> "asyncio.Future[None]":
        failing.append(asyncio.get_running_loop().create_future())
        return failing[0]

    with monkeypatch.context() as patch:
        patch.setattr(cluster.store, "write", fail_later)
        inbound.schedule_commit(lane, 3)
        async with asyncio.timeout(PATIENCE_S):
            while not failing:
                await asyncio.sleep(0.01)
    await lane.release()
    await inbound._rebalance()
    inbound._lanes[lane.id].acknowledged = 8
    failing[0].set_exception(ClusterError("the disk is full"))
    await asyncio.sleep(0.01)
    assert inbound._uncommitted == {}
    await inbound.close()
    assert (await cluster.committed("t", "g"))["0"] == (8,)


async def test_a_poll_looks_only_at_what_was_appended_since_the_file_was_opened(open_log: OpenLog) -> None:
    """Otherwise the first one reads an index of all batches, which takes minutes in a large file."""
    writer = await open_log()
    await writer.create("t", 2)
    outbound = await writer.outbound(OutboundSpec("t"))
    await outbound.send(0, Share(Batch.of(numbered(0, 1))))
    reader = await open_log()
    old, new = await reader.existing_partitions("t")
    wake = asyncio.Event()
    reader.store.tails.watch(new.id, wake)
    await outbound.send(1, Share(Batch.of(numbered(1, 2))))
    await asyncio.wait_for(wake.wait(), PATIENCE_S)
    assert reader.store.tails.known == {new.id: 1}
    assert old.next == 1
