"""Two drivers of a feed, as the servers drive it: a push to consumers with permits, and a bare pull at an offset.

Both read the embedded log, in which an SDK has stored batches as they are, between messages of other writers; the group is one of
the log, or one that the gateway keeps itself.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.adapter.formats import batch_of_units
from mqbridge.adapter.inbound import InboundSpec
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.reader import LimitsBatches, PartitionReader
from mqbridge.adapter.registry import find_format
from mqbridge.groups.store import GroupKey, GroupStore
from mqbridge.listener.delivered import Delivered
from mqbridge.listener.feed import Feed, FeedLimits
from mqbridge.listener.limits import LARGE_READ_BYTES, READ_BYTES, UnacknowledgedBytes
from mqbridge.listener.sources import LaneSource, ReaderSource
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Partition, Position, Share, Unit
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import stored_entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from tests.listener.feeds import numbers
from tests.patience import PATIENCE_S

FORMAT = "pulsar.entry"
TOPIC = "orders"
KEY = GroupKey("app", "log", TOPIC, "0", "billing")


def entry(first: int, count: int) -> Unit:
    """Return a batch of an SDK with the payloads of these numbers."""
    metadata = MessageMetadata(producer_name="sdk", sequence_id=first, publish_time=1, num_messages_in_batch=count)
    payload = join_batch((SingleMessageMetadata(sequence_id=number), b"%d" % number) for number in range(first, first + count))
    return Unit(stored_entry(metadata, payload), count, 1)


class Backing:
    """A log, its feed of one group, and a restart of both."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path, self.mode = path, mode
        self.stored = 0

    async def start(self) -> Feed:
        self.cluster = LogCluster("log", LogSettings(path=self.path / "log.db", poll="10ms", lease="2s"))
        await self.cluster.connect()
        if await self.cluster.describe(TOPIC) is None:
            await self.cluster.create(TOPIC, 1)
        self.outbound = await self.cluster.outbound(OutboundSpec(TOPIC, stamp_origin=False, keep_units=True))
        self.store = GroupStore(self.path / "state.db")
        self.unacknowledged = UnacknowledgedBytes(1 << 20)
        self.feed = Feed(KEY, FORMAT, self.cluster.numbering, self.store, FeedLimits(self.unacknowledged, 500))
        if self.mode == "backing":
            self.inbound = await self.cluster.inbound(InboundSpec((TOPIC,), KEY.group, max_bytes=READ_BYTES, keep_units=True))
            lane = await anext(self.inbound.lanes())
            self.feed.attach(LaneSource(lane, individual_ack=self.inbound.individual_ack, needs_contents=False))
        else:
            known = self.store.load(KEY)
            begin: Position = (0,) if known is None else known.mark
            self.feed.attach(ReaderSource(Partition("log", TOPIC, "0", 0), self._open_reader, begin), begin)
        return self.feed

    async def _open_reader(self, begin: Position) -> PartitionReader:
        reader = await self.cluster.reader(TOPIC, "0", begin, max_bytes=READ_BYTES)
        assert isinstance(reader, LimitsBatches)
        reader.batch_limit = self.unacknowledged.reading
        return reader

    async def send(self, count: int) -> None:
        """Store messages: batches of an SDK, and single messages of other writers."""
        unit_format = find_format(FORMAT)
        assert unit_format is not None
        end = self.stored + count
        while self.stored < end:
            size = min(random.choice([0, 1, 3, 10]), end - self.stored)
            if size:
                batch = batch_of_units(unit_format, [entry(self.stored, size)])
            else:
                size, batch = 1, Batch.of([Message(b"%d" % self.stored)])
            receipt = await self.outbound.send(0, Share(batch))
            assert not receipt.failures
            self.stored += size

    async def stop(self) -> None:
        await self.feed.detach()
        if self.mode == "backing":
            await self.inbound.close()
        await self.outbound.close()
        await self.store.close()
        await self.cluster.close()
        assert self.unacknowledged.used == self.unacknowledged.open == 0


@pytest_asyncio.fixture(params=["backing", "own"])
async def backing(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backing]:
    made = Backing(tmp_path, request.param)
    await made.start()
    yield made
    await made.stop()


class PushConsumer:
    """A consumer with permits: gets units as long as it has permits, and settles them in any order."""

    def __init__(self, feed: Feed, settle: Callable[[Delivered, "PushConsumer"], bool], permits: int = 50) -> None:
        self.received: list[int] = []
        self._feed, self._settle, self._permits = feed, settle, permits
        self._out: list[Delivered] = []
        self._wake = asyncio.Event()
        self._stop = feed.watch(self._wake.set)
        self._task = spawn(self._run(), "consumer")

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            while self._permits > 0 and (taken := self._feed.take(self._permits, 5 << 20)):
                for each in taken:
                    self._permits -= each.count
                    self.received += numbers(each)
                    self._out.append(each)
            if not self._out:
                await self._wake.wait()
            random.shuffle(self._out)
            await asyncio.sleep(0)
            while self._out:
                each = self._out.pop()
                self._permits += each.count
                if self._settle(each, self):
                    self._feed.acknowledge(each)
                else:
                    self._feed.give_back(each, counted=True)

    async def close(self) -> None:
        self._stop()
        await cancel(self._task)
        for each in self._out:
            self._feed.give_back(each, counted=False)


async def test_a_push_delivers_everything_to_consumers_that_reject_some(backing: Backing) -> None:
    rejected: set[int] = set()

    def settle(delivered: Delivered, _: PushConsumer) -> bool:
        if delivered.number % 7 == 3 and delivered.number not in rejected:
            rejected.add(delivered.number)
            return False
        return True

    consumers = [PushConsumer(backing.feed, settle) for _ in range(3)]
    sending = spawn(backing.send(1000), "sending")
    async with asyncio.timeout(PATIENCE_S):
        await sending
        while {number for each in consumers for number in each.received} != set(range(1000)) or backing.feed._units:
            await asyncio.sleep(0.01)
    for each in consumers:
        await each.close()
    assert backing.feed.counters.redelivered == len(rejected) > 0


class Puller:
    """A client that pulls at an offset, goes on behind what it got, and commits now and then, as RocketMQ's do."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.received: list[int] = []
        self.next = 0

    async def pull(self, max_messages: int = 32) -> list[int]:
        """Return the messages at the next offset; the request is held until there are some."""
        wake = asyncio.Event()
        stop = self._feed.watch(wake.set)
        try:
            while not (taken := self._feed.take(max_messages, 1 << 20)):
                await wake.wait()
                wake.clear()
        finally:
            stop()
        assert taken[0].number >= self.next
        self.next = taken[-1].number + taken[-1].count
        found = [number for each in taken for number in numbers(each)]
        self.received += found
        return found

    def commit(self, offset: int) -> None:
        self._feed.acknowledge_to(offset)


async def test_a_pull_gets_everything_in_order_and_resumes_at_its_commit(backing: Backing) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await backing.send(400)
        puller = Puller(backing.feed)
        while puller.next < 300:
            await puller.pull()
            if puller.next > 100:
                puller.commit(puller.next - 50)
        assert puller.received == list(range(puller.next))
        committed = puller.next - 50
        await backing.stop()
        await backing.start()
        resumed = Puller(backing.feed)
        await backing.send(100)
        while len(resumed.received) < 500 - committed:
            await resumed.pull()
        assert resumed.received == list(range(committed, 500))
        resumed.commit(500)


async def test_a_held_pull_is_woken_by_the_next_message(backing: Backing) -> None:
    async with asyncio.timeout(PATIENCE_S):
        puller = Puller(backing.feed)
        waiting = spawn(puller.pull(), "pull")
        for _ in range(3):
            await asyncio.sleep(0.02)
            assert not waiting.done()
        await backing.send(1)
        assert (await waiting)[0] == 0


@pytest.mark.parametrize("backing", ["own"], indirect=True)
async def test_a_feed_reads_much_at_once_only_while_there_is_room(backing: Backing) -> None:
    for _ in range(8):
        assert not (await backing.outbound.send(0, Share(Batch.of([Message(bytes(100_000))])))).failures
    backing.unacknowledged.add(1)  # what another feed holds: too much for a large batch
    counts = [len(await take_all(backing.feed))]
    backing.unacknowledged.release(1)
    backing.feed.acknowledge_to(1)
    counts.append(len(await take_all(backing.feed)))
    assert counts == [1, LARGE_READ_BYTES // 100_000]
    backing.feed.acknowledge_to(8)


async def take_all(feed: Feed) -> list[Delivered]:
    """Take what the feed reads next."""
    found: list[Delivered] = []
    ready = asyncio.Event()
    stop = feed.watch(ready.set)
    async with asyncio.timeout(PATIENCE_S):
        while not (found := feed.take(1000, 1 << 30)):
            await ready.wait()
            ready.clear()
    stop()
    return found
