"""The connection is cut at every step of a conversation: nothing hangs, is lost or is duplicated."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest

from mqbridge.errors import ClusterError
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.connection import broker_registration, handshake, lookup
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types, reader
from mqbridge.pulsar.client.producer import entry_producer
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire import ids, schemas
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, ChunkLimits
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.entry import Entry, decode_entry
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from tests.patience import SERVER_PATIENCE_S
from tests.pulsar.client.broker import Link, scripted_client
from tests.pulsar.client.store import LEDGER, Store

TOPIC = "persistent://public/default/t"
LARGE = bytes(range(256)) * 9
PAYLOADS = [b"0", b"1", LARGE, b"3", LARGE + b"!", b"5"]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    store = Store(max_message_size=1000)
    monkeypatch.setattr(handshake, "dial", store.dial)
    for module in (broker_registration, lookup, entry_producer):
        monkeypatch.setattr(module, "FIRST_DELAY_S", 0.001)
    return store


async def converse(kind: int) -> list[bytes]:
    """Send all payloads, read them back and acknowledge each; return the payloads read."""
    client = scripted_client(operation=10.0)
    sender = client.producer(TOPIC, ProducerSettings("me", chunking=True))
    sent = [sender.send(MessageMetadata(), payload) for payload in PAYLOADS]
    consumer = await client.consumer(TOPIC, Subscription("s", kind))
    seen = []
    while len(seen) < len(PAYLOADS):
        entry = await consumer.receive()
        assert entry.defect is None
        if kind == Types.Shared and entry.payload in seen:
            consumer.acknowledge(
                entry.id
            )  # on a shared subscription, messages that were not acknowledged in time are delivered twice
            continue
        seen.append(entry.payload)
        if kind == Types.Shared:
            consumer.acknowledge(entry.id)
        else:
            consumer.acknowledge_up_to(entry.id)
    await asyncio.gather(*sent)
    while True:
        try:
            await consumer.confirm_acks()
            break
        except ClusterError:
            await asyncio.sleep(0.001)
    await sender.close()
    await consumer.close()
    await client.close()
    return seen


# --- other conversations ----------------------------------------------------------------------------------------------


COUNT = 6
NUMBERS = [b"%d" % number for number in range(COUNT)]


async def filled(client: ClusterClient) -> None:
    sender = client.producer(TOPIC, ProducerSettings("me"))
    await asyncio.gather(*(sender.send(MessageMetadata(), payload) for payload in NUMBERS))
    await sender.close()


async def take(consumer: EntryConsumer, count: int) -> list[Entry]:
    return [await consumer.receive() for _ in range(count)]


async def acknowledged(consumer: EntryConsumer, entry: Entry) -> None:
    consumer.acknowledge_up_to(entry.id)
    while True:
        try:
            await consumer.confirm_acks()
        except ClusterError:
            await asyncio.sleep(0.001)
        else:
            return


async def seek(client: ClusterClient) -> None:
    await filled(client)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    entries = await take(consumer, 4)
    await consumer.seek(ids.EARLIEST)
    assert [entry.payload for entry in await take(consumer, COUNT)] == NUMBERS
    await consumer.seek(entries[3].id)
    again = await take(consumer, COUNT - 3)
    assert [entry.payload for entry in again] == NUMBERS[3:]
    await acknowledged(consumer, again[-1])
    await consumer.close()


async def redelivery(client: ClusterClient) -> None:
    await filled(client)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    entries = await take(consumer, COUNT)
    await acknowledged(consumer, entries[1])
    consumer.redeliver()
    again = await take(consumer, COUNT - 2)
    assert [entry.payload for entry in again] == NUMBERS[2:]
    await acknowledged(consumer, again[-1])
    await consumer.close()


async def reading(client: ClusterClient) -> None:
    await filled(client)
    consumer = await client.consumer(TOPIC, reader(ids.EARLIEST))
    entries = await take(consumer, COUNT)
    assert [entry.payload for entry in entries] == NUMBERS
    assert await consumer.last_id() == (entries[-1].ledger, entries[-1].entry)
    assert not await consumer.has_more()
    await consumer.close()


async def schema(client: ClusterClient) -> None:
    version = await client.register_schema(TOPIC, schemas.STRING)
    registered = await client.schema(TOPIC)
    assert registered is not None
    assert (registered.version, registered.schema) == (version, schemas.STRING) == (bytes(8), schemas.STRING)


OTHERS = {seek: 12, redelivery: 10, reading: 9, schema: 4}
"""Conversation -> minimum number of its commands."""


@pytest.mark.parametrize("answer_first", [False, True], ids=["unheard", "unanswered"])
@pytest.mark.parametrize("other", OTHERS, ids=lambda other: other.__name__)
async def test_a_cut_at_every_step_of(
    store: Store, other: Callable[[ClusterClient], Awaitable[None]], answer_first: bool, monkeypatch
):
    """Cut at each command in turn, until the conversation ends before the cut."""
    for step in itertools.count(1):
        store = Store(max_message_size=1000)
        store.cut_at, store.answer_first = step, answer_first
        monkeypatch.setattr(handshake, "dial", store.dial)
        client = scripted_client(operation=10.0)
        try:
            async with asyncio.timeout(SERVER_PATIENCE_S):
                await other(client)
        except BaseException as error:
            error.add_note(f"cut at step {step}")
            raise
        finally:
            await client.close()
        assert len(store.logs[TOPIC]) in {0, COUNT}
        assert len(store.schemas[TOPIC]) <= 1
        if store.seen < step:
            break
    assert step > OTHERS[other]


class ClosesFirst(Store):
    """Closes the consumer for a SEEK, as brokers do, and cuts the connection before the first response to SEEK."""

    seeks = 0

    def _on_seek(self, link: Link, frame: Frame) -> None:
        self.seeks += 1
        close = pb.CommandCloseConsumer(consumer_id=frame.command.seek.consumer_id, request_id=2**64 - 1)
        link.send(close_consumer=close)
        if self.seeks == 1:
            link.loop.call_soon(link.drop)
        else:
            super()._on_seek(link, frame)
        self.readers.clear()


async def test_a_seek_is_repeated_if_the_consumer_was_closed_and_the_response_lost(store: Store, monkeypatch):
    """Only the seek itself can subscribe again, because it is in progress and has no connection."""
    store = ClosesFirst()
    monkeypatch.setattr(handshake, "dial", store.dial)
    client = scripted_client()
    await filled(client)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(consumer, 4)
    await consumer.seek((LEDGER, 2))
    assert [entry.payload for entry in await take(consumer, COUNT - 2)] == NUMBERS[2:]
    assert store.seeks == 2
    await consumer.close()
    await client.close()


# --- what the broker has ----------------------------------------------------------------------------------------------


def stored(store: Store) -> list[bytes]:
    """Return the payloads of the complete messages in the log."""
    joiner, found = ChunkJoiner(ChunkLimits()), []
    for number, data in enumerate(store.logs[TOPIC]):
        entry = decode_entry(data)
        entry.entry = number
        if describes_chunk(entry.metadata):
            found += [joined.entry.payload for joined in joiner.add(entry, 0.0) if joined.entry is not None]
        else:
            found.append(entry.payload)
    return found


async def steps(kind: int) -> int:
    store = Store(max_message_size=1000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handshake, "dial", store.dial)
        await converse(kind)
    return store.seen


@pytest.mark.parametrize("answer_first", [False, True], ids=["unheard", "unanswered"])
@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Shared], ids=["exclusive", "shared"])
async def test_a_cut_at_every_step(store: Store, kind: int, answer_first: bool, monkeypatch: pytest.MonkeyPatch):
    total = await steps(kind)
    assert total >= 15
    for step in range(1, total + 1):
        store = Store(max_message_size=1000)
        store.cut_at, store.answer_first = step, answer_first
        monkeypatch.setattr(handshake, "dial", store.dial)
        seen = await asyncio.wait_for(converse(kind), SERVER_PATIENCE_S)
        assert store.seen >= step, "or nothing was cut"
        if kind == Types.Exclusive:
            assert seen == PAYLOADS, f"cut at step {step}"
        else:
            assert sorted(seen) == sorted(PAYLOADS), f"cut at step {step}"
        assert stored(store) == PAYLOADS, f"cut at step {step}"
        cursor = store.cursors[TOPIC, "s"]
        assert cursor.mark + len(cursor.acked) == len(store.logs[TOPIC]), f"cut at step {step}: acknowledged {cursor}"
