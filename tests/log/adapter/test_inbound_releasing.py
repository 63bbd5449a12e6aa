"""Members that keep a partition for a while although another member is to get it."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from mqbridge.adapter.inbound import InboundSpec
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.adapter.inbound import LogInbound
from mqbridge.log.adapter.lane import LogLane
from mqbridge.message import Batch, Share
from mqbridge.net.tasks import cancel, spawn
from tests.conformance.arena import numbered, numbers
from tests.kit.conversation import until
from tests.log.conftest import OpenLog, lane_of, outbound_of
from tests.patience import PATIENCE_S

# A member in a process of its own, which keeps its partition for an hour when another member comes.
KEEPER = """
import asyncio, sys
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.log.adapter.registration import ADAPTER

async def main(path):
    cluster = ADAPTER.make_cluster("log", ADAPTER.cluster_model(path=path, lease="1s", poll="5ms"))
    await cluster.connect()
    inbound = await cluster.inbound(InboundSpec(("t",), "g", member="z", release_wait_s=3600))
    lanes = inbound.lanes()
    both = [await anext(lanes), await anext(lanes)]
    print("joined", flush=True)
    await asyncio.wait([asyncio.create_task(lane.releasing.wait()) for lane in both], return_when="FIRST_COMPLETED")
    print("releasing", flush=True)
    await asyncio.sleep(3600)

asyncio.run(main(sys.argv[1]))
"""


async def join(cluster: LogCluster, member: str, wait_s: float) -> LogInbound:
    inbound = await cluster.inbound(InboundSpec(("t",), "g", member=member, release_wait_s=wait_s))
    assert isinstance(inbound, LogInbound)
    return inbound


async def next_lane(inbound: LogInbound) -> LogLane:
    async with asyncio.timeout(PATIENCE_S):
        return await anext(inbound.lanes())


async def released(*lanes: LogLane) -> LogLane:
    """Wait until one of the lanes is going to be given up, and return it."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := [lane for lane in lanes if lane.releasing.is_set()]):
            await asyncio.sleep(0.001)
    return found[0]


async def test_a_kept_partition_receives_nothing_and_commits(open_log: OpenLog) -> None:
    cluster = await open_log(lease="3600s")
    await cluster.create("t", 2)
    outbound = await outbound_of(cluster)
    for partition in range(2):
        await outbound.send(partition, Share(Batch.of(numbered(0, 3))))
    first = await join(cluster, "a", 3600)
    lanes = [await next_lane(first), await next_lane(first)]
    batches = {lane: await lane.receive() for lane in lanes}
    second = await join(cluster, "b", 3600)
    lane = await released(*lanes)
    await outbound.send(lane.partition.index, Share(Batch.of(numbered(3, 5))))
    receiving = spawn(lane.receive(), "receive")
    await asyncio.sleep(0.05)
    assert not receiving.done()
    lane.acknowledge(batches[lane], range(2))

    async def committed() -> object:
        return (await cluster.committed("t", "g"))[lane.partition.name]

    async with asyncio.timeout(PATIENCE_S):
        while await committed() != (2,):
            await asyncio.sleep(0.01)
        await lane.release()
        await cancel(receiving)
        taken = await next_lane(second)
        assert taken.partition == lane.partition
        assert numbers((await taken.receive()).messages) == [2, 3, 4]
    await first.close()
    await second.close()


async def test_a_receive_that_waits_ends_when_the_partition_is_given_up(open_log: OpenLog) -> None:
    cluster = await open_log(lease="3600s")
    await cluster.create("t", 2)
    first = await join(cluster, "a", 0.05)
    lanes = [await next_lane(first), await next_lane(first)]
    waiting = [spawn(lane.receive(), "receive") for lane in lanes]
    await asyncio.sleep(0.02)
    second = await join(cluster, "b", 0.05)
    lane = await released(*lanes)
    async with asyncio.timeout(PATIENCE_S):
        await lane.revoked.wait()
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert "was released" in str(done.pop().exception())
    assert (await next_lane(second)).partition == lane.partition
    for inbound in (first, second):
        await inbound.close()
    await asyncio.wait(waiting)


async def test_a_partition_that_comes_back_before_it_was_given_up_is_a_new_lane(open_log: OpenLog) -> None:
    """What was announced happens: a caller that has stopped to receive is not left waiting."""
    cluster = await open_log(lease="0.4s")
    await cluster.create("t", 2)
    first = await join(cluster, "a", 0.3)
    lanes = [await next_lane(first), await next_lane(first)]
    second = await join(cluster, "b", 0.3)
    lane = await released(*lanes)
    await second.close()
    again = await next_lane(first)
    assert lane.revoked.is_set()
    assert again.partition == lane.partition
    assert not again.releasing.is_set()
    await first.close()


async def test_members_that_wait_for_each_other_get_their_partitions(open_log: OpenLog) -> None:
    """With a third member, the first one is to get a partition of the second one, and the second one of the first one."""
    cluster = await open_log(lease="0.4s")
    await cluster.create("t", 12)
    members = [await join(cluster, name, 0.2) for name in ("b", "c")]

    def shares() -> list[int]:
        return [len(member._lanes) for member in members]

    await until(lambda: shares() == [6, 6])
    before = [set(member._lanes) for member in members]
    members.append(await join(cluster, "a", 0.2))  # the first one of the round robin
    await until(lambda: shares() == [4, 4, 4])
    for index, partitions in enumerate(before):
        assert partitions & set(members[1 - index]._lanes)
    for member in members:
        await member.close()


async def test_a_member_that_joins_during_the_wait_gets_its_share(open_log: OpenLog) -> None:
    cluster = await open_log(lease="0.4s")
    await cluster.create("t", 6)
    members = [await join(cluster, "a", 0.1)]

    def shares() -> list[int]:
        return [len(member._lanes) for member in members]

    await until(lambda: shares() == [6])
    members += [await join(cluster, "b", 0.1), await join(cluster, "c", 5)]
    await until(lambda: shares() == [2, 2, 2])
    for member in members:
        await member.close()


async def test_a_killed_keeper_loses_its_partitions_by_its_lease(open_log: OpenLog, tmp_path: Path) -> None:
    cluster = await open_log(lease="1s")
    await cluster.create("t", 2)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KEEPER, str(tmp_path / "log.db"), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"joined\n"
    inbound = await join(cluster, "a", 0)
    assert await child.stdout.readline() == b"releasing\n"
    await asyncio.sleep(0.5)
    assert inbound._lanes == {}
    os.kill(child.pid, signal.SIGKILL)
    await child.communicate()
    assert {(await next_lane(inbound)).partition.name for _ in range(2)} == {"0", "1"}
    await inbound.close()


async def test_closing_does_not_wait_for_what_is_kept(open_log: OpenLog) -> None:
    cluster = await open_log(lease="3600s")
    await cluster.create("t", 2)
    first = await join(cluster, "a", 3600)
    lanes = [await next_lane(first), await next_lane(first)]
    second = await join(cluster, "b", 3600)
    await released(*lanes)
    async with asyncio.timeout(PATIENCE_S):
        await first.close()
        assert {(await next_lane(second)).partition.name for _ in range(2)} == {"0", "1"}
    await second.close()


async def test_without_a_wait_a_partition_is_given_up_at_once(open_log: OpenLog) -> None:
    cluster = await open_log(lease="3600s")
    await cluster.create("t", 2)
    first = await join(cluster, "a", 0)
    lanes = [await next_lane(first), await next_lane(first)]
    second = await join(cluster, "b", 0)
    lane = await released(*lanes)
    assert lane.revoked.is_set()
    for inbound in (first, second):
        await inbound.close()


async def test_the_name_of_a_member_can_be_anything(open_log: OpenLog) -> None:
    cluster = await open_log()
    await cluster.create("t", 1)
    inbound = await join(cluster, "a\0\ud800\n" + "x" * 1000, 0)
    (member,) = await cluster.operations.members("t", "g")
    assert member.id.startswith("a???xxx")
    assert len(member.id) < 300
    await inbound.close()
    other, _ = await lane_of(cluster)
    assert len(await cluster.operations.members("t", "g")) == 1
    await other.close()
