"""Groups of a real Pulsar cluster for clients that pull at a number and commit a number: partitions whose entries are batches."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pulsar as sdk
import pytest
import pytest_asyncio

from mqbridge.adapter.inbound import Sharing, Start
from mqbridge.errors import LaneRevoked
from mqbridge.groups.store import GroupStore
from mqbridge.listener.backing_groups import BackingGroups, JoinedGroup
from mqbridge.listener.feed import FeedLimits
from mqbridge.listener.groups import GroupNames, GroupStart, Partitions
from mqbridge.listener.limits import UnacknowledgedBytes
from mqbridge.listener.number_reader import NumberReader
from mqbridge.listener.queue_feed import QueueFeed
from mqbridge.listener.topics import ListenedTopic, ListenedTopics, TopicTemplate
from mqbridge.message import Position
from mqbridge.pulsar.adapter.registration import ADAPTER
from tests.kit.pulsar import Pulsar
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.conftest import client_of
from tests.pulsar.entries import batch

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

FORMAT = "tubemq.pack"
SIZES = (5, 1, 3, 5, 2)
"""Messages of the entries that tests write."""
ALL = [f"{entry}.{index}" for entry, size in enumerate(SIZES) for index in range(size)]


class PulsarGateway:
    """What a listener over Pulsar makes of its cluster, for one topic and one group."""

    def __init__(self, server: Pulsar, path: Path, name: str = "a") -> None:
        config = cast("Any", ADAPTER.cluster_model)(service_url=server.service_url, admin_url=server.admin_url)
        self.name, self.cluster = name, ADAPTER.make_cluster(f"c-{name}", config)
        self.number, self.position = self.cluster.numbering.number, self.cluster.numbering.position
        self.memory, self.store = UnacknowledgedBytes(1 << 20), GroupStore(path / f"{name}.db")
        self.partitions = Partitions(self.cluster, "app", FORMAT, FeedLimits(self.memory, 1000))
        names = GroupNames("{group}", self.cluster.capabilities.group_name)
        self.groups = BackingGroups(self.cluster, self.partitions, names, self.store, name)

    async def topic(self, full: str) -> ListenedTopic:
        topics = ListenedTopics(self.cluster, TopicTemplate("{topic}"), create_partitions=None, is_reserved=lambda _: False)
        found = await topics.find(full.rpartition("/")[2], fresh=True)
        assert found is not None
        return found

    def make_feed(self, group: str, topic: ListenedTopic, index: int) -> QueueFeed:
        return self.partitions.make_queue_feed(topic, index, group, partial(self.committed, topic, group, index))

    async def committed(self, topic: ListenedTopic, group: str, index: int = 0) -> int | None:
        positions = await self.groups.committed(topic, group)
        return None if index not in positions else self.number(positions[index])

    async def join(self, topic: ListenedTopic, group: str, start: GroupStart = Start.EARLIEST) -> JoinedGroup:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            make_feed = partial(self.make_feed, group)
            return await self.groups.join([topic], group, {topic.backing: start}, Sharing.FAILOVER, make_feed)

    async def close(self) -> None:
        await self.groups.close()
        assert self.memory.used == 0
        await self.store.close()
        await self.cluster.close()


@pytest_asyncio.fixture
async def gateway(pulsar: Pulsar, tmp_path: Path) -> AsyncIterator[PulsarGateway]:
    made = PulsarGateway(pulsar, tmp_path)
    await made.cluster.connect()
    yield made
    await made.close()


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex[:8]}"


async def send(server: Pulsar, topic: str, sizes: Sequence[int] = SIZES, prefix: str = "") -> list[Position]:
    """Write batched entries of these sizes; return the positions of their messages."""
    client = client_of(server.service_url)
    producer = client.producer(topic)
    positions: list[Position] = []
    for entry, size in enumerate(sizes):
        payloads = [f"{prefix}{entry}.{index}".encode() for index in range(size)]
        sent = await producer.send(*batch(payloads))
        positions += [(sent.ledger, sent.entry, index) for index in range(size)]
    await producer.close()
    await client.close()
    return positions


async def held(joined: JoinedGroup, topic: ListenedTopic, index: int = 0) -> QueueFeed:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while (feed := joined.feed(topic, index)) is None or not feed.is_held:
            await asyncio.sleep(0.01)
    assert isinstance(feed, QueueFeed)
    return feed


async def pull(feed: QueueFeed, number: int, count: int = 100) -> list[str]:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        found = await feed.read(number, count, 1 << 20, may_skip=False)
    assert found.messages is not None
    return [(message.payload or b"").decode() for message in found.messages]


async def pull_all(feed: QueueFeed, number: int, count: int, at_once: int = 3) -> list[str]:
    """Pull until this many messages have come; the first pull is at a number, and others where the one before ended."""
    found: list[str] = []
    while len(found) < count:
        found += await pull(feed, number, min(at_once, count - len(found)))
        assert feed.next is not None
        number = feed.next
    return found


async def until_committed(gateway: PulsarGateway, topic: ListenedTopic, group: str, position: Position) -> None:
    """Wait until the subscription is at a position."""
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while (await gateway.groups.committed(topic, group))[0] != position:
            await asyncio.sleep(0.02)


async def test_pulls_get_everything_in_order_and_commits_move_the_subscription(
    pulsar: Pulsar, gateway: PulsarGateway, group: str
) -> None:
    full = pulsar.take_topic(1)
    positions = await send(pulsar, f"{full}-partition-0")
    topic = await gateway.topic(full)
    joined = await gateway.join(topic, group)
    feed, begin = await held(joined, topic), await gateway.committed(topic, group)
    assert begin == gateway.number(positions[0])
    assert await pull_all(feed, begin, len(ALL)) == ALL
    ends = {index for index, position in enumerate(positions, 1) if index == len(ALL) or positions[index][1] != position[1]}
    whole = positions[0]
    for index, position in enumerate(positions, 1):
        after = gateway.number(position) + 1
        assert feed.commit(after)
        assert feed.committed == after
        if index in ends:
            whole = (position[0], position[1] + 1, 0)
        await until_committed(gateway, topic, group, whole)
    assert feed.is_settled
    joined.release()
    await joined.leave()


async def test_a_commit_inside_an_entry_waits_for_the_rest_and_nothing_is_lost(
    pulsar: Pulsar, gateway: PulsarGateway, group: str
) -> None:
    full = pulsar.take_topic(1)
    positions = await send(pulsar, f"{full}-partition-0")
    topic = await gateway.topic(full)
    joined = await gateway.join(topic, group)
    feed = await held(joined, topic)
    assert await pull_all(feed, gateway.number(positions[0]), len(ALL)) == ALL
    committed = gateway.number(positions[7])  # one message of the third entry is before it
    assert feed.commit(committed)
    joined.release()
    await joined.leave()
    begin = await gateway.committed(topic, group)
    assert begin == gateway.number(positions[6]), "the third entry begins there"
    joined = await gateway.join(topic, group)
    feed = await held(joined, topic)
    assert await pull(feed, committed, 2) == ALL[7:9], "a client that knows its number gets nothing twice"
    joined.release()
    await joined.leave()
    joined = await gateway.join(topic, group)
    assert await pull(await held(joined, topic), begin, 3) == ALL[6:9], "another one gets the whole entry again"
    joined.release()
    await joined.leave()


async def test_a_pull_goes_on_after_the_last_message_of_an_entry(pulsar: Pulsar, gateway: PulsarGateway, group: str) -> None:
    full = pulsar.take_topic(1)
    positions = await send(pulsar, f"{full}-partition-0")
    topic = await gateway.topic(full)
    joined = await gateway.join(topic, group)
    feed = await held(joined, topic)
    found, number = [], gateway.number(positions[0])
    for position in positions:
        found += await pull(feed, number, 1)
        number = gateway.number(position) + 1
        feed.commit(number)
    assert found == ALL
    await until_committed(gateway, topic, group, (positions[-1][0], positions[-1][1] + 1, 0))
    assert await feed.confirm_caught_up()
    assert feed.caught_up
    await send(pulsar, f"{full}-partition-0", [1], "more")
    assert await pull(feed, number) == ["more0.0"]
    joined.release()
    await joined.leave()


async def test_a_group_is_moved_to_any_number(pulsar: Pulsar, gateway: PulsarGateway, group: str) -> None:
    full = pulsar.take_topic(1)
    positions = await send(pulsar, f"{full}-partition-0")
    topic = await gateway.topic(full)
    joined = await gateway.join(topic, group)
    feed = await held(joined, topic)
    assert await pull_all(feed, gateway.number(positions[0]), 9) == ALL[:9]
    for index in (11, 3, 0, 5, 12):
        await feed.seek(positions[index])
        assert feed.committed == feed.next == gateway.number(positions[index])
        assert (await pull_all(feed, feed.next, len(ALL) - index)) == ALL[index:]
        await until_committed(gateway, topic, group, (*positions[index][:2], 0))
    for last in (9, 4):  # behind the last message of an entry, where its number ends
        ledger, entry, offset = positions[last - 1]
        await feed.seek((ledger, entry, offset + 1))
        assert (await pull_all(feed, gateway.number((ledger, entry, offset + 1)), len(ALL) - last)) == ALL[last:]
    ledger, entry, offset = positions[-1]
    for is_inside in (False, True):
        end = (ledger, entry, offset + 1) if is_inside else (ledger, entry + 1, 0)
        await feed.seek(end)
        reading = asyncio.ensure_future(pull(feed, gateway.number(end)))
        await asyncio.sleep(0)
        (position,) = await send(pulsar, f"{full}-partition-0", [1], "more")
        assert await reading == ["more0.0"]
        ledger, entry, offset = position
    joined.release()
    await joined.leave()


async def test_a_new_group_begins_where_it_says(pulsar: Pulsar, gateway: PulsarGateway, group: str) -> None:
    full = pulsar.take_topic(1)
    positions = await send(pulsar, f"{full}-partition-0")
    topic = await gateway.topic(full)
    ledger, entry, _ = positions[-1]
    for start, expected in ((Start.EARLIEST, positions[0]), (Start.LATEST, (ledger, entry + 1, 0))):
        joined = await gateway.join(topic, f"{group}-{start.value}", start)
        assert await gateway.groups.committed(topic, f"{group}-{start.value}") == {0: expected}
        feed = await held(joined, topic)
        if start is Start.LATEST:
            await send(pulsar, f"{full}-partition-0", [2], "more")
        found = await pull(feed, gateway.number(expected), 2)
        assert found == (ALL[:2] if start is Start.EARLIEST else ["more0.0", "more0.1"])
        joined.release()
        await joined.leave()


async def test_a_group_begins_in_an_empty_partition(pulsar: Pulsar, gateway: PulsarGateway, group: str) -> None:
    full = pulsar.take_topic(1)
    topic = await gateway.topic(full)
    for start in (Start.EARLIEST, Start.LATEST):
        name = f"{group}-{start.value}"
        joined = await gateway.join(topic, name, start)
        feed, begin = await held(joined, topic), await gateway.committed(topic, name)
        assert begin is not None
        assert await gateway.make_feed(name, topic, 0)._find_bounds() == (0, 0)
        reading = asyncio.ensure_future(pull(feed, begin))
        await asyncio.sleep(0)
        await send(pulsar, f"{full}-partition-0", [2], "first")
        assert await reading == ["first0.0", "first0.1"]
        joined.release()
        await joined.leave()
        full = pulsar.take_topic(1)
        topic = await gateway.topic(full)


async def test_a_second_gateway_gets_some_partitions_and_nothing_is_lost(
    pulsar: Pulsar, gateway: PulsarGateway, group: str, tmp_path: Path
) -> None:
    full = pulsar.take_topic(4)
    positions = [await send(pulsar, f"{full}-partition-{index}", prefix=f"{index}-") for index in range(4)]
    topic = await gateway.topic(full)
    joined = await gateway.join(topic, group)
    feeds = [await held(joined, topic, index) for index in range(4)]
    seen: list[set[str]] = [set() for _ in feeds]
    for index, feed in enumerate(feeds):
        found = await pull_all(feed, gateway.number(positions[index][0]), 9)
        seen[index] |= set(found)
        assert feed.commit(gateway.number(positions[index][7]))
    other = PulsarGateway(pulsar, tmp_path, "b")
    await other.cluster.connect()
    theirs = await other.join(topic, group)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while sum(feed.is_held for feed in feeds) != 2:
            await asyncio.sleep(0.01)
    for index, first in enumerate(feeds):
        feed = first
        if not first.is_held:
            with pytest.raises(LaneRevoked):
                await first.seek(positions[index][0])
            feed = await held(theirs, topic, index)
            assert await other.committed(topic, group, index) in {gateway.number(positions[index][at]) for at in (0, 5, 6)}
            number = gateway.number(positions[index][7])
        else:
            number = feed.next or 0
        found = await pull_all(feed, number, len(ALL) - (9 if feed is first else 7))
        seen[index] |= set(found)
        assert found == [f"{index}-{each}" for each in ALL][-len(found) :]
        assert feed.commit(gateway.number(positions[index][-1]) + 1)
    assert seen == [{f"{index}-{each}" for each in ALL} for index in range(4)]
    for membership in (theirs, joined):
        membership.release()
        await membership.leave()
    ends = {index: (last[0], last[1] + 1, 0) for index, last in enumerate(each[-1] for each in positions)}
    assert await gateway.groups.committed(topic, group) == ends
    await other.close()


async def test_a_reader_reads_from_any_number(pulsar: Pulsar, gateway: PulsarGateway) -> None:
    full = pulsar.take_topic(1)
    positions = await send(pulsar, f"{full}-partition-0")
    topic = await gateway.topic(full)
    reader = NumberReader(partial(gateway.partitions.source, topic, 0), gateway.cluster.numbering, FORMAT, gateway.memory)
    async with asyncio.timeout(SERVER_PATIENCE_S):
        for index, position in [(0, (-1, -1, 0)), (0, (0, 0, 0)), *enumerate(positions)]:
            number = gateway.number(position)
            found: list[Position] = []
            while len(found) < len(ALL) - index:
                part = await reader.read(number, 4, 1 << 20)
                found += [gateway.position(each) for each in part.numbers]
                number = part.numbers[-1] + 1
                assert reader.follows(number)
            assert found == positions[index:]
    await reader.close()


@pytest.mark.sdk
async def test_batches_of_an_sdk_are_pulled_and_committed(pulsar: Pulsar, gateway: PulsarGateway, group: str) -> None:
    full, expected = pulsar.take_topic(1), [str(number) for number in range(300)]

    def produce() -> None:
        client = sdk.Client(pulsar.service_url, logger=sdk.ConsoleLogger(sdk.LoggerLevel.Error))
        producer = client.create_producer(
            full, batching_enabled=True, batching_max_messages=7, batching_max_publish_delay_ms=1000
        )
        for text in expected:
            producer.send_async(text.encode(), lambda *_: None)
        producer.flush()
        client.close()

    await asyncio.to_thread(produce)
    topic = await gateway.topic(full)
    joined = await gateway.join(topic, group)
    feed, number = await held(joined, topic), await gateway.committed(topic, group)
    found: list[str] = []
    while len(found) < len(expected):
        assert number is not None
        found += await pull(feed, number, 10)
        number = feed.next
        assert number is not None
        assert feed.commit(number - 1 if len(found) < 100 else number)
    assert found == expected
    joined.release()
    await joined.leave()
    assert await gateway.committed(topic, group) == number
