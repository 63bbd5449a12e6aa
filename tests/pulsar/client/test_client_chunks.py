"""Chunked messages: how the producer splits them, and what the consumer must not acknowledge, skip or drop too early."""

import asyncio
from dataclasses import replace

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition
from mqbridge.pulsar.adapter.lane import PulsarLane
from mqbridge.pulsar.adapter.partition_reader import PulsarReader
from mqbridge.pulsar.client import cluster_client
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types, reader
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.chunk_joiner import ChunkLimits
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS
from mqbridge.pulsar.wire.entry import decode_entry
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, ends_at, in_turn, silent, until

TOPIC = "persistent://public/default/t"
LIMIT = 1 << 20
"""The scripted broker's maximum message size."""
LARGE = bytes(range(256)) * (10 * LIMIT // 1024)
CHUNKED = ProducerSettings("me", chunking=True)


@pytest.fixture
def entries(broker: Broker):
    """Every SEND as a pair of its command and its entry, in order."""
    seen: list = []
    receive = broker.receive

    def note(link, frame):
        if frame.type == BaseCommand.SEND:
            seen.append((frame.command.send, decode_entry(frame.data, frame.entry_offset)))
        receive(link, frame)

    broker.receive = note  # type: ignore[method-assign]
    return seen


# --- producing --------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_too_large_is_split_and_has_one_receipt(broker: Broker, client, entries):
    producer = client.producer(TOPIC, CHUNKED)
    sent = [producer.send(MessageMetadata(), payload) for payload in (b"a", LARGE, b"b")]
    receipts = await asyncio.gather(*sent)
    parts = [entry for _, entry in entries[1:-1]]
    assert [(entry.metadata.chunk_id, entry.metadata.num_chunks_from_msg) for entry in parts] == [(n, 3) for n in range(3)]
    assert {(entry.metadata.uuid, entry.metadata.total_chunk_msg_size) for entry in parts} == {("me-1", len(LARGE))}
    assert b"".join(entry.payload for entry in parts) == LARGE
    assert [(asked.sequence_id, asked.is_chunk) for asked, _ in entries] == [(0, False), *[(1, True)] * 3, (2, False)]
    assert all(len(entry.payload) + entry.metadata.ByteSize() <= LIMIT for entry in parts)
    assert [(receipt.entry, receipt.first_chunk) for receipt in receipts] == [(0, None), (3, (1, 1)), (4, None)]
    await producer.close()


async def test_a_message_is_compressed_before_it_is_split(broker: Broker, client, entries):
    producer = client.producer(TOPIC, ProducerSettings(codec=CODEC_NUMBERS["zstd"], chunking=True, chunk_bytes=100))
    await producer.send(MessageMetadata(), LARGE)
    metadata = entries[0][1].metadata
    assert (metadata.compression, metadata.uncompressed_size) == (pb.ZSTD, len(LARGE))
    assert max(len(entry.payload) for _, entry in entries) == 100
    assert sum(len(entry.payload) for _, entry in entries) == metadata.total_chunk_msg_size < len(LARGE)
    await producer.close()


async def test_a_batch_is_never_split(broker: Broker, client):
    producer = client.producer(TOPIC, CHUNKED)
    with pytest.raises(ClusterError) as caught:
        await producer.send(MessageMetadata(num_messages_in_batch=2), LARGE, 2)
    assert caught.value.failure is Failure.RETRY, "each message may be small enough"
    await producer.close()


async def test_chunks_without_receipts_are_sent_again_after_a_lost_connection(broker: Broker, client, entries):
    broker.on[BaseCommand.SEND] = in_turn(broker.store, silent)
    producer = client.producer(TOPIC, CHUNKED)
    sent = producer.send(MessageMetadata(), LARGE)
    await until(lambda: len(entries) == 3)
    broker.on[BaseCommand.SEND] = broker.store
    broker.link.drop()
    receipt = await sent
    assert [entry.metadata.chunk_id for _, entry in entries] == [0, 1, 2, 1, 2]
    assert receipt.first_chunk == (1, 0)
    await producer.close()


async def test_a_chunk_that_is_refused_ends_its_message_and_no_other(broker: Broker, client, entries):
    def refuse(link, frame):
        asked = frame.command.send
        error = pb.CommandSendError(producer_id=0, sequence_id=asked.sequence_id, error=pb.NotAllowedError, message="no")
        link.send(send_error=error)

    broker.on[BaseCommand.SEND] = in_turn(broker.store, refuse, broker.store)
    producer = client.producer(TOPIC, CHUNKED)
    done = await asyncio.gather(
        *[producer.send(MessageMetadata(), payload) for payload in (LARGE, b"next")], return_exceptions=True
    )
    assert isinstance(done[0], ClusterError)
    assert done[0].failure is Failure.REFUSED
    assert not isinstance(done[1], BaseException)
    await producer.close()


# --- consuming --------------------------------------------------------------------------------------------------------


class Sender:
    """Sends chunks of three-chunk messages to consumer 0, each as the next entry of ledger 1."""

    def __init__(self, broker: Broker) -> None:
        self.broker, self.next = broker, 0

    def chunk(self, uuid: str, number: int, entry: int | None = None, **more) -> int:
        at = self.next if entry is None else entry
        self.next = max(self.next, at + 1)
        metadata = {"uuid": uuid, "chunk_id": number, "num_chunks_from_msg": 3, "total_chunk_msg_size": 9}
        self.broker.link.message(0, 1, at, f"{uuid}-{number}".encode(), metadata=metadata, **more)
        return at

    def plain(self, payload: bytes, entry: int | None = None) -> None:
        at = self.next if entry is None else entry
        self.next = max(self.next, at + 1)
        self.broker.link.message(0, 1, at, payload)


def acknowledged(broker: Broker) -> list[tuple[bool, list[int]]]:
    return [
        (ack.ack_type == pb.CommandAck.Cumulative, [ids.entry_id(each)[1] for each in ack.message_id])
        for ack in broker.asked[BaseCommand.ACK]
    ]


async def test_a_shared_consumer_acknowledges_every_chunk(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared))
    sender = Sender(broker)
    for number in range(3):
        sender.chunk("a", number)
    entry = await consumer.receive()
    assert (entry.payload, entry.id) == (b"a-0a-1a-2", (1, 2))
    consumer.redeliver([entry.id])
    await until(lambda: broker.asked[BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES])
    (asked,) = broker.asked[BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES]
    assert [ids.entry_id(each)[1] for each in asked.message_ids] == [0, 1, 2]
    for number in range(3):
        sender.chunk("a", number, number, redelivery_count=1)
    entry = await consumer.receive()
    assert entry.redelivery_count == 1
    consumer.acknowledge(entry.id)
    await consumer.close()
    assert acknowledged(broker) == [(False, [0, 1, 2])]


async def test_a_cumulative_acknowledgement_stops_before_an_open_message(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    sender.plain(b"first")
    for uuid, number in (("b", 0), ("a", 0), ("a", 1), ("a", 2)):
        sender.chunk(uuid, number)
    assert (await consumer.receive()).payload == b"first"
    entry = await consumer.receive()
    assert entry.payload == b"a-0a-1a-2"
    consumer.acknowledge_up_to(entry.id)
    consumer.flush_acks()
    await until(lambda: len(acknowledged(broker)) == 2)
    cumulative, individual = acknowledged(broker)
    assert cumulative == (True, [0]), "the chunk at 1 belongs to a message that nobody has seen"
    assert individual == (False, [2, 3, 4])
    sender.chunk("b", 1)
    sender.chunk("b", 2)
    consumer.acknowledge_up_to((await consumer.receive()).id)
    await consumer.close()
    assert acknowledged(broker)[-1] == (True, [6])


async def consume_behind_a_dangling_chunk(broker: Broker, consumer, sender: Sender) -> None:
    """Acknowledge a message before the first chunk of b, and three behind it, one of them chunked; another stays in flight."""
    sender.plain(b"first")
    for uuid, number in (("b", 0), ("a", 0), ("a", 1), ("a", 2)):
        sender.chunk(uuid, number)
    for payload in (b"behind", b"too", b"in flight"):
        sender.plain(payload)
    for expected in (b"first", b"a-0a-1a-2", b"behind", b"too"):
        entry = await asyncio.wait_for(consumer.receive(), PATIENCE_S)
        assert entry.payload == expected
    consumer.acknowledge_up_to(entry.id)
    await consumer.receive()
    consumer.flush_acks()
    await until(lambda: len(acknowledged(broker)) == 2)
    assert acknowledged(broker) == [(True, [0]), (False, [2, 3, 4])]


@pytest.mark.parametrize("is_queued_together", [False, True])
async def test_a_consumer_that_closes_acknowledges_what_is_behind_an_open_message(
    broker: Broker, client, is_queued_together: bool
):
    """Else the next consumer would receive all of it once more, although it was acknowledged."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    if is_queued_together:
        sender.chunk("b", 0)
        for payload in (b"behind", b"too", b"in flight"):
            sender.plain(payload)
        await until(lambda: consumer.queued == 3)
        entries = consumer.take_many(1 << 20, 1 << 20, 2)
        consumer.acknowledge_up_to(entries[-1].id)
        consumer.take_many(1 << 20, 1 << 20, 2)
        await consumer.close()
        assert acknowledged(broker) == [(True, [-1]), (False, [1, 2])]
    else:
        await consume_behind_a_dangling_chunk(broker, consumer, sender)
        await consumer.close()
        assert acknowledged(broker)[2:] == [(False, [5, 6])]


async def test_a_consumer_that_loses_activity_acknowledges_what_is_behind_an_open_message(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Failover))

    def set_active(is_active: bool) -> None:
        broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=is_active))

    set_active(True)
    await consume_behind_a_dangling_chunk(broker, consumer, Sender(broker))
    set_active(False)
    await until(lambda: len(acknowledged(broker)) == 3)
    assert acknowledged(broker)[2] == (False, [5, 6])
    await consumer.close()


async def test_a_consumer_that_closes_acknowledges_nothing_of_a_redelivery(broker: Broker, client):
    """After a redelivery, what was delivered behind the open message and not acknowledged is to come again."""
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 7, cursor=(1, 0))
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await consume_behind_a_dangling_chunk(broker, consumer, Sender(broker))
    consumer.redeliver()
    await until(lambda: consumer.registrations == 2)
    await consumer.close()
    assert acknowledged(broker)[2:] == [(False, [5, 6])]


async def test_an_incomplete_message_is_still_to_come(broker: Broker, client):
    """So a run until the topic is read to its end also ends with the dead letters of its incomplete messages."""
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 1)
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(expiry_s=0.05)))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"last")
    assert await take(consumer) == (1, False)
    assert await consumer.has_more()
    assert await take(consumer) == (0, True)
    assert not await consumer.has_more()
    await consumer.close()


async def test_what_arrives_before_a_repeated_chunk_while_the_broker_is_asked_is_still_to_come(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    for number in range(3):
        sender.chunk("a", number)
    await consumer.receive()

    def deliver_first(link, frame):
        sender.plain(b"last")
        sender.chunk("a", 2)
        ends_at(1, 4)(link, frame)

    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = deliver_first
    assert await consumer.has_more()
    assert (await consumer.receive()).payload == b"last"
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 4)
    assert not await consumer.has_more()
    await consumer.close()


async def test_late_chunks_without_the_first_one_delay_no_acknowledgement(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    sender.chunk("a", 1)
    sender.plain(b"between")
    sender.chunk("a", 2)
    assert [await take(consumer) for _ in range(3)] == [(0, True), (1, False), (2, True)]
    consumer.acknowledge_up_to((1, 2))
    await consumer.close()
    assert acknowledged(broker) == [(True, [2])]


async def test_a_late_chunk_that_was_never_delivered_is_delivered_after_a_reconnection(broker: Broker, client):
    """The first chunk expires at the broker while the consumer reconnects. What is left of the message must not be lost."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.chunk("a", 1)
    sender.plain(b"later")
    assert await take(consumer) == (2, False)
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    sender.chunk("a", 1, 1)
    assert await take(consumer) == (1, True)
    consumer.acknowledge_up_to((1, 2))
    consumer.acknowledge_up_to((1, 1))
    await consumer.close()
    assert acknowledged(broker)[-1] == (True, [2])


async def test_after_a_reconnection_open_messages_are_joined_and_complete_ones_skipped(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    order = [("b", 0), ("a", 0), ("a", 1), ("b", 1), ("a", 2)]
    for uuid, number in order:
        sender.chunk(uuid, number)
    assert (await consumer.receive()).payload == b"a-0a-1a-2"
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    for entry, (uuid, number) in enumerate(order):
        sender.chunk(uuid, number, entry)
    sender.chunk("b", 2)
    assert (await consumer.receive()).payload == b"b-0b-1b-2"
    assert consumer.queued == 0
    await consumer.close()


async def test_chunks_whose_acknowledgement_was_lost_are_acknowledged_when_redelivered(broker: Broker, client):
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 6, cursor=(1, -1))
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    order = [("b", 0), ("a", 0), ("a", 1), ("a", 2), ("c", 0), ("c", 1), ("c", 2)]
    for uuid, number in order:
        sender.chunk(uuid, number)
    consumer.acknowledge_up_to((await consumer.receive()).id)
    assert (await consumer.receive()).payload == b"c-0c-1c-2"
    consumer.flush_acks()
    await until(lambda: acknowledged(broker))
    broker.asked[BaseCommand.ACK].clear()
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    for entry, (uuid, number) in enumerate(order):
        sender.chunk(uuid, number, entry)
    await until(lambda: (False, [1, 2, 3]) in acknowledged(broker))
    individual = [entries for cumulative, entries in acknowledged(broker) if not cumulative]
    assert individual == [[1, 2, 3]], "b is not complete, and nobody has acknowledged c"
    await consumer.close()


async def test_a_reader_resumes_at_the_first_chunk_of_the_oldest_open_message(broker: Broker, client):
    reader = await client.consumer(TOPIC, Subscription("r", reader_from=(1, 0)))
    sender = Sender(broker)
    sender.plain(b"0")
    order = [("b", 0), ("a", 0), ("a", 1), ("a", 2), ("b", 1)]
    for uuid, number in order:
        sender.chunk(uuid, number)
    assert [(await reader.receive()).payload for _ in range(2)] == [b"0", b"a-0a-1a-2"]
    broker.link.drop()
    await until(lambda: reader.registrations == 2)
    asked = broker.asked[BaseCommand.SUBSCRIBE][-1]
    assert ids.entry_id(asked.start_message_id) == (1, 1)
    for entry, (uuid, number) in enumerate(order, 1):
        sender.chunk(uuid, number, entry)
    sender.chunk("b", 2)
    assert (await reader.receive()).payload == b"b-0b-1b-2"
    broker.link.drop()
    await until(lambda: reader.registrations == 3)
    assert ids.entry_id(broker.asked[BaseCommand.SUBSCRIBE][-1].start_message_id) == (1, 6)
    await reader.close()


async def test_repeated_chunks_of_a_joined_message_are_acknowledged_undelivered(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    for number in (0, 1, 2, 0, 1):
        sender.chunk("a", number)
    entry = await consumer.receive()
    assert (entry.id, consumer.queued, consumer.held_bytes) == ((1, 2), 0, 0)
    await until(lambda: acknowledged(broker))
    assert acknowledged(broker) == [(False, [3, 4])]

    def last(link, frame):
        request_id = frame.command.getLastMessageId.request_id
        message_id = ids.message_id(1, 4)
        link.send(getLastMessageIdResponse=pb.CommandGetLastMessageIdResponse(last_message_id=message_id, request_id=request_id))

    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = last
    assert not await consumer.has_more()
    await consumer.close()


async def test_a_message_without_its_last_chunk_expires_as_a_defective_entry(broker: Broker, client):
    limits = ChunkLimits(expiry_s=0.05)
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared, chunk_limits=limits))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.chunk("a", 1)
    entry = await asyncio.wait_for(consumer.receive(), PATIENCE_S)
    assert "only 2 of 3" in str(entry.defect)
    consumer.acknowledge(entry.id)
    await consumer.close()
    assert acknowledged(broker) == [(False, [0, 1])]


async def test_chunks_do_not_expire_while_none_can_arrive(broker: Broker, client):
    limits = ChunkLimits(expiry_s=0.02)
    consumer = await client.consumer(TOPIC, Subscription("s", max_bytes=1, chunk_limits=limits))
    sender = Sender(broker)
    sender.plain(b"in the way")
    sender.chunk("a", 0)
    await asyncio.sleep(0.2)
    assert (consumer.queued, len(consumer._receiver_queue.chunks)) == (1, 1)
    assert consumer._receiver_queue.permits.outstanding <= 0
    await consumer.receive()
    sender.chunk("a", 1)
    sender.chunk("a", 2)
    entry = await consumer.receive()
    assert (entry.defect, entry.payload) == (None, b"a-0a-1a-2")
    await consumer.close()


async def test_a_message_larger_than_the_budget_is_delivered(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", max_bytes=1000))
    for number in range(20):
        metadata = {"uuid": "x", "chunk_id": number, "num_chunks_from_msg": 20, "total_chunk_msg_size": 20 << 20}
        broker.link.message(0, 1, number, bytes(1 << 20), metadata=metadata)
    entry = await consumer.receive()
    assert (len(entry.payload), entry.defect, consumer.registrations) == (20 << 20, None, 1)
    assert consumer.held_bytes == 0
    await consumer.close()


async def test_a_chunk_with_invalid_numbers_is_delivered_alone_and_once(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    sender.chunk("a", 0)
    metadata = {"uuid": "a", "chunk_id": 7, "num_chunks_from_msg": -1, "total_chunk_msg_size": 9}
    broker.link.message(0, 1, 1, b"bad", metadata=metadata)
    sender.next = 2
    sender.chunk("a", 1)
    sender.chunk("a", 2)
    bad, good = [await asyncio.wait_for(consumer.receive(), PATIENCE_S) for _ in range(2)]
    assert (bad.id, "invalid chunk fields" in str(bad.defect), bad.payload) == ((1, 1), True, b"bad")
    assert (good.id, good.payload) == ((1, 3), b"a-0a-1a-2")
    consumer.acknowledge_up_to(good.id)
    await consumer.close()
    assert acknowledged(broker) == [(True, [3])]


async def take(consumer) -> tuple[int, bool]:
    entry = await asyncio.wait_for(consumer.receive(), PATIENCE_S)
    return entry.entry, entry.defect is not None


@pytest.mark.parametrize("kind", [Subscription("s"), Subscription("r", reader_from=(1, 0))], ids=["ordered", "reader"])
async def test_a_message_expires_also_after_later_messages(broker: Broker, client, kind):
    """Its id is before those of the entries delivered meanwhile, but it was not delivered itself."""
    limits = ChunkLimits(expiry_s=0.05)
    consumer = await client.consumer(TOPIC, replace(kind, chunk_limits=limits))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"later")
    assert await take(consumer) == (1, False)
    assert await take(consumer) == (0, True)
    sender.plain(b"last")
    assert await take(consumer) == (2, False)
    consumer.acknowledge_up_to((1, 2))
    await consumer.close()
    if kind.reader_from is None:
        assert acknowledged(broker)[-1] == (True, [2])


async def test_messages_beyond_the_limits_become_defective_and_older_ones_survive(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(messages=2, max_bytes=9)))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.chunk("b", 0)
    sender.plain(b"later")
    assert await take(consumer) == (2, False)
    sender.chunk("b", 1)
    sender.chunk("a", 1)  # of 3 bytes, like all chunks: too much for the two together
    sender.chunk("a", 2)
    sender.chunk("b", 2)
    assert [await take(consumer) for _ in range(3)] == [(3, True), (5, False), (6, True)]
    consumer.acknowledge_up_to((1, 6))
    await consumer.close()
    assert acknowledged(broker)[-1] == (True, [6])


async def test_a_delivered_defective_entry_is_not_delivered_twice(broker: Broker, client):
    limits = ChunkLimits(expiry_s=0.05)
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=limits))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"later")
    assert [await take(consumer) for _ in range(2)] == [(1, False), (0, True)]
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    sender.chunk("a", 0, 0)
    sender.plain(b"later", 1)
    await until(lambda: not consumer._receiver_queue.chunks)
    assert consumer.queued == 0
    sender.plain(b"last")
    assert await take(consumer) == (2, False)
    await consumer.close()


async def test_no_acknowledgement_includes_an_unacknowledged_defective_entry(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(expiry_s=0.05)))
    sender = Sender(broker)
    sender.plain(b"first")
    sender.chunk("a", 0)
    sender.plain(b"later")
    assert [await take(consumer) for _ in range(3)] == [(0, False), (2, False), (1, True)]
    consumer.acknowledge_up_to((1, 2))
    consumer.flush_acks()
    await until(lambda: acknowledged(broker))
    assert acknowledged(broker) == [(True, [0])], "2 was handed out before the defect"
    consumer.acknowledge_up_to((1, 1))
    consumer.flush_acks()
    await until(lambda: len(acknowledged(broker)) == 2)
    assert acknowledged(broker)[1] == (True, [2])
    await consumer.close()


async def test_acknowledging_a_later_delivered_entry_acknowledges_the_defective_one(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(expiry_s=0.05)))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"later")
    assert [await take(consumer) for _ in range(2)] == [(1, False), (0, True)]
    sender.plain(b"last")
    assert await take(consumer) == (2, False)
    consumer.acknowledge_up_to((1, 2))
    await consumer.close()
    assert acknowledged(broker) == [(True, [2])]


async def test_after_a_redelivery_an_earlier_defective_entry_delays_no_acknowledgement(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(expiry_s=0.05)))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"later")
    assert [await take(consumer) for _ in range(2)] == [(1, False), (0, True)]
    consumer.redeliver()
    await until(lambda: consumer.registrations == 2)
    for number in range(3):
        sender.chunk("a", number, number, consumer_epoch=1)
    assert await take(consumer) == (2, False)
    consumer.acknowledge_up_to((1, 2))
    await consumer.close()
    assert acknowledged(broker) == [(True, [2])]


async def test_a_batch_with_a_defective_entry_after_later_entries_is_acknowledged_completely(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(expiry_s=0.05)))
    lane = PulsarLane(Partition("c", "t", "0", 0), consumer, 1 << 20, 1 << 20)
    sender = Sender(broker)
    sender.plain(b"first")
    assert (await lane.receive()).next == (1, 1, 0)
    sender.chunk("a", 0)
    sender.plain(b"later")
    first = await lane.receive()
    second = await lane.receive()
    assert [(batch.count, batch.next) for batch in (first, second)] == [(1, (1, 3, 0)), (1, (1, 3, 0))]
    assert [message.defect is not None for message in second.messages] == [True]
    lane.acknowledge(first)
    consumer.flush_acks()
    await until(lambda: acknowledged(broker))
    lane.acknowledge(second)
    await consumer.close()
    assert acknowledged(broker) == [(True, [0]), (True, [2])]


async def test_earlier_delivered_entries_do_not_acknowledge_a_queued_defective_entry(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(expiry_s=0.05)))
    sender = Sender(broker)
    sender.plain(b"first")
    sender.chunk("a", 0)
    sender.plain(b"later")
    await until(lambda: consumer.queued == 3)
    assert [await take(consumer) for _ in range(3)] == [(0, False), (2, False), (1, True)]
    consumer.acknowledge_up_to((1, 2))
    consumer.flush_acks()
    await until(lambda: acknowledged(broker))
    consumer.acknowledge_up_to((1, 1))
    await consumer.close()
    assert acknowledged(broker) == [(True, [0]), (True, [2])]


async def test_a_range_read_leaves_out_an_expired_message_and_does_not_return_to_it(
    broker: Broker, client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Its id is before entries that were already read. If `next` followed it, they would be read again."""
    limits = ChunkLimits(expiry_s=0.05)
    monkeypatch.setattr(cluster_client, "reader", lambda start, role: replace(reader(start, role), chunk_limits=limits))
    batches = PulsarReader(client, Partition("c", "t", "-1", 0), TOPIC, (1, 0, 0), None, 5.0)
    first = asyncio.ensure_future(batches.receive())
    await until(lambda: broker.asked[BaseCommand.FLOW])
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"later")
    found = [await first]
    second = asyncio.ensure_future(batches.receive())
    await until(lambda: "position 1:0:0 is left out unless its last chunk follows" in caplog.text)
    sender.plain(b"last")
    found.append(await asyncio.wait_for(second, PATIENCE_S))
    assert [[entry.payload for entry in batch.data] for batch in found] == [[b"later"], [b"last"]]
    assert [batch.next for batch in found] == [(1, 2, 0), (1, 3, 0)]
    await batches.close()


@pytest.mark.parametrize("arrived", [1, 2, 3], ids=["begun", "half", "waiting to be taken"])
async def test_later_acknowledgements_do_not_include_chunks_to_be_redelivered(broker: Broker, client, arrived: int):
    """The chunks are lost with the connection, and entries delivered before are acknowledged before the chunks arrive again."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    sender.plain(b"first")
    sender.chunk("a", 0)
    sender.plain(b"later")
    assert [await take(consumer) for _ in range(2)] == [(0, False), (2, False)]
    for number in range(1, arrived):
        sender.chunk("a", number)
    await until(lambda: consumer.queued == (arrived == 3))
    broker.link.drop()
    await until(lambda: consumer._connection() is None, pause_s=0)
    consumer.acknowledge_up_to((1, 2))
    await until(lambda: acknowledged(broker))
    assert acknowledged(broker) == [(True, [0])]
    sender.chunk("a", 0, 1)
    sender.plain(b"later", 2)
    for number in (1, 2):
        sender.chunk("a", number, 2 + number)
    assert await take(consumer) == (4, False)
    consumer.acknowledge_up_to((1, 4))
    await consumer.close()
    assert (True, [4]) in acknowledged(broker)


async def test_after_a_redelivery_an_earlier_expired_message_acknowledges_no_chunks(broker: Broker, client):
    """Acknowledging an expired message repeats the last cumulative acknowledgement, which is after chunks to be redelivered."""
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 3, cursor=(1, -1))
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(expiry_s=0.05)))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"first")
    sender.chunk("b", 0)
    sender.plain(b"later")
    assert [await take(consumer) for _ in range(2)] == [(1, False), (3, False)]
    consumer.acknowledge_up_to((1, 3))
    consumer.redeliver()
    await until(lambda: consumer.registrations == 2)
    sender.chunk("a", 0, 0, consumer_epoch=1)
    assert await take(consumer) == (0, True)
    consumer.acknowledge_up_to(consumer.last_delivered)
    consumer.acknowledge_up_to((1, 0))
    consumer.flush_acks()
    await until(lambda: acknowledged(broker)[-1] != (True, [-1]))
    assert acknowledged(broker)[-1] == (True, [1])
    for number in range(3):
        sender.chunk("b", number, max(2, 3 + number), consumer_epoch=1)
    assert await take(consumer) == (5, False)
    await consumer.close()


async def test_chunks_that_are_never_redelivered_delay_no_acknowledgement(broker: Broker, client):
    """The chunks were deleted meanwhile, for example by the message TTL. The next entry shows that."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"later")
    assert await take(consumer) == (1, False)
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    sender.plain(b"last")
    assert await take(consumer) == (2, False)
    consumer.acknowledge_up_to((1, 2))
    await consumer.close()
    assert acknowledged(broker) == [(True, [2])]


async def test_a_reader_disconnected_twice_resumes_at_the_first_chunk_again(broker: Broker, client):
    consumer = await client.consumer(TOPIC, reader((1, 0)))
    sender = Sender(broker)
    sender.plain(b"first")
    sender.chunk("a", 0)
    sender.plain(b"later")
    assert [await take(consumer) for _ in range(2)] == [(0, False), (2, False)]
    for registrations in (2, 3):
        broker.link.drop()
        await until(lambda wanted=registrations: consumer.registrations == wanted)
    starts = [ids.entry_id(asked.start_message_id) for asked in broker.asked[BaseCommand.SUBSCRIBE]]
    assert starts == [(1, 0), (1, 1), (1, 1)]
    await consumer.close()


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "redelivered"])
async def test_acknowledgements_withheld_because_of_chunks_are_sent_on_redelivery(broker: Broker, client, is_lost: bool):
    """No other entry arrives for a long time. Otherwise the entry would count as backlog and be redelivered after a restart."""
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 4, cursor=(1, 0))
    consumer = await client.consumer(TOPIC, Subscription("s"))
    sender = Sender(broker)
    sender.plain(b"first")
    for number in range(3):
        sender.chunk("a", number)
    sender.plain(b"last")
    assert [await take(consumer) for _ in range(3)] == [(0, False), (3, False), (4, False)]
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    sender.chunk("a", 0, 1)
    await until(lambda: consumer._receiver_queue.chunks)
    consumer.acknowledge_up_to((1, 4))
    consumer.flush_acks()
    await until(lambda: len(acknowledged(broker)) == 2)
    assert acknowledged(broker) == [(True, [0]), (False, [1, 2, 3])]
    if is_lost:
        broker.link.drop()
    else:
        consumer.redeliver()
    await until(lambda: consumer.registrations == 3)
    sender.plain(b"last", 4)
    await until(lambda: acknowledged(broker)[-1] == (False, [4]))
    assert consumer.queued == 0
    await consumer.close()


async def test_the_chunks_of_an_unreadable_message_are_messages_that_a_lane_acknowledges_together(broker: Broker, client):
    """They are entries of their own: an acknowledgement of a part of one would be wrong, and one of a chunk alone loses it."""
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared, batch_index_ack=True))
    lane = PulsarLane(Partition("c", "t", "0", 0), consumer, 1 << 20, 1 << 20)
    sender = Sender(broker)
    sender.chunk("a", 0)
    sender.plain(b"between")
    sender.chunk("a", 2)
    await until(lambda: consumer.queued == 2)
    ordinary, batch = [await asyncio.wait_for(lane.receive(), PATIENCE_S) for _ in range(2)]
    assert [message.position for message in ordinary.messages] == [(1, 1, 0)]
    assert [(message.position, message.defect is None) for message in batch.messages] == [((1, 2, 0), False), ((1, 2, 1), False)]
    assert batch.count == 2
    assert batch.held_bytes > batch.size == len(b"a-0a-2")
    assert [each.has_units for each in (ordinary, batch)] == [True, False]
    chunks = [decode_entry(message.payload or b"") for message in batch.messages]
    assert [(chunk.metadata.chunk_id, chunk.payload) for chunk in chunks] == [(0, b"a-0"), (2, b"a-2")]
    lane.acknowledge(ordinary, [0])
    lane.acknowledge(batch, [1])
    consumer.flush_acks()
    await until(lambda: acknowledged(broker))
    assert acknowledged(broker) == [(False, [1])]
    lane.acknowledge(batch, [0])
    await consumer.close()
    assert acknowledged(broker) == [(False, [1]), (False, [0, 2])]


async def test_each_chunk_of_a_message_above_the_limit_is_delivered_and_acknowledged_by_itself(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", chunk_limits=ChunkLimits(max_bytes=8)))
    sender = Sender(broker)
    for number in range(3):
        sender.chunk("a", number)
        entry = await asyncio.wait_for(consumer.receive(), PATIENCE_S)
        assert ("exceed the limit of 8" in str(entry.defect), entry.id, entry.payload) == (
            True,
            (1, number),
            f"a-{number}".encode(),
        )
        assert (entry.metadata.uuid, entry.metadata.chunk_id) == ("a", number)
        consumer.acknowledge_up_to(entry.id)
    assert consumer.held_bytes == 0
    await consumer.close()
    assert acknowledged(broker)[-1] == (True, [2])


async def test_a_chunk_and_an_encrypted_payload_are_sent_as_they_are(broker: Broker, client, entries):
    """They are put back from dead letters: their payloads were compressed before they were split or encrypted."""
    producer = client.producer(TOPIC, replace(CHUNKED, codec=CODEC_NUMBERS["zstd"], chunk_bytes=100))
    chunk = MessageMetadata(uuid="u", chunk_id=0, num_chunks_from_msg=3, total_chunk_msg_size=9)
    secret = MessageMetadata(encryption_param=b"x")
    secret.encryption_keys.add(key="app", value=b"data key")
    for metadata in (chunk, secret):
        await producer.send(metadata, bytes(200))
    assert [(entry.payload, entry.metadata.compression) for _, entry in entries] == [(bytes(200), 0)] * 2
    assert [(asked.is_chunk, entry.metadata.uuid) for asked, entry in entries] == [(True, "u"), (False, "")]
    await producer.close()
