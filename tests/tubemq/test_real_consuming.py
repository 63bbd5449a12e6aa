"""Consuming from a real cluster: exact offsets, bound groups, members that choose their partitions, pull, push."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from mqbridge.errors import LaneRevoked, ServerRefused
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.client.connection.connection_pool import ConnectionPool
from mqbridge.tubemq.client.consumer.membership import BoundSubscription
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.library.balanced_consumer import BalancedConsumer
from mqbridge.tubemq.library.pack_puller import PackPuller, push
from mqbridge.tubemq.wire.payload import join_payload, split_payload
from mqbridge.tubemq.wire.string_formats import PartitionKey, PartitionRef
from tests.kit.tubemq import TubeMQ
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.real import Client, RecordingReader, fresh_group, until

pytestmark = pytest.mark.cluster


async def filled(client: Client, topic: str, count: int) -> dict[str, list[tuple[int, bytes]]]:
    """`count` messages in each partition, in turn: (offset, body) by partition name."""
    sender = await client.sender(topic)
    names = list(sender.route.partitions)
    stored: dict[str, list[tuple[int, bytes]]] = {name: [] for name in names}
    for n in range(count):
        for name in names:
            body = b"%s %04d" % (name.encode(), n)
            stored[name].append(((await sender.send(name, body)).offset, body))
    return stored


async def assigned(consumer: PackConsumer, count: int) -> dict[str, HeldPartition]:
    found: dict[str, HeldPartition] = {}
    async with asyncio.timeout(SERVER_PATIENCE_S):
        async for partition in consumer.assignments():
            found[partition.ref.name] = partition
            if len(found) == count:
                break
    return found


def bodies(pack: Pack) -> list[bytes]:
    return [message.payLoadData for message in pack.messages]


async def read(partition: HeldPartition, count: int) -> tuple[int, list[bytes]]:
    """Return the offset of the first pack, and the bodies of `count` or more messages; the last pack is not confirmed.

    The messages may arrive in several packs: the Broker may have written some of them to its file between two sends.
    """
    pack = await partition.fetch()
    offset, found = pack.offset, bodies(pack)
    while len(found) < count:
        partition.confirm()
        found += bodies(await partition.fetch())
    return offset, found


async def test_a_member_starts_at_exact_offsets_and_seeks(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(3)
    stored = await filled(client, topic, 30)
    wanted = {name: messages[7][0] for name, messages in stored.items()}

    async def known(ref: PartitionRef) -> int | None:
        return wanted.get(ref.name)

    consumer = PackConsumer(client.masters, fresh_group(), [topic], offsets=known, heartbeat_s=0.5)
    await consumer.start()
    client.stack.push_async_callback(consumer.close)
    partitions = await assigned(consumer, 3)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        for name, partition in partitions.items():
            assert await read(partition, 23) == (wanted[name], [body for _, body in stored[name][7:]])
            await partition.seek(stored[name][20][0])
            assert (await read(partition, 10))[1] == [body for _, body in stored[name][20:]]
            end = await partition.commit(consumed=True)
            assert end > stored[name][-1][0]
            await partition.seek(0)
            assert (await read(partition, 30))[1] == [body for _, body in stored[name]]


@pytest.mark.parametrize("select_big", [True, False], ids=["big", "small"])
async def test_a_bound_group(client: Client, tubemq: TubeMQ, select_big: bool) -> None:
    """Two members give offsets for one partition: the larger or smaller one is used. Neither reads before both have joined."""
    topic, group = tubemq.take_topic(3), fresh_group()
    stored = await filled(client, topic, 10)
    keys = {name: PartitionKey(1, topic, number) for number, name in enumerate(stored)}
    wishes = [{"1:0": 2, "1:1": 3}, {"1:1": 6, "1:2": 8}]
    readings = []
    for wish in wishes:
        offsets = {keys[name]: stored[name][index][0] for name, index in wish.items()}
        bound = BoundSubscription("key-1", 2, offsets, select_big)
        readings.append(await client.consumer(topic, group, bound=bound))
    first, second = readings
    starts = {"1:0": 2, "1:1": 6 if select_big else 3, "1:2": 8}
    expected = {name: [body for _, body in stored[name][index:]] for name, index in starts.items()}
    await until(lambda: {**first.got, **second.got} == expected)
    assert (first.held, second.held) == (({"1:0"}, {"1:1", "1:2"}) if select_big else ({"1:0", "1:1"}, {"1:2"}))
    stranger = PackConsumer(client.masters, group, [topic], bound=BoundSubscription("key-2", 2, {}), heartbeat_s=0.5)
    with pytest.raises(ServerRefused, match="bound with another session key") as caught:
        await stranger.start()
    assert caught.value.code == 427


async def test_one_group_for_several_topics_with_a_filter_each(client: Client, tubemq: TubeMQ) -> None:
    topics = [tubemq.take_topic(1) for _ in range(3)]
    for topic in topics:
        sender = await client.sender(topic)
        for n in range(20):
            kind = ("t1", "t2")[n % 2]
            data, flag = join_payload(f"$msgType$={kind}".encode(), f"{topic} {n:02}".encode())
            await sender.send("1:0", data, flag, kind)
    group = fresh_group()
    filters = {topics[0]: {"t1"}, topics[1]: {"t2", "t3"}}
    reading = await client.consumer(",".join(topics), group, filters=filters, priority=303)
    await until(lambda: reading.count >= 40)
    got = sorted(split_payload(data, 1)[1].decode() for data in reading.got["1:0"])
    wanted = [(topic, n) for index, topic in enumerate(topics) for n in range(20) if index == 2 or n % 2 == index]
    assert got == sorted(f"{topic} {n:02}" for topic, n in wanted)
    with pytest.raises(ServerRefused) as caught:
        await client.consumer(",".join(topics), group, filters={topics[0]: {"other"}})
    assert caught.value.code == 426
    with pytest.raises(ServerRefused) as caught:
        await client.consumer(topics[0], group)
    assert caught.value.code == 425


# --- members that balance themselves ----------------------------------------------------------------------------------


async def balanced(client: Client, topic: str, group: str, **settings: Any) -> BalancedConsumer:
    consumer = BalancedConsumer(client.masters, group, topic.split(","), heartbeat_s=0.5, **settings)
    await consumer.start()
    client.stack.push_async_callback(consumer.close)
    return consumer


async def test_members_that_balance_themselves(client: Client, tubemq: TubeMQ) -> None:
    topic, other, group = tubemq.take_topic(3), tubemq.take_topic(1), fresh_group()
    stored = await filled(client, topic, 20)
    members = [await balanced(client, f"{topic},{other}", group, node=(number, 2)) for number in range(2)]
    everything = await members[0].partitions()
    assert {str(ref.key) for ref in everything} == {f"1:{topic}:0", f"1:{topic}:1", f"1:{topic}:2", f"1:{other}:0"}
    assert set(everything.values()) == {True}
    shares = [{ref.key for ref in await member.share()} for member in members]
    assert not shares[0] & shares[1]
    assert len(shares[0] | shares[1]) == 4
    key = PartitionKey(1, topic, 1)
    partition = await members[0].take(key, offset=stored["1:1"][5][0])
    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert (await read(partition, 15))[1] == [body for _, body in stored["1:1"][5:]]
    with pytest.raises(ServerRefused) as caught:
        await members[1].take(key)
    assert caught.value.code == 410
    partition.confirm()
    await members[0].give_back(key)
    with pytest.raises(LaneRevoked):
        await partition.fetch()
    again = await members[1].take(key)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not again.caught_up:
            assert await again.poll_once() is None
    with pytest.raises(ServerRefused) as caught:
        await members[1].take(PartitionKey(1, topic, 7))
    assert caught.value.code == 403
    with pytest.raises(ServerRefused) as caught:
        await client.consumer(f"{topic},{other}", group)
    assert caught.value.code == 424, "one group, one mode"
    with pytest.raises(ServerRefused) as caught:
        await balanced(client, f"{topic},{other}", group, node=(1, 2))
    assert caught.value.code == 430


# --- pull, push, flow control -----------------------------------------------------------------------------------------


async def test_pull_and_push(client: Client, tubemq: TubeMQ) -> None:
    topic, group = tubemq.take_topic(3), fresh_group()
    stored = await filled(client, topic, 20)
    expected = {name: [body for _, body in messages] for name, messages in stored.items()}
    consumer = PackConsumer(client.masters, group, [topic], heartbeat_s=0.5)
    await consumer.start()
    puller = PackPuller(consumer)
    got: dict[str, list[bytes]] = {}
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while got != expected:
            delivery = await puller.pull(SERVER_PATIENCE_S)
            assert delivery is not None
            got.setdefault(delivery.partition.ref.name, []).extend(bodies(delivery.pack))
            delivery.confirm()
    await puller.close()
    await consumer.close()

    again = PackConsumer(client.masters, fresh_group(), [topic], heartbeat_s=0.5)
    await again.start()
    pushed: dict[str, list[bytes]] = {}
    failed = False

    async def handle(partition: HeldPartition, pack: Pack) -> None:
        nonlocal failed
        if not failed:
            failed = True
            raise ValueError("not the first time")
        pushed.setdefault(partition.ref.name, []).extend(bodies(pack))

    pushing = spawn(push(again, handle, retry_s=0.05), "test push", log_errors=False)
    await until(lambda: pushed == expected)
    await again.close()
    await asyncio.wait_for(pushing, SERVER_PATIENCE_S)


async def test_flow_control_by_the_master(client: Client, tubemq: TubeMQ) -> None:
    group, topic = fresh_group(), tubemq.take_topic(1)
    rules = (
        '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":1,"freqInMs":5000}]},'
        '{"type":1,"rule":[{"zeroCnt":1,"freqInMs":150},{"zeroCnt":4,"freqInMs":250}]},'
        '{"type":3,"rule":[{"normFreqInMs":50,"filterFreqInMs":100,"minDataFilterFreqInMs":400}]}]'
    )
    tubemq.admin(
        "admin_set_group_flow_control_rule",
        groupName=group,
        statusId=1,
        qryPriorityId=302,
        flowCtrlInfo=rules,
        createUser="tests",
    )
    sender = await client.sender(topic)
    reading = await client.consumer(topic, group)
    member = reading.consumer.membership
    await until(lambda: member.flow.has_group_rules)
    assert (member.flow.no_data_waits, member.flow.data_waits, member.priority) == ([(1, 0.15), (4, 0.25)], (0.05, 0.1, 0.4), 302)
    limit = member.flow.limit(12 * 60, 22 << 20)
    assert limit is not None
    assert (limit.minute_bytes, limit.wait_s) == (1 << 20, 5.0)
    await sender.send("1:0", b"x")
    await until(lambda: reading.count == 1)
    (partition,) = reading.consumer.held_partitions.held.values()
    await until(lambda: partition.counters.misses > 4)
    counters = reading.consumer.held_partitions.snapshot()
    assert (counters["packs"], counters["messages"], counters["registrations"]) == (1, 1, 1)


@pytest.mark.parametrize(
    "rules",
    [
        '[{"type":3,"rule":[{"normFreqInMs":300000,"filterFreqInMs":300000,"minDataFilterFreqInMs":300000}]}]',
        '[{"type":0,"rule":[{"start":"00:00","end":"24:00","dltInM":21,"limitInM":1,"freqInMs":300000}]}]',
    ],
    ids=["a wait after each pack", "a rate for a reader that is behind"],
)
async def test_rules_of_the_master_slow_a_reader_down(client: Client, tubemq: TubeMQ, rules: str) -> None:
    """After one pack this group waits for minutes; meanwhile another group reads on, and often finds no message.

    A pack is more than the rate allows in 5 s (a twelfth of 1 MiB), and more than 21 MiB are left after it.
    """
    group, topic = fresh_group(), tubemq.take_topic(1)
    tubemq.admin(
        "admin_set_group_flow_control_rule",
        groupName=group,
        statusId=1,
        qryPriorityId=302,
        flowCtrlInfo=rules,
        createUser="tests",
    )
    sender = await client.sender(topic)
    bodies = [b"%d" % number + bytes(500_000) for number in range(48)]
    await asyncio.gather(*(sender.send("1:0", body) for body in bodies))
    slowed, free = await client.consumer(topic, group), await client.consumer(topic)
    await until(lambda: slowed.consumer.membership.flow.has_group_rules)
    await until(lambda: slowed.count > 0)
    read, gets = slowed.count, slowed.consumer.held_partitions.snapshot()["gets"]
    await until(lambda: free.count == len(bodies))
    misses = free.consumer.held_partitions.snapshot()["misses"]
    await until(lambda: free.consumer.held_partitions.snapshot()["misses"] > misses + 5)
    assert (slowed.count, slowed.consumer.held_partitions.snapshot()["gets"]) == (read, gets)
    assert read < len(bodies)


async def test_a_connection_for_each_partition_and_idle_ones_closed(
    tubemq: TubeMQ, open_client: Callable[..., Awaitable[Client]]
) -> None:
    topic = tubemq.take_topic(8)
    client = await open_client(tubemq, connections=ConnectionPool(shared=False, idle_s=0.4))
    sender = await client.sender(topic)
    names = list(sender.route.partitions)
    await asyncio.gather(*(sender.send(name, b"%d" % n) for n in range(20) for name in names))
    counters = {name: count for name, count in client.connections.snapshot().items() if topic in name}
    assert len(counters) == 8
    assert all(count["connections"] == 1 and count["answers"] == 20 for count in counters.values())
    await until(lambda: sum(count["reclaimed"] for count in client.connections.snapshot().values()) >= 8)
    await asyncio.gather(*(sender.send(name, b"again") for name in names))
    assert sender.counters.snapshot() | {"failed": 0, "overtaken": 0} == sender.counters.snapshot()
    reading = await client.consumer(topic)
    await until(lambda: reading.count == 8 * 21)
    assert all(found == [b"%d" % n for n in range(20)] + [b"again"] for found in reading.got.values())


async def test_partitions_closed_while_being_read_are_revoked_and_assigned_again(client: Client, tubemq: TubeMQ) -> None:
    """The Master revokes the partitions of a topic that is closed for consumers, and assigns them again when it is opened."""
    topic = tubemq.take_topic(3)
    sender = await client.sender(topic)
    reading: RecordingReader = await client.consumer(topic)
    await sender.send("1:0", b"before")
    await until(lambda: reading.count == 1 and len(reading.held) == 3)

    def accept(*, subscribe: bool) -> None:
        tubemq.admin("admin_modify_topic_info", topicName=topic, brokerId=1, modifyUser="tests", acceptSubscribe=subscribe)
        tubemq.admin("admin_reload_broker_configure", brokerId=1, modifyUser="tests")

    await asyncio.to_thread(accept, subscribe=False)
    await until(lambda: not reading.held)
    await sender.send("1:0", b"meanwhile")
    await asyncio.to_thread(accept, subscribe=True)
    await until(lambda: reading.got["1:0"] == [b"before", b"meanwhile"])
