"""The client against a real Master and Broker."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from uuid import uuid4

import pytest

from mqbridge.errors import Failure, ServerRefused
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.admin.admin import Admin
from mqbridge.tubemq.client.connection.master import MAX_TOPICS
from mqbridge.tubemq.client.consumer.group_member import MemberIdentity
from mqbridge.tubemq.client.consumer.held_partitions import HeldPartitions, StartOffset
from mqbridge.tubemq.client.consumer.pack_consumer import PackConsumer
from mqbridge.tubemq.client.consumer.pack_reader import Pack
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.partition_calls import PartitionCalls
from mqbridge.tubemq.client.consumer.range_reader import RangeReader, store_range
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.client.producer.partition_sender import PartitionSender, open_partition_sender
from mqbridge.tubemq.client.producer.routes import TopicRoute
from mqbridge.tubemq.client.producer.send_result import SendResult
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.payload import join_payload, split_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C
from tests.kit.tubemq import TubeMQ
from tests.kit.tubemq_settings import TOKEN
from tests.patience import SERVER_PATIENCE_S
from tests.tubemq.real import Client, RecordingReader, fresh_group, in_order, until

pytestmark = pytest.mark.cluster


# --- producing and consuming ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ordered", "in_flight"), [(True, 1), (True, 16), (False, None)], ids=["ordered", "16 in flight", "any order"]
)
async def test_eight_partitions_back_in_order(client: Client, tubemq: TubeMQ, ordered: bool, in_flight: int | None) -> None:
    topic = tubemq.take_topic(8)
    sender = await client.sender(topic, ordered=ordered, in_flight=in_flight)
    names = list(sender.route.partitions)
    assert names == [f"1:{number}" for number in range(8)]
    count = 500
    results = await asyncio.gather(*(sender.send(name, b"%s %05d" % (name.encode(), n)) for n in range(count) for name in names))
    assert all(isinstance(result, SendResult) for result in results)
    offsets = [result.offset for result in results]
    assert len(set(offsets)) == len(offsets), "all partitions of a store share one index"
    reading = await client.consumer(topic)
    await until(lambda: reading.count >= count * 8)
    assert reading.count == count * 8
    for name in names:
        expected = [b"%s %05d" % (name.encode(), n) for n in range(count)]
        # With more than one in flight order holds unless the Broker refused something, and then that is known.
        in_order_for_sure = in_flight == 1 or sender.counters.overtaken == 0
        assert (reading.got[name] if in_order_for_sure else sorted(reading.got[name])) == expected
    assert in_flight != 1 or sender.counters.overtaken == 0


async def test_sizes_and_attributes(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(1)
    sender = await client.sender(topic)
    payloads = [join_payload(b"k=v", b"x" * size) for size in (0, 1, 8_170, 8_192, 70_000, 1 << 20)]
    payloads.append((b"plain", 0))
    for data, flag in payloads:
        await sender.send("1:0", data, flag)
    reading = await client.consumer(topic)
    await until(lambda: reading.count >= len(payloads))
    assert reading.got["1:0"] == [data for data, _ in payloads]
    assert [split_payload(*payload)[0] for payload in payloads] == [b"k=v"] * 6 + [None]


async def test_errors_name_the_request_that_the_broker_refused(client: Client, tubemq: TubeMQ) -> None:
    sender = await client.sender(tubemq.take_topic(1))
    for data in (b"", bytes((1 << 20) + (10 << 10) + 1)):
        with pytest.raises(ServerRefused) as caught:
            await sender.send("1:0", data)
        assert (caught.value.code, caught.value.failure) == (400, Failure.REFUSED)
    await sender.send("1:0", bytes((1 << 20) + (10 << 10)))


async def test_an_unknown_topic_is_named(client: Client) -> None:
    missing = f"none_{uuid4().hex[:8]}"
    with pytest.raises(ServerRefused, match=missing) as caught:
        await open_partition_sender(client.routes, client.connections, missing)
    assert caught.value.failure is Failure.FATAL
    assert await client.routes.look_up(missing) is None
    consumer = PackConsumer(client.masters, fresh_group(), [missing])
    with pytest.raises(ServerRefused, match=missing) as caught:
        await consumer.start()
    assert caught.value.failure is Failure.FATAL


async def test_more_topics_than_one_request_to_a_master_may_name(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(2)
    sender = await client.sender(topic)
    names = [f"none_{number:04}" for number in range(MAX_TOPICS + 1)]
    client.routes._topics.update({name: TopicRoute(name) for name in names})  # to make that many would take a minute
    sender.route.partitions.clear()
    await client.routes.refresh()
    assert list(sender.route.partitions) == ["1:0", "1:1"]
    await sender.send("1:1", b"x")
    consumer = PackConsumer(client.masters, fresh_group(), names)
    with pytest.raises(ServerRefused, match=r"none_0000, none_0001, none_0002 and 1,022 more was refused .* max count is 1024"):
        await consumer.start()


async def test_filter_by_type(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(1)
    sender = await client.sender(topic)
    for number in range(60):
        kind = ("t1", "t2", None)[number % 3]
        data, flag = join_payload(f"$msgType$={kind}".encode() if kind else None, b"%02d" % number)
        await sender.send("1:0", data, flag, kind)
    # The cluster's default lets filtered consumers read only what is in the file.
    reading = await client.consumer(topic, filters={topic: {"t2"}}, priority=303)
    await until(lambda: reading.count >= 20)
    assert [split_payload(data, 1)[1] for data in reading.got["1:0"]] == [b"%02d" % n for n in range(1, 60, 3)]


async def test_a_rejected_pack_is_read_again_and_a_confirmed_one_is_not(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(1)
    sender = await client.sender(topic)
    for number in range(5):
        await sender.send("1:0", b"%d" % number)
    group = fresh_group()
    reading = await client.consumer(topic, group)
    packs: list[tuple[int, list[bytes]]] = []

    def reject_two_packs(partition: HeldPartition, pack: Pack) -> None:
        packs.append((pack.offset, [message.payLoadData for message in pack.messages]))
        partition.confirm() if len(packs) > 2 else partition.reject()

    reading.judge = reject_two_packs
    # A pack may contain some of the five messages, and others when it is read again: the Broker writes to its file meanwhile.
    await until(lambda: len(packs) >= 3 and packs[-1][1][-1] == b"4")
    everything = [b"0", b"1", b"2", b"3", b"4"]
    assert [offset for offset, _ in packs[:3]] == [0, 0, 0]
    assert all(found == everything[: len(found)] for _, found in packs[:2])
    assert [body for _, found in packs[2:] for body in found] == everything
    await sender.send("1:0", b"5")
    await until(lambda: packs[-1][1] == [b"5"])
    assert [body for _, found in packs[2:] for body in found] == [*everything, b"5"]
    await reading.consumer.close()
    await sender.send("1:0", b"6")
    again = await client.consumer(topic, group)
    await until(lambda: again.count > 0)
    assert again.got["1:0"] == [b"6"]


async def test_a_pack_that_was_not_confirmed_goes_to_the_next_member(client: Client, tubemq: TubeMQ) -> None:
    topic, group = tubemq.take_topic(1), fresh_group()
    sender = await client.sender(topic)
    await sender.send("1:0", b"once more")
    first = await client.consumer(topic, group)
    first.judge = lambda *_: None
    partition = await anext(first.consumer.assignments()) if not first.held else None
    await until(lambda: first.count > 0 or partition is not None)
    if partition is not None:
        await partition.fetch()
    await first.consumer.close()
    second = await client.consumer(topic, group)
    await until(lambda: second.count > 0)
    assert second.got["1:0"] == [b"once more"]


async def test_a_commit_returns_the_offset_of_the_next_pack(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(3)
    sender = await client.sender(topic)
    for number in range(90):
        await sender.send(f"1:{number % 3}", b"%d" % number)
    consumer = PackConsumer(client.masters, fresh_group(), [topic], heartbeat_s=0.5)
    await consumer.start()
    client.stack.push_async_callback(consumer.close)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        partition = await anext(consumer.assignments())
        pack = await partition.fetch()
        end = await partition.commit(consumed=False)
        assert end == pack.offset
        assert (await partition.fetch()).offset == end
        end = await partition.commit(consumed=True)
        assert end > pack.offset
        await sender.send(partition.ref.name, b"more")
        assert (await partition.fetch()).offset == end


async def test_latest_begins_after_the_stored_messages(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(1)
    sender = await client.sender(topic)
    await sender.send("1:0", b"old")
    reading = await client.consumer(topic, start=StartOffset.LATEST)
    await until(lambda: bool(reading.held))
    await sender.send("1:0", b"new")
    await until(lambda: reading.count > 0)
    assert reading.got["1:0"] == [b"new"]


async def test_two_members_share_the_partitions_and_hand_them_over(client: Client, tubemq: TubeMQ) -> None:
    topic, group = tubemq.take_topic(8), fresh_group()
    sender = await client.sender(topic)
    sent: set[bytes] = set()

    async def send(count: int) -> None:
        batch = [b"%06d" % (len(sent) + number) for number in range(count)]
        await asyncio.gather(*(sender.send(f"1:{n % 8}", body) for n, body in enumerate(batch)))
        sent.update(batch)

    def bodies_read(*readings: RecordingReader) -> list[bytes]:
        return [body for reading in readings for bodies in reading.got.values() for body in bodies]

    owners: dict[str, RecordingReader] = {}
    first = await client.consumer(topic, group, owners=owners)
    await send(400)
    await until(lambda: len(first.held) == 8 and first.count == 400)
    second = await client.consumer(topic, group, owners=owners)
    await send(400)
    await until(lambda: len(first.held) == 4 and len(second.held) == 4)
    assert not first.held & second.held
    await send(400)
    await until(lambda: set(bodies_read(first, second)) == sent)
    await first.consumer.close()
    await send(400)
    await until(lambda: len(second.held) == 8)
    await until(lambda: set(bodies_read(first, second)) == sent)
    assert len(bodies_read(first, second)) == len(sent), "nothing twice"
    assert not first.conflicts + second.conflicts, "two owners, at whatever time"


async def test_a_range_is_found_among_messages_of_other_partitions(client: Client, tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(3)
    sender = await client.sender(topic, ordered=False)
    refs = sender.route.partitions
    assert await store_range(client.masters, refs["1:1"], fresh_group()) == (0, 0)
    await asyncio.gather(*(sender.send("1:0", b"%d" % n) for n in range(1200)))
    stored = await sender.send("1:1", b"the one")
    await asyncio.gather(*(sender.send("1:0", b"%d" % n) for n in range(1200)))
    first, end = await store_range(client.masters, refs["1:1"], fresh_group())
    assert (first, end) == (0, 28 * 2401)

    async def read_bodies(name: str, begin: int, end: int) -> list[bytes]:
        reader = RangeReader(client.masters, refs[name], fresh_group)
        async with aclosing(reader.slices((begin, 0), (end, 0))) as slices:
            bodies = [one.payLoadData async for part in slices for one in part.pack.messages[part.first : part.last]]
        await reader.close()
        return bodies

    async with asyncio.timeout(SERVER_PATIENCE_S):
        assert await read_bodies("1:1", 0, end) == [b"the one"]
        assert await read_bodies("1:1", stored.offset, stored.offset + 28) == [b"the one"]
        assert await read_bodies("1:1", stored.offset + 28, end) == []
        assert await read_bodies("1:2", 0, end) == []
        assert len(await read_bodies("1:0", 0, end)) == 2400
        assert len(await read_bodies("1:0", 28 * 100, 28 * 110)) == 10, "cut at both ends, wherever packs end"


async def test_a_late_get_request_skips_no_pack(client: Client, tubemq: TubeMQ) -> None:
    """An abandoned get request arrives late, between two others. It skips no pack, because the Broker refuses it by then."""
    topic, group = tubemq.take_topic(1), fresh_group()
    sender = await client.sender(topic)
    name, bodies = "1:0", [b"%04d" % n + bytes(2000) for n in range(1500)]
    for body in bodies:
        sender.submit(name, body, 0, None, None, done=lambda _: None)
    await sender.flush()
    partitions = HeldPartitions(
        await member_of(client, group, topic),
        start=StartOffset.EARLIEST,
        heartbeat_s=60.0,
        budget=ReadBudget(GET_BYTES),
        offsets=None,
    )
    partitions.master_seen_at = asyncio.get_running_loop().time()
    held = await partitions.acquire(sender.route.partitions[name])
    got = [message.payLoadData for message in (await held.fetch()).messages]
    held.confirm()
    connections = client.connections.connection_to(held.ref.broker.host, held.ref.broker.port)
    late = PartitionCalls(partitions.membership, held.ref, connections)  # makes the request of the cancelled get
    held._calls.get, carry_out = hanging, held._calls.get  # type: ignore[method-assign]
    fetching = spawn(held.fetch(), "test fetch", log_errors=False)
    await asyncio.sleep(0)
    await cancel(fetching)
    held._calls.get = carry_out  # type: ignore[method-assign]
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while len(set(got)) < len(bodies):
            pack = await held.fetch()
            answer, _, _ = await late.get(consumed=True)
            assert answer.errCode == codes.DUPLICATE_PARTITION
            got += [message.payLoadData for message in pack.messages]
            held.confirm()
    assert list(dict.fromkeys(got)) == bodies, "the first pack comes again, since the get that confirmed it was never carried out"
    await held.release()


async def member_of(client: Client, group: str, topic: str) -> MemberIdentity:
    member = MemberIdentity(client.masters, group, [topic], {}, priority=303)
    await member.identify()
    return member


async def hanging(**_: object) -> tuple[GetMessageResponseB2C, int]:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


# --- restarts ---------------------------------------------------------------------------------------------------------


async def flow(client: Client, sender: PartitionSender, stop: asyncio.Event) -> int:
    """Send numbers to both partitions, a few at a time, until `stop` is set; return how many each partition got."""
    number = 0
    while not stop.is_set():
        await asyncio.gather(*(sender.send(name, b"%06d" % number) for name in sender.route.partitions))
        number += 1
        await asyncio.sleep(0.002)
    return number


@pytest.mark.parametrize("what", ["broker", *(pytest.param(what, marks=pytest.mark.thorough) for what in ("master", "both"))])
async def test_a_broker_restart_loses_no_message(
    own: TubeMQ, open_client: Callable[[TubeMQ], Awaitable[Client]], what: str
) -> None:
    client = await open_client(own)
    sender = await client.sender("demo")
    reading = await client.consumer("demo")
    stop = asyncio.Event()
    sending = spawn(flow(client, sender, stop), "test flow")
    await until(lambda: reading.count > 100)
    restart = {"broker": own.broker.restart, "master": own.master.restart, "both": own.restart}[what]
    await asyncio.to_thread(restart)
    before = reading.count
    await until(lambda: reading.count > before + 200)
    stop.set()
    sent = await sending
    expected = {b"%06d" % number for number in range(sent)}
    await until(lambda: all(set(reading.got.get(name, ())) == expected for name in sender.route.partitions))
    for messages in reading.got.values():
        assert in_order(messages)


async def test_a_broker_that_loses_its_memory(own: TubeMQ, open_client: Callable[[TubeMQ], Awaitable[Client]]) -> None:
    """The Broker lost stored messages and uses their offsets again: reading continues with the new messages."""
    client = await open_client(own)
    sender = await client.sender("demo")
    reading = await client.consumer("demo")
    await asyncio.gather(*(sender.send("1:0", b"%03d" % number) for number in range(20)))
    await until(lambda: reading.count == 20)
    await asyncio.to_thread(own.broker.kill)
    await asyncio.to_thread(own.broker.start)
    await asyncio.gather(*(sender.send("1:0", b"%03d" % number) for number in range(500, 520)))
    await until(lambda: reading.got["1:0"][-1] == b"519")


@pytest.mark.thorough
async def test_a_killed_broker_without_memory_store_loses_no_message(open_client: Callable[[TubeMQ], Awaitable[Client]]) -> None:
    # The other setting of the Broker, which the tests above do not use: every acknowledged message is in a file.
    with TubeMQ({"demo": 2}, pool={}, memory_store=False) as own:
        async with AsyncExitStack() as stack:
            client = Client(own, stack)
            stack.push_async_callback(client.connections.close)
            await client.routes.start()
            stack.push_async_callback(client.routes.close)
            sender = await client.sender("demo")
            reading = await client.consumer("demo")
            stop = asyncio.Event()
            sending = spawn(flow(client, sender, stop), "test flow")
            await until(lambda: reading.count > 100)
            await asyncio.to_thread(own.broker.kill)
            await asyncio.to_thread(own.broker.start)
            before = reading.count
            await until(lambda: reading.count > before + 100)
            stop.set()
            sent = await sending
            expected = {b"%06d" % number for number in range(sent)}
            await until(lambda: all(set(reading.got.get(name, ())) == expected for name in sender.route.partitions))


# --- administrators ---------------------------------------------------------------------------------------------------


async def test_the_admin_api(client: Client, tubemq: TubeMQ) -> None:
    admin = Admin(tubemq.admin_url.removesuffix("/webapi.htm"), TOKEN)
    client.stack.push_async_callback(admin.close)
    topic, group = f"made_{time.time_ns()}", fresh_group()
    assert await admin.partitions(topic) == {}
    await admin.create(topic, 2)
    assert await admin.partitions(topic) == {1: 2}
    await admin.create(topic, 2)
    await admin.create(topic, 5)
    assert await admin.partitions(topic) == {1: 5}
    assert topic in await admin.topics()
    assert "__offset_history__" not in await admin.topics()
    sender = await client.sender(topic)
    assert await admin.groups(topic) == []
    for name in sender.route.partitions:
        await sender.send(name, b"x")
    assert (await admin.stored(topic))["1:0"] == (0, 140)
    reading = await client.consumer(topic, group)
    await until(lambda: reading.count == 5)
    await reading.consumer.close()
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await admin.groups(topic) != [group]:
            await asyncio.sleep(0.1)
    committed = await admin.committed(topic, group)
    assert committed.keys() == sender.route.partitions.keys()
    assert all(0 < offset <= 140 for offset in committed.values())
    assert await admin.committed(topic, fresh_group()) == {}


async def test_answers_of_the_admin_api_about_other_topics_are_ignored(client: Client, tubemq: TubeMQ) -> None:
    admin = Admin(tubemq.admin_url, TOKEN)
    client.stack.push_async_callback(admin.close)
    topics = [f"made_{time.time_ns()}_{number}" for number in range(2)]
    for topic in topics:
        await admin.create(topic, 1)
        sender = await client.sender(topic)
        await sender.send(next(iter(sender.route.partitions)), b"x")
    for name in ("", ",".join(topics), f"{topics[0]},"):
        assert await admin.partitions(name) == {}
        assert await admin.stored(name) == {}
        assert await admin.groups(name) == []
        assert await admin.committed(name, fresh_group()) == {}


async def test_errors_of_the_admin_api_are_explained(client: Client, tubemq: TubeMQ) -> None:
    admin = Admin(tubemq.admin_url, "wrong")
    client.stack.push_async_callback(admin.close)
    with pytest.raises(ServerRefused, match="unauthorized") as caught:
        await admin.create(f"made_{time.time_ns()}", 1)
    assert caught.value.failure is Failure.FATAL
    assert "wrong" not in str(caught.value), "a token must not get into a log"
