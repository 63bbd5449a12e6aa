"""Ranges that begin, end or lie inside chunked messages: each message is in one range, and none makes a reader wait."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import pytest_asyncio

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Partition
from mqbridge.pulsar.adapter.bounds import request_bounds
from mqbridge.pulsar.adapter.partition_reader import PulsarReader
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.connection import handshake
from mqbridge.pulsar.client.consumer.entry_receiver import EntryReceiver
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.mapping.stored import decode_plain
from mqbridge.pulsar.wire.chunk_joiner import ChunkLimits
from mqbridge.pulsar.wire.entry import decode_entry, stored_entry
from mqbridge.pulsar.wire.ids import EntryId
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import scripted_client
from tests.pulsar.client.store import LEDGER, Reader, Store

TOPIC = "persistent://public/default/t"
OLD = 1
"""A publish time long ago."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store()
    monkeypatch.setattr(handshake, "dial", store.dial)
    return store


@pytest_asyncio.fixture
async def client(store: Store) -> AsyncIterator[ClusterClient]:
    client = scripted_client()
    yield client
    await client.close()


def fill(store: Store, *entries: str, published: int = OLD) -> None:
    """Store entries: `a0/3` is chunk 0 of 3 of the message a, and any other text is a message of its own."""
    for text in entries:
        name, _, count = text.partition("/")
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=published)
        if count:
            metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = name[0], int(name[1]), int(count)
            metadata.total_chunk_msg_size = 2 * int(count)
        store.logs[TOPIC].append(stored_entry(metadata, name.encode()))


async def read(client: ClusterClient, begin: int, end: int) -> list[str]:
    """Return the messages of a range; of an unreadable one `!` and the chunks that it has."""
    partition = Partition("c", "t", "-1", 0)
    reader = PulsarReader(client, partition, TOPIC, (LEDGER, begin, 0), (LEDGER, end, 0), PATIENCE_S)
    found = []
    async with asyncio.timeout(PATIENCE_S), closing(reader):
        while (batch := await reader.receive()) is not None:
            for entry in batch.data:
                messages = decode_plain(entry)
                if entry.defect is None:
                    found += [message.payload.decode() for message in messages]
                else:
                    found.append("!" + "".join(decode_entry(message.payload).payload.decode() for message in messages))
    return found


@asynccontextmanager
async def closing(reader: PulsarReader) -> AsyncIterator[None]:
    yield
    await reader.close()


def limit_readers(monkeypatch: pytest.MonkeyPatch, limits: ChunkLimits) -> None:
    """Let all readers have these limits of incomplete messages."""
    subscribe = ClusterClient.reader_subscription

    async def limited(client: ClusterClient, start: EntryId) -> Subscription:
        return replace(await subscribe(client, start), chunk_limits=limits)

    monkeypatch.setattr(ClusterClient, "reader_subscription", limited)


TOPICS = {
    "interleaved": (["x", "a0/3", "b0/2", "y", "a1/3", "b1/2", "a2/3", "z"], ["x", "y", "b0b1", "a0a1a2", "z"]),
    "dangling": (["a0/3", "x", "b0/2", "a1/3", "y", "b1/2"], ["x", "y", "b0b1"]),
    "dangling at the end": (["x", "b0/2", "b1/2", "a0/3", "a1/3"], ["x", "b0b1"]),
    "repeated": (["a0/3", "a1/3", "x", "a1/3", "a2/3", "y", "a1/3", "a2/3", "z"], ["x", "a0a1a2", "y", "z"]),
    "repeated at the end": (["a0/3", "a1/3", "a2/3", "a1/3", "a2/3"], ["a0a1a2"]),
    "without its first chunk": (["x", "a1/3", "b0/2", "a2/3", "b1/2"], ["x", "!a1a2", "b0b1"]),
    "only a chunk": (["a0/2"], []),
}


@pytest.mark.parametrize("limit", [1, 1000])
@pytest.mark.parametrize("name", TOPICS)
async def test_two_adjacent_ranges_have_every_message_once(
    store: Store, client: ClusterClient, monkeypatch: pytest.MonkeyPatch, name: str, limit: int
) -> None:
    limit_readers(monkeypatch, ChunkLimits(messages=limit))
    entries, expected = TOPICS[name]
    fill(store, *entries)
    for cut in range(len(entries) + 1):
        first, second = await read(client, 0, cut), await read(client, cut, len(entries))
        assert sorted(first + second) == sorted(expected), f"cut at {cut}"


# --- messages that a consumer gives up --------------------------------------------------------------------------------


async def test_a_message_that_makes_room_for_others_is_read_with_its_last_chunk(
    store: Store, client: ClusterClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limit_readers(monkeypatch, ChunkLimits(messages=1))
    fill(store, "x", "a0/2", "b0/3", "y", "b1/3", "c0/2", "b2/3", "z")
    assert await read(client, 0, 8) == ["x", "y", "b0b1b2", "z"]
    left_out = [record.message for record in caplog.records if "left out unless" in record.message]
    assert [f"position {LEDGER}:{entry}:0" in text for entry, text in zip([2, 5], left_out, strict=True)] == [True, True]


async def test_a_message_whose_chunks_arrive_late_is_read_once(
    store: Store, client: ClusterClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer gives it up before its last chunk arrives; another message never becomes complete."""
    limit_readers(monkeypatch, ChunkLimits(expiry_s=0.01))
    fill(store, "x", "a0/2", "b0/2", "y", "a1/2", "z")
    deliver, taken = store._deliver, asyncio.Event()
    monkeypatch.setattr(EntryReceiver, "_expire_chunks", tells(EntryReceiver._expire_chunks, taken))

    def hold(reader: Reader, entry: int, data: bytes) -> None:
        """Deliver what comes after the first chunks when these have expired."""
        if entry < 3 or taken.is_set():
            deliver(reader, entry, data)
        else:
            reader.permits -= 1
            held = asyncio.ensure_future(taken.wait())
            held.add_done_callback(lambda _: (setattr(reader, "permits", reader.permits + 1), deliver(reader, entry, data)))

    monkeypatch.setattr(store, "_deliver", hold)
    assert await read(client, 0, 6) == ["x", "y", "a0a1", "z"]


def tells(method: Callable[[EntryReceiver], None], event: asyncio.Event) -> Callable[[EntryReceiver], None]:
    """Return the method, which then sets the event if no message is incomplete any more."""

    def call(receiver: EntryReceiver) -> None:
        method(receiver)
        if not receiver._receiver_queue.chunks:
            event.set()

    return call


# --- bounds and logs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["a0/2", "a1/2", "x"])
@pytest.mark.parametrize("more", [[], ["x"]], ids=["last", "followed"])
async def test_the_bounds_of_a_topic_do_not_wait_for_a_message_to_become_complete(
    store: Store, client: ClusterClient, first: str, more: list[str]
) -> None:
    fill(store, first, *more)
    assert await request_bounds(client, TOPIC, PATIENCE_S) == Bounds(
        (LEDGER, 0, 0), (LEDGER, 1 + len(more), 0), last=(LEDGER, len(more), 0)
    )


@pytest.mark.parametrize(("published", "level"), [(OLD, logging.WARNING), (None, logging.INFO)], ids=["old", "new"])
async def test_a_message_that_is_left_out_is_logged(
    store: Store, client: ClusterClient, caplog: pytest.LogCaptureFixture, published: int | None, level: int
) -> None:
    caplog.set_level(logging.INFO)
    fill(store, "x", "a0/2", "y", "b0/2", "c0/2", published=published or int(time.time() * 1000))
    assert await read(client, 0, 4) == ["x", "y"]
    (record,) = [each for each in caplog.records if "left out" in each.message]
    assert record.levelno == level
    assert (
        f"2 chunked messages are incomplete at the end of the range and left out, the first begins at position {LEDGER}:1:0"
        in (record.message)
    )
