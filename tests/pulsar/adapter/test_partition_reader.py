"""Readers of a partition: cancelled, moved and closed at any time, they lose nothing and leave nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, GapError
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.tasks import cancel, spawn
from mqbridge.pulsar.adapter.bounds import request_bounds
from mqbridge.pulsar.adapter.known_entries import KnownEntries
from mqbridge.pulsar.adapter.partition_reader import PulsarReader
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.entry import stored_entry
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata, SingleMessageMetadata
from tests.kit.conversation import until
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import scripted_client
from tests.pulsar.client.store import LEDGER, Store

PARTITION = Partition("c", "t", "-1", 0)
TOPIC = "persistent://public/default/t"


class Topic:
    """A topic of the scripted broker, and readers of it."""

    def __init__(self) -> None:
        self.store, self.client = Store(), scripted_client()
        self._open: list[PulsarReader] = []

    def add(self, *payloads: bytes, padding: int = 0) -> None:
        """Store an entry for each payload."""
        for payload in payloads:
            self.add_entry(MessageMetadata(), payload + bytes(padding))

    def add_batch(self, *payloads: bytes) -> None:
        framed = join_batch((SingleMessageMetadata(), payload) for payload in payloads)
        self.add_entry(MessageMetadata(num_messages_in_batch=len(payloads)), framed)

    def add_entry(self, metadata: MessageMetadata, payload: bytes) -> None:
        metadata.producer_name, metadata.sequence_id, metadata.publish_time = "p", 0, 1
        self.store.logs[TOPIC].append(stored_entry(metadata, payload))
        self.store._dispatch()

    def reader(self, begin: Position = (LEDGER, 0, 0), end: Position | None = None, **more: int) -> PulsarReader:
        reader = PulsarReader(self.client, PARTITION, TOPIC, begin, end, PATIENCE_S, **more)  # type: ignore[arg-type]
        self._open.append(reader)
        return reader

    @property
    def consumers(self) -> int:
        """Number of consumers at the broker."""
        return len([reader for reader in self.store.readers if reader.link.open])

    async def close(self) -> None:
        for reader in self._open:
            await reader.close()
        assert self.consumers == 0
        await self.client.close()


@pytest_asyncio.fixture
async def topic(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Topic]:
    before = asyncio.all_tasks()
    topic = Topic()
    monkeypatch.setattr(handshake, "dial", topic.store.dial)
    yield topic
    await topic.close()
    assert not [task for task in asyncio.all_tasks() - before - {asyncio.current_task()} if not task.done()]


async def iterate(times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def receive(reader: PulsarReader) -> Batch | None:
    async with asyncio.timeout(PATIENCE_S):
        return await reader.receive()


async def take(reader: PulsarReader, count: int) -> list[bytes | None]:
    """Receive batches until this many messages arrived; return their payloads."""
    found: list[bytes | None] = []
    while len(found) < count:
        batch = await receive(reader)
        assert batch is not None
        assert reader.position == batch.next
        found += [message.payload for message in batch.messages]
    return found


async def test_short_waits_that_are_cancelled_get_everything(topic: Topic) -> None:
    """Also while the consumer is opened: a wait that is shorter than that must not begin it anew."""
    topic.add(*(b"%d" % number for number in range(10)))
    reader, found = topic.reader(), []
    for _ in range(1000):
        waiting = spawn(reader.receive(), "test receive")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await cancel(waiting)
        if not waiting.cancelled() and (batch := waiting.result()) is not None:
            found += [message.payload for message in batch.messages]
    assert found == [b"%d" % number for number in range(10)]
    assert len(topic.store.asked[BaseCommand.SUBSCRIBE]) == 1


async def test_a_seek_drops_what_was_read_and_wakes_a_waiting_receive(topic: Topic) -> None:
    topic.add(b"a", b"b", b"c")
    reader = topic.reader()
    assert await take(reader, 3) == [b"a", b"b", b"c"]
    waiting = spawn(reader.receive(), "test receive")
    await asyncio.sleep(0)
    await reader.seek((LEDGER, 1, 0))
    async with asyncio.timeout(PATIENCE_S):
        batch = await waiting
    assert [message.payload for message in batch.messages] == [b"b", b"c"]
    await reader.seek((LEDGER, 0, 0))
    assert reader.position == (LEDGER, 0, 0)
    unread = spawn(reader.receive(), "test receive")
    await until(lambda: topic.consumers == 1)
    await cancel(unread)
    await reader.seek((LEDGER, 2, 0))
    assert await take(reader, 1) == [b"c"]
    assert topic.consumers == 1


async def test_seeks_that_are_cancelled_leave_no_consumer(topic: Topic) -> None:
    topic.add(b"a", b"b")
    reader = topic.reader()
    for attempt in range(20):
        waiting = spawn(reader.receive(), "test receive")
        for _ in range(attempt):
            await asyncio.sleep(0)
        seeking = spawn(reader.seek((LEDGER, 1, 0)), "test seek")
        for _ in range(attempt % 4):
            await asyncio.sleep(0)
        await cancel(seeking, waiting)
    await reader.seek((LEDGER, 0, 0))
    assert await take(reader, 2) == [b"a", b"b"]


async def test_a_closed_reader_raises_and_leaves_nothing(topic: Topic) -> None:
    reader = topic.reader()
    waiting = spawn(reader.receive(), "test receive", log_errors=False)
    await until(lambda: topic.consumers == 1)
    await reader.close()
    await reader.close()
    for receiving in (waiting, reader.receive()):
        with pytest.raises(ClusterError, match="is closed") as raised:
            await receiving
        assert raised.value.failure is Failure.FATAL
    assert topic.consumers == 0


async def test_a_range_ends_and_can_be_read_again(topic: Topic) -> None:
    topic.add_batch(b"a", b"b", b"c")
    topic.add_batch(b"d", b"e")
    reader = topic.reader((LEDGER, 0, 1), (LEDGER, 1, 1))
    for _ in range(2):
        assert await take(reader, 3) == [b"b", b"c", b"d"]
        assert await receive(reader) is None
        assert await receive(reader) is None
        assert reader.position == (LEDGER, 1, 1)
        await reader.seek((LEDGER, 0, 1))
    late = topic.reader((LEDGER, 0, 0), (LEDGER, 9, 0))
    assert await take(late, 5) == [b"a", b"b", b"c", b"d", b"e"]
    assert await receive(late) is None, "the partition ends before the range"
    topic.add(b"f")
    assert await receive(late) is None, "the end stays the end"
    await late.seek((LEDGER, 1, 1))
    assert await take(late, 2) == [b"e", b"f"]


@pytest.mark.parametrize("size", [10, 3000])
async def test_a_reader_reads_ahead_within_its_limit(topic: Topic, size: int) -> None:
    """Entries that are larger than the limit are read one by one."""
    topic.add(*(b"%d" % number for number in range(100)), padding=size)
    reader = topic.reader(max_bytes=20_000)
    await take(reader, 1)
    held = 0
    for _ in range(50):
        await asyncio.sleep(0)
        held = max(held, reader._reading._consumer.held_bytes)  # type: ignore[union-attr]
    assert held <= 20_000 + (size + 2000)
    assert reader._reading._consumer.queued < 20  # type: ignore[union-attr]
    await take(reader, 99)


async def test_a_batch_that_nobody_received_counts_as_read_ahead(topic: Topic) -> None:
    topic.add(*(b"%d" % number for number in range(100)), padding=3000)
    reader = topic.reader(max_bytes=20_000)
    await cancel_receive(reader)
    await until(lambda: reader._reading._step is not None and reader._reading._step.done())
    for _ in range(50):
        await asyncio.sleep(0)
    assert 0 < reader._reading._consumer.held_bytes <= 25_000  # type: ignore[union-attr]
    await take(reader, 100)


async def test_a_reader_is_caught_up_once_the_broker_says_so(topic: Topic) -> None:
    topic.add(b"a")
    reader = topic.reader()
    assert not await reader.confirm_caught_up(), "it has not begun"
    await take(reader, 1)
    assert not reader.caught_up, "nobody has asked"
    assert await reader.confirm_caught_up()
    assert reader.caught_up
    topic.add(b"b")
    await until(lambda: not reader.caught_up)
    assert not await reader.confirm_caught_up()
    await take(reader, 1)
    assert await reader.confirm_caught_up()
    topic.store.links[-1].drop()
    await until(lambda: not reader.caught_up)


async def test_a_batch_that_nobody_received_is_more(topic: Topic) -> None:
    topic.add(b"a")
    reader = topic.reader()
    await take(reader, 1)
    await cancel_receive(reader)
    topic.add(b"b")
    await iterate(20)
    assert not await reader.confirm_caught_up()
    assert not reader.caught_up
    assert await take(reader, 1) == [b"b"]
    assert not reader.caught_up, "nobody has asked since then"
    assert await reader.confirm_caught_up()
    await cancel_receive(reader)
    assert reader.caught_up
    topic.add(b"c")
    await iterate(20)
    assert not reader.caught_up
    assert await take(reader, 1) == [b"c"]
    assert not reader.caught_up


async def cancel_receive(reader: PulsarReader) -> None:
    """Begin a step that waits for an entry."""
    waiting = spawn(reader.receive(), "test receive")
    await iterate(5)
    await cancel(waiting)


async def test_a_reader_that_begins_at_the_end_is_caught_up(topic: Topic) -> None:
    topic.add(b"a", b"b")
    reader = topic.reader((LEDGER, 2, 0))
    waiting = spawn(reader.receive(), "test receive")
    await until(lambda: topic.consumers == 1)
    await asyncio.sleep(0)
    assert await reader.confirm_caught_up()
    await reader.seek((LEDGER, 1, 0))
    assert not reader.caught_up
    async with asyncio.timeout(PATIENCE_S):
        batch = await waiting
    assert [message.payload for message in batch.messages] == [b"b"]


def hold_opening(topic: Topic, *, is_uncancellable: bool = False) -> "asyncio.Future[None]":
    """Hold the next opening of a consumer, once it is subscribed, until the returned future has a result.

    A cancelled opening closes its consumer, as a client does, or is completed nevertheless.
    """
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    open_consumer = topic.client.consumer

    async def held(*arguments: Any) -> EntryConsumer:
        topic.client.consumer = open_consumer  # type: ignore[method-assign]
        consumer = await open_consumer(*arguments)
        try:
            await gate
        except asyncio.CancelledError:
            if not is_uncancellable:
                await consumer.close()
                raise
        return consumer

    topic.client.consumer = held  # type: ignore[assignment, method-assign]
    return gate


@pytest.mark.parametrize("is_uncancellable", [False, True])
async def test_a_seek_while_the_wake_up_of_an_opening_is_queued(topic: Topic, is_uncancellable: bool) -> None:
    topic.add(b"a", b"b", b"c")
    gate = hold_opening(topic, is_uncancellable=is_uncancellable)
    reader = topic.reader((LEDGER, 2, 0))
    waiting = spawn(reader.receive(), "test receive")
    await until(lambda: topic.consumers == 1)
    await iterate(5)
    gate.set_result(None)
    await reader.seek((LEDGER, 0, 0))
    async with asyncio.timeout(PATIENCE_S):
        batch = await waiting
    assert [message.payload for message in batch.messages] == [b"a", b"b", b"c"]
    assert topic.consumers == 1


@pytest.mark.parametrize("is_uncancellable", [False, True])
async def test_a_close_while_the_wake_up_of_an_opening_is_queued(topic: Topic, is_uncancellable: bool) -> None:
    gate = hold_opening(topic, is_uncancellable=is_uncancellable)
    reader = topic.reader()
    waiting = spawn(reader.receive(), "test receive", log_errors=False)
    await until(lambda: topic.consumers == 1)
    await iterate(5)
    gate.set_result(None)
    await reader.close()
    assert topic.consumers == 0
    with pytest.raises(ClusterError, match="is closed"):
        await waiting


async def test_a_seek_while_the_wake_up_of_the_end_is_queued(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step that would end the range is of the former position."""
    topic.add(b"a")
    gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    last_id = EntryConsumer.last_id

    async def held(consumer: EntryConsumer) -> tuple[int, int]:
        found = await last_id(consumer)
        await gate
        return found

    monkeypatch.setattr(EntryConsumer, "last_id", held)
    reader = topic.reader((LEDGER, 1, 0), (LEDGER, 9, 0))
    await cancel_receive(reader)
    await iterate(20)
    topic.add(b"b", b"c")
    gate.set_result(None)
    await reader.seek((LEDGER, 1, 0))
    assert await take(reader, 2) == [b"b", b"c"]
    assert await receive(reader) is None


async def test_a_closed_reader_cannot_be_moved(topic: Topic) -> None:
    topic.add(b"a")
    reader = topic.reader()
    await take(reader, 1)
    await reader.close()
    with pytest.raises(ClusterError, match="is closed") as raised:
        await reader.seek((LEDGER, 0, 0))
    assert raised.value.failure is Failure.FATAL
    assert reader.position == (LEDGER, 1, 0)


async def test_an_error_is_raised_and_reading_goes_on(topic: Topic) -> None:
    """The broker refuses the first consumer; nothing is lost, and a second try is made."""
    topic.add(b"a")
    subscribe = topic.store.on[BaseCommand.SUBSCRIBE]
    topic.store.on[BaseCommand.SUBSCRIBE] = lambda link, frame: link.error(
        frame.command.subscribe.request_id, pb.AuthorizationError, "not allowed"
    )
    reader = topic.reader()
    with pytest.raises(ClusterError, match="may not consume"):
        await receive(reader)
    topic.store.on[BaseCommand.SUBSCRIBE] = subscribe
    assert await take(reader, 1) == [b"a"]


async def test_a_gap_is_raised_until_a_seek_continues_behind_it(topic: Topic) -> None:
    topic.add(b"a")
    known = KnownEntries()
    known.add(TOPIC, LEDGER - 1, 5)
    reader = topic.reader((LEDGER - 1, 0, 0), None, known_entries=known)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(GapError) as raised:
            await receive(reader)
    assert raised.value.resume == (LEDGER, 0, 0)
    await reader.seek((LEDGER, 0, 0))
    assert await take(reader, 1) == [b"a"]


def chunk(number: int, of: int) -> MessageMetadata:
    return MessageMetadata(uuid="u", chunk_id=number, num_chunks_from_msg=of, total_chunk_msg_size=of)


@pytest.mark.parametrize("begin", range(4))
async def test_a_message_in_chunks_is_a_batch_without_units(topic: Topic, begin: int) -> None:
    topic.add(b"x")
    topic.add_entry(chunk(0, 2), b"1")
    topic.add(b"y")
    topic.add_entry(chunk(1, 2), b"2")
    topic.add(b"z")
    reader = topic.reader((LEDGER, begin, 0), (LEDGER, 5, 0))
    found: list[tuple[bytes | None, bool]] = []
    while (batch := await receive(reader)) is not None:
        assert batch.format == "pulsar.entry"
        found += [(message.payload, batch.has_units) for message in batch.messages]
    expected = [(b"x", True), (b"y", True), (b"12", False), (b"z", True)]
    assert found == expected[[0, 1, 1, 2][begin] :]


async def test_the_last_message_of_a_partition(topic: Topic) -> None:
    assert (await request_bounds(topic.client, TOPIC, PATIENCE_S)).last is None
    topic.add(b"a", b"b")
    assert (await request_bounds(topic.client, TOPIC, PATIENCE_S)).last == (LEDGER, 1, 0)
