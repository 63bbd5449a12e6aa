"""Abandoned entries: expired, withdrawn, or impossible to encode. None of them is sent afterwards."""

import asyncio

import pytest

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.pulsar.adapter.outbound import PulsarOutbound
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.connection.connection import MAX_SENDS_IN_FLIGHT
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.client.producer.send_queue import MAX_SEQUENCE
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from tests.pulsar.client.broker import Broker, silent, until

TOPIC = "persistent://public/default/t"
MORE = 300


def send(producer, *payloads: bytes, owner: object = None) -> list[asyncio.Future]:
    return [producer.send(MessageMetadata(), payload, owner=owner) for payload in payloads]


def sent(broker: Broker) -> list[int]:
    return [asked.sequence_id for asked in broker.asked[BaseCommand.SEND]]


def receipt(broker: Broker, sequence: int) -> None:
    receipt = pb.CommandSendReceipt(producer_id=0, sequence_id=sequence, message_id=ids.message_id(1, sequence))
    broker.link.send(send_receipt=receipt)


async def settled() -> None:
    """Wait until all pending callbacks of this process have run."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def full(broker: Broker, client):
    """Yield a producer whose window is full of entries without a receipt, with `MORE` entries in the queue; and all futures."""
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC, ProducerSettings(max_elapsed_s=0.2))
    futures = send(producer, *[b"x"] * (MAX_SENDS_IN_FLIGHT + MORE))
    await until(lambda: len(sent(broker)) == MAX_SENDS_IN_FLIGHT)
    yield producer, futures
    await producer.close(0.0)
    await asyncio.gather(*futures, return_exceptions=True)  # asyncio logs exceptions that nobody has retrieved


# --- expired ----------------------------------------------------------------------------------------------------------


async def test_an_entry_that_expires_in_the_queue_is_never_sent(broker: Broker, full):
    producer, futures = full
    await until(lambda: all(future.done() for future in futures))
    assert {type(future.exception()) for future in futures} == {RequestTimeout}
    await settled()
    assert len(sent(broker)) == MAX_SENDS_IN_FLIGHT
    broker.on[BaseCommand.SEND] = broker.store
    broker.link.drop()
    await until(lambda: producer.registrations == 2)
    await producer.send(MessageMetadata(), b"new")
    assert len(sent(broker)) == MAX_SENDS_IN_FLIGHT + 1, "nor what was on the wire, over the next connection"


async def test_an_entry_that_expires_in_flight_keeps_its_room_in_the_window(broker: Broker, full):
    """The broker still processes the entry, and with twice as many entries as the window it stops reading the connection."""
    producer, futures = full
    await until(lambda: all(future.done() for future in futures))
    assert producer.pending == 0
    (new,) = send(producer, b"new")
    await settled()
    assert len(sent(broker)) == MAX_SENDS_IN_FLIGHT
    receipt(broker, 0)
    await until(lambda: len(sent(broker)) == MAX_SENDS_IN_FLIGHT + 1)
    receipt(broker, sent(broker)[-1])  # it also confirms every entry that was sent before it
    assert (await new).entry == sent(broker)[-1]
    assert len(broker.links) == 1
    await producer.flush()


async def test_a_refused_expired_entry_frees_its_room_in_the_window(broker: Broker, full):
    producer, futures = full
    await until(lambda: all(future.done() for future in futures))
    (new,) = send(producer, b"new")
    error = pb.CommandSendError(producer_id=0, sequence_id=7, error=pb.ChecksumError, message="no")
    broker.link.send(send_error=error)
    await until(lambda: len(sent(broker)) == MAX_SENDS_IN_FLIGHT + 1)
    receipt(broker, sent(broker)[-1])
    await new


# --- withdrawn --------------------------------------------------------------------------------------------------------


async def test_an_entry_withdrawn_from_the_queue_is_never_sent(broker: Broker, client):
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC)
    mine, others = object(), object()
    on_the_wire = send(producer, *[b"x"] * MAX_SENDS_IN_FLIGHT, owner=mine)
    await until(lambda: len(sent(broker)) == MAX_SENDS_IN_FLIGHT)
    waiting = send(producer, b"a", b"b", owner=mine)
    (behind,) = send(producer, b"c", owner=others)
    producer.withdraw({mine})
    assert [future.exception().failure for future in waiting] == [Failure.RETRY] * 2
    assert not any(future.done() for future in on_the_wire)
    for sequence in range(MAX_SENDS_IN_FLIGHT):
        receipt(broker, sequence)
    await asyncio.gather(*on_the_wire)
    await until(lambda: len(sent(broker)) == MAX_SENDS_IN_FLIGHT + 1)
    receipt(broker, sent(broker)[-1])
    await behind
    await producer.close()


async def test_an_entry_withdrawn_in_flight_is_not_sent_again(broker: Broker, client):
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC)
    mine = object()
    (first,) = send(producer, b"a", owner=mine)
    (second,) = send(producer, b"b")
    await until(lambda: len(sent(broker)) == 2)
    producer.withdraw({mine})
    await settled()
    assert not first.done(), "it may be stored: nobody knows"
    broker.on[BaseCommand.SEND] = broker.store
    broker.link.drop()
    with pytest.raises(ClusterError) as caught:
        await first
    assert caught.value.failure is Failure.RETRY
    await second
    assert sent(broker) == [0, 1, 1]
    await producer.close()


async def test_an_entry_waiting_to_be_sent_again_can_be_withdrawn(broker: Broker, client):
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC)
    mine = object()
    (first,) = send(producer, b"a", owner=mine)
    await until(lambda: sent(broker) == [0])
    broker.unreachable = {"broker"}
    broker.link.drop()
    await until(lambda: producer._registration.connection is None)
    producer.withdraw({mine})
    assert first.exception().failure is Failure.RETRY
    assert producer.pending == 0
    await producer.close()


async def test_an_outbound_withdraws_the_entries_of_a_source(broker: Broker, client):
    broker.on[BaseCommand.PRODUCER] = silent
    target = Partition("c", "target", "-1", 0)
    topics = Topics(client, "c", "public/default")
    outbound = PulsarOutbound(None, client, topics, OutboundSpec("target"), [target], 1 << 20)  # type: ignore[arg-type]
    one, two, three = (outbound.send(0, Share(Batch.of([Message(b"%d" % n), Message(b"x")]))) for n in range(3))
    outbound.withdraw([one, three])
    await until(lambda: one.done() and three.done())
    for future in (one, three):
        assert [(failure.index, failure.failure_kind) for failure in future.result().failures] == [
            (0, Failure.RETRY),
            (1, Failure.RETRY),
        ]
    await until(lambda: broker.asked[BaseCommand.PRODUCER])
    asked = broker.asked[BaseCommand.PRODUCER][-1]
    broker.link.send(producer_success=pb.CommandProducerSuccess(request_id=asked.request_id, producer_name="p"))
    assert (await two).failures == []
    assert len(sent(broker)) == 1
    outbound.withdraw([one, two, three])
    await outbound.close()


# --- sequence ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sequence", [MAX_SEQUENCE + 1, 1 << 64, -1, MAX_SEQUENCE])
async def test_a_sequence_id_out_of_range_is_refused_and_delays_no_other_entry(broker: Broker, client, sequence: int):
    producer = client.producer(TOPIC)
    await producer.opened()
    with pytest.raises(ClusterError, match="sequence id") as caught:
        await producer.send(MessageMetadata(), b"x", 2, sequence)
    assert caught.value.failure is Failure.REFUSED
    await producer.send(MessageMetadata(), b"good")
    assert sent(broker) == [0]
    await producer.close()


async def test_the_error_of_a_sequence_id_above_the_entrys_highest_one_names_that_limit(broker: Broker, client):
    producer = client.producer(TOPIC)
    await producer.opened()
    with pytest.raises(ClusterError, match="the sequence id 5 is not within 0 to 3"):
        await producer.send(MessageMetadata(), b"x", 2, 5, highest_sequence_id=3)
    await producer.close()


async def test_used_up_sequence_ids_are_a_fatal_error(broker: Broker, client):
    """The broker reports the highest stored sequence id when the producer is opened."""

    def used_up(link, frame):
        asked = frame.command.producer.request_id
        link.send(
            producer_success=pb.CommandProducerSuccess(request_id=asked, producer_name="p", last_sequence_id=MAX_SEQUENCE - 1)
        )

    broker.on[BaseCommand.PRODUCER] = used_up
    producer = client.producer(TOPIC)
    await producer.send(MessageMetadata(), b"the last one")
    for _ in range(2):
        with pytest.raises(ClusterError, match="choose another name") as caught:
            await producer.send(MessageMetadata(), b"x")
        assert caught.value.failure is Failure.FATAL
    assert producer.pending == 0
    await producer.close()


async def test_an_invalid_highest_sequence_id_of_the_broker_is_ignored(broker: Broker, client):
    def odd(link, frame):
        asked = frame.command.producer.request_id
        link.send(producer_success=pb.CommandProducerSuccess(request_id=asked, producer_name="p", last_sequence_id=-7))

    broker.on[BaseCommand.PRODUCER] = odd
    producer = client.producer(TOPIC)
    await producer.send(MessageMetadata(), b"x")
    assert sent(broker) == [0]
    await producer.close()


async def test_unsent_entries_get_ids_above_those_of_another_producer_with_the_name(broker: Broker, client):
    """Otherwise a deduplicating broker would drop the entries as duplicates."""

    def reached(last: int):
        def answer(link, frame):
            asked = frame.command.producer.request_id
            link.send(producer_success=pb.CommandProducerSuccess(request_id=asked, producer_name="p", last_sequence_id=last))

        return answer

    broker.on[BaseCommand.PRODUCER] = reached(-1)
    producer = client.producer(TOPIC, name="p")
    await producer.send(MessageMetadata(), b"a")
    broker.on[BaseCommand.PRODUCER] = reached(40)
    broker.link.drop()
    await until(lambda: producer.registrations == 2)
    await producer.send(MessageMetadata(), b"b")
    assert sent(broker) == [0, 41]
    await producer.close()


async def test_metadata_that_cannot_be_encoded_delays_no_other_entry(broker: Broker, client):
    producer = client.producer(TOPIC)
    metadata = MessageMetadata()
    metadata.properties.add(key="without a value")
    with pytest.raises(ClusterError, match="cannot be encoded") as caught:
        await producer.send(metadata, b"x")
    assert caught.value.failure is Failure.REFUSED
    await producer.send(MessageMetadata(), b"good")
    await producer.close()


async def test_an_error_for_an_entry_that_was_never_sent_causes_a_reconnection(broker: Broker, client):
    """It is unknown which entry the broker refused, and that entry would never get a receipt."""

    def wrong(link, frame):
        asked = frame.command.send
        link.send(send_error=pb.CommandSendError(producer_id=0, sequence_id=asked.sequence_id + 9, error=9, message=""))

    answers = [wrong, broker.store]
    broker.on[BaseCommand.SEND] = lambda link, frame: answers.pop(0)(link, frame) if answers else None
    producer = client.producer(TOPIC)
    await producer.send(MessageMetadata(), b"x")
    assert sent(broker) == [0, 0]
    await producer.close()
