"""Partitions that this gateway can hand out: where a group of the cluster begins in them, also when gateways come and go."""

import asyncio
from pathlib import Path

from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.tubemq.server.consumer_group import CONNECT
from mqbridge.tubemq.wire.string_formats import PartitionRef, parse_subscription
from tests.patience import PATIENCE_S
from tests.tubemq.server.serving import GROUP, MAX, ServedClient, bodies_of, gateway, log_cluster

STEP = 28
"""What one message adds to an offset."""


async def given(client: ServedClient, count: int) -> list[PartitionRef]:
    """Send heartbeats, and do what they tell, until a consumer has been told this many partitions."""
    found: dict[tuple[str, int], PartitionRef] = {}
    async with asyncio.timeout(PATIENCE_S):
        done = None
        while len(found) < count:
            response = await client.beat(done=done)
            done = response.event if response.HasField("event") else None
            if done is None:
                await asyncio.sleep(0.01)
            elif done.opType == CONNECT:
                found |= {(ref.topic, ref.partition): ref for ref in map(parse_subscription, done.subscribeInfo)}
        await client.beat(done=done)
    return list(found.values())


async def test_a_partition_that_another_gateway_has_consumed_is_not_new(tmp_path: Path) -> None:
    """The first gateway has made the group, and no consumer of it has had the partition; the second one has lost its consumer."""
    async with log_cluster(tmp_path) as cluster, gateway(cluster, tmp_path, "one", owns_groups=False) as one:
        await one.create(partitions=2)
        first = await one.connect("c1")
        await first.join()
        async with gateway(cluster, tmp_path, "two", owns_groups=False) as two:
            await two.broker.find_topic("demo")
            second = await two.connect("c2")
            await second.join()
            (ref,) = await given(second, 1)
            index = ref.partition
            producer = await one.connect("p")
            await producer.store(b"a", b"b", b"c", partition=index)
            assert (await second.own(partition=index, status=MAX)).errCode == 200
            got = await second.get(partition=index)
            while got.errCode == 404:
                got = await second.get(partition=index)
            assert bodies_of(got) == [b"a", b"b", b"c"]
            assert (await second.confirm(partition=index)).currOffset == 3 * STEP
            await producer.store(b"d", b"e", b"f", b"g", partition=index)
        group = one.server.consumers.groups[GROUP]
        async with asyncio.timeout(PATIENCE_S):
            while ("demo", index) not in group.lanes.available():
                await asyncio.sleep(0.01)
        owned = await first.own(partition=index, status=MAX)
        assert (owned.errCode, owned.currOffset) == (200, 3 * STEP)
        assert await first.read(4, partition=index) == [b"d", b"e", b"f", b"g"]


async def test_a_group_behind_the_first_message_goes_on_there(tmp_path: Path) -> None:
    """More messages were dropped than may be unconfirmed."""
    cluster = LogCluster("store", LogSettings(path=str(tmp_path / "log.db"), retention_bytes=2000))
    await cluster.connect()
    try:
        async with gateway(cluster, tmp_path, owns_groups=False, unacknowledged_span=5) as served:
            await served.create()
            client = await served.connect()
            await client.join()
            await client.assigned()
            bodies = [b"%0100d" % number for number in range(100)]
            await client.store(*bodies)
            bounds = (await cluster.bounds("demo", "0"))["0"]
            assert bounds.first[0] > 5, "nothing was dropped"
            assert (await client.own()).errCode == 200
            async with asyncio.timeout(PATIENCE_S):
                found: list[bytes] = []
                while not found or found[-1] != bodies[-1]:
                    got = await client.get(consumed=True)
                    assert got.errCode in {200, 404}, got
                    found += bodies_of(got)
            assert found == bodies[-len(found) :]
            assert len(found) == 100 - bounds.first[0]
    finally:
        await cluster.close()
