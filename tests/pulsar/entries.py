"""Entries for tests to send, and the payloads of received entries."""

import asyncio

from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.client.producer.entry_producer import EntryProducer
from mqbridge.pulsar.client.producer.pending_entry import SendResult
from mqbridge.pulsar.wire.batch import join_batch, split_batch
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata, SingleMessageMetadata
from tests.patience import SERVER_PATIENCE_S


def batch(payloads: list[bytes]) -> tuple[MessageMetadata, bytes, int]:
    """Return the arguments of `EntryProducer.send` for a batch of these payloads."""
    framed = join_batch([(SingleMessageMetadata(), payload) for payload in payloads])
    return MessageMetadata(num_messages_in_batch=len(payloads)), framed, len(payloads)


def payloads(entry: Entry) -> list[bytes]:
    assert entry.defect is None, entry.defect
    if not entry.is_batch:
        return [entry.payload]
    return [payload for _, payload in split_batch(entry.payload, entry.count)]


async def send_all(producer: EntryProducer, first: int, count: int) -> list[SendResult]:
    """Send `count` entries, each with one message that contains its number, from `first` on."""
    sent = [producer.send(MessageMetadata(), b"%d" % number) for number in range(first, first + count)]
    return await asyncio.wait_for(asyncio.gather(*sent), SERVER_PATIENCE_S)


async def take(consumer: EntryConsumer, count: int) -> list[Entry]:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        return [await consumer.receive() for _ in range(count)]


async def drain(consumer: EntryConsumer) -> list[Entry]:
    """Receive all entries that the topic still has."""
    found = []
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while await consumer.has_more():
            found.append(await consumer.receive())
    return found


def numbers(entries: list[Entry]) -> list[int]:
    return [int(payload) for entry in entries for payload in payloads(entry)]
