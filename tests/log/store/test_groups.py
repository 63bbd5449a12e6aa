"""Group members that join, leave, or are killed, in one process and in several."""

import asyncio
import os
import signal
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, LaneRevoked
from mqbridge.log.store import groups
from mqbridge.message import Batch, Share
from mqbridge.net.tasks import cancel
from tests.conformance.arena import numbered, numbers
from tests.kit.conversation import until
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.patience import PATIENCE_S, SERVER_PATIENCE_S

# A member in a process of its own: acknowledges each batch, and prints the committed offset.
MEMBER = """
import asyncio, sys
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.log.adapter.registration import ADAPTER

async def main(path):
    cluster = ADAPTER.make_cluster("log", ADAPTER.cluster_model(path=path, lease="1s", poll="5ms"))
    await cluster.connect()
    inbound = await cluster.inbound(InboundSpec(("t",), "g"))
    async for lane in inbound.lanes():
        batch = await lane.receive()
        lane.acknowledge(batch)
        while await cluster.committed("t", "g") != {"0": batch.next}:
            await asyncio.sleep(0.01)
        print(batch.next[0], flush=True)

asyncio.run(main(sys.argv[1]))
"""


async def test_a_killed_process_loses_its_partitions_to_the_others(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log(lease="1s")
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEMBER, str(tmp_path / "log.db"), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert int(await child.stdout.readline()) == 10
    await outbound.send(0, Share(Batch.of(numbered(10, 20))))
    inbound = await cluster.inbound(InboundSpec(("t",), "g"))
    taking = asyncio.ensure_future(anext(inbound.lanes()))
    os.kill(child.pid, signal.SIGKILL)
    await child.communicate()
    async with asyncio.timeout(PATIENCE_S):
        lane = await taking
        assert numbers((await lane.receive()).messages) == list(range(10, 20))
    await inbound.close()


async def test_a_late_commit_does_not_move_a_group_back_that_has_come_back_to_the_member(open_log: OpenLog) -> None:
    """The member was stopped while another one read on and left; its commit waits behind the heartbeat that sees this."""
    cluster = await open_log(lease="0.3s")
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    inbound, lane = await lane_of(cluster)
    batch = await lane.receive()
    await cancel(inbound._heartbeat_task)
    await outbound.send(0, Share(Batch.of(numbered(10, 20))))
    async with asyncio.timeout(PATIENCE_S):
        other, other_lane = await lane_of(await open_log(lease="1s"))
        other_lane.acknowledge(await other_lane.receive())
        await other.close()
        assert await cluster.committed("t", "g") == {"0": (20,)}
        busy = threading.Event()
        assert cluster.store._writer is not None
        cluster.store._writer.thread.submit(busy.wait)
        heartbeat = asyncio.ensure_future(inbound._rebalance())
        await asyncio.sleep(0)
        lane.acknowledge(batch)
        await until(lambda: bool(inbound._writes))
        busy.set()
        await heartbeat
        await asyncio.gather(*inbound._writes)
        assert await cluster.committed("t", "g") == {"0": (20,)}
        await inbound._rebalance()
        new_lane = await anext(inbound.lanes())
        await outbound.send(0, Share(Batch.of(numbered(20, 21))))
        assert numbers((await new_lane.receive()).messages) == [20]
    await inbound.close()


async def test_a_member_whose_lease_expired_cannot_commit(open_log: OpenLog) -> None:
    cluster = await open_log(lease="0.3s")
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    inbound, lane = await lane_of(cluster)
    batch = await lane.receive()
    await cancel(inbound._heartbeat_task)
    async with asyncio.timeout(PATIENCE_S):
        other, other_lane = await lane_of(await open_log(lease="1s"))
        lane.acknowledge(batch)
        await lane.release()
        assert numbers((await other_lane.receive()).messages) == list(range(10))
    assert await cluster.committed("t", "g") == {"0": (0,)}
    await inbound.close()
    await other.close()


async def test_members_of_one_process_rebalance_at_once(open_log: OpenLog) -> None:
    """The lease is so long that no regular heartbeat is sent during the test; the members notify each other."""
    cluster = await open_log(lease="3600s")
    await cluster.create("t", 4)
    first = await cluster.inbound(InboundSpec(("t",), "g"))
    lanes = [await anext(first.lanes()) for _ in range(4)]
    second = await cluster.inbound(InboundSpec(("t",), "g"))
    async with asyncio.timeout(PATIENCE_S):
        assigned = {(await anext(second.lanes())).partition.name for _ in range(2)}
        revoked = {lane.partition.name for lane in lanes if lane.revoked.is_set()}  # type: ignore[attr-defined]
        assert assigned == revoked
        await second.close()
        assert {(await anext(first.lanes())).partition.name for _ in range(2)} == assigned
    await first.close()


async def test_topics_of_one_partition_spread_over_the_members(open_log: OpenLog) -> None:
    cluster = await open_log(lease="3600s")
    topics = tuple(f"t{number}" for number in range(6))
    for topic in topics:
        await cluster.create(topic, 1)
    members = [await cluster.inbound(InboundSpec(topics, "g")) for _ in range(3)]
    async with asyncio.timeout(PATIENCE_S):
        while [len(member._lanes) for member in members] != [2, 2, 2]:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
    for member in members:
        await member.close()


async def test_acknowledgements_are_committed_before_the_inbound_is_closed(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    inbound, lane = await lane_of(cluster)
    other = await open_log()
    for index in range(3):
        await outbound.send(0, Share(Batch.of(numbered(index, index + 1))))
        lane.acknowledge(await lane.receive())
    async with asyncio.timeout(PATIENCE_S):
        while await other.committed("t", "g") != {"0": (3,)}:
            await asyncio.sleep(0.01)
    await inbound.close()


async def test_a_later_acknowledgement_does_not_skip_a_rejected_batch(open_log: OpenLog) -> None:
    cluster = await open_log()
    outbound = await outbound_of(cluster)
    inbound, lane = await lane_of(cluster)
    batches = []
    for index in range(3):
        await outbound.send(0, Share(Batch.of(numbered(index, index + 1))))
        batches.append(await lane.receive())
    lane.reject(batches[1])
    lane.acknowledge(batches[0])
    lane.acknowledge(batches[2])
    await inbound.close()
    assert await cluster.committed("t", "g") == {"0": (1,)}


async def test_calls_to_a_released_lane_do_not_affect_the_next_lane_of_the_partition(open_log: OpenLog) -> None:
    cluster = await open_log(lease="0.3s")
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    inbound = await cluster.inbound(InboundSpec(("t",), "g"))
    lanes = inbound.lanes()
    lane = await anext(lanes)
    batch = await lane.receive()
    await lane.release()
    async with asyncio.timeout(PATIENCE_S):
        next_lane = await anext(lanes)
    lane.acknowledge(batch)
    lane.reject(batch)
    await inbound._flush()  # type: ignore[attr-defined]
    assert numbers((await next_lane.receive()).messages) == list(range(10))
    await inbound.close()
    assert await cluster.committed("t", "g") == {"0": (0,)}


async def test_each_group_receives_every_message(open_log: OpenLog) -> None:
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 3))))
    for group in ("a", "b"):
        inbound, lane = await lane_of(cluster, group)
        lane.acknowledge(await lane.receive())
        await inbound.close()
        with pytest.raises(LaneRevoked):
            await lane.receive()
    assert await cluster.operations.groups("t") == ["a", "b"]


async def test_a_lane_receives_only_messages_of_its_topic(open_log: OpenLog) -> None:
    cluster = await open_log()
    for topic in ("t", "u"):
        outbound = await outbound_of(cluster, topic)
        await outbound.send(0, Share(Batch.of([m.replace(key=topic) for m in numbered(0, 2)])))
    await cluster.outbound(OutboundSpec("u"))
    inbound, lane = await lane_of(cluster, topic="u")
    assert [message.key for message in (await lane.receive()).messages] == ["u", "u"]
    await inbound.close()


async def test_a_lane_ends_even_if_its_release_cannot_be_written(open_log: OpenLog, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = await open_log()
    await (await outbound_of(cluster)).send(0, Share(Batch.of(numbered(0, 5))))
    inbound, lane = await lane_of(cluster)
    lane.acknowledge(await lane.receive())
    write = cluster.store.write

    def fail_release(job: Any, *arguments: Any) -> Any:
        if job is groups.release:
            raise ClusterError("the disk is full")
        return write(job, *arguments)

    monkeypatch.setattr(cluster.store, "write", fail_release)
    await lane.release()
    assert lane.revoked.is_set()
    await inbound.close()


async def test_closing_ends_by_its_deadline_while_the_file_is_locked(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log(busy_timeout="60s")
    outbound = await outbound_of(cluster)
    await outbound.send(0, Share(Batch.of(numbered(0, 10))))
    inbound, lane = await lane_of(cluster)
    lane.acknowledge(await lane.receive())
    loop = asyncio.get_running_loop()
    other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        async with asyncio.timeout(SERVER_PATIENCE_S):
            await lane.release(loop.time() + 0.1)
            await inbound.close(loop.time() + 0.1)
            await cluster.close(loop.time() + 0.1)
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert lane.revoked.is_set()
