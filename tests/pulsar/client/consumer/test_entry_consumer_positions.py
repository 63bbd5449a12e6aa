"""Positions that someone else decides: operators, other consumers, other clusters; and readers at the end of a topic."""

import asyncio
from dataclasses import replace

import pytest

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError
from mqbridge.net.dial import dial
from mqbridge.pulsar.adapter.bounds import request_bounds
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types, reader
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import URL, Broker, ends_at, found, in_turn, scripted_client, silent, success, until

TOPIC = "persistent://public/default/t"


def acknowledged(broker: Broker) -> list[tuple[int, int]]:
    return [ids.entry_id(each) for ack in broker.asked[BaseCommand.ACK] for each in ack.message_id]


def active(broker: Broker, is_active: bool) -> None:
    broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=is_active))


def close(broker: Broker) -> None:
    broker.link.send(close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=ids.NO_REQUEST))


async def take(broker: Broker, consumer, *entries: int, ledger: int = 1) -> list[int]:
    """Deliver these entries, and take as many; return their numbers."""
    for entry in entries:
        broker.link.message(0, ledger, entry, b"x")
    return [(await asyncio.wait_for(consumer.receive(), PATIENCE_S)).entry for _ in entries]


async def test_a_reset_by_an_operator_is_followed(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    assert await take(broker, consumer, 0, 1, 2, 3) == [0, 1, 2, 3]
    consumer.acknowledge_up_to((1, 3))
    consumer.flush_acks()
    await until(lambda: acknowledged(broker) == [(1, 3)])
    run = consumer.generation
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 3, cursor=(1, 0))
    close(broker)
    await until(lambda: consumer.registrations == 2)
    consumer.acknowledge_up_to((1, 3))
    assert await take(broker, consumer, 1, 2, 3) == [1, 2, 3]
    consumer.flush_acks()
    await asyncio.sleep(0.01)
    assert acknowledged(broker) == [(1, 3)], "neither the old mark nor one for what was handed out before the reset"
    assert consumer.generation != run
    await consumer.close()


@pytest.mark.parametrize("waits", [False, True], ids=["sent", "waiting"])
async def test_an_acknowledgement_does_not_undo_a_reset_during_an_outage(broker: Broker, client, waits: bool):
    """The broker had the last acknowledgement, so its older cursor is a reset, even if acknowledgements wait."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 0, 1, 2, 3)
    consumer.acknowledge_up_to((1, 2))
    consumer.flush_acks()
    await until(lambda: consumer._connection().pongs)
    broker.link.drop()
    if waits:
        consumer.acknowledge_up_to((1, 3))
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 3, cursor=(1, 0))
    await until(lambda: consumer.registrations == 2)
    assert await take(broker, consumer, 1, 2, 3) == [1, 2, 3]
    assert acknowledged(broker) == [(1, 2)]
    await consumer.close()


async def test_an_acknowledgement_that_was_lost_with_the_connection_is_sent_again(broker: Broker, client):
    broker.on[BaseCommand.PING] = silent
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 0, 1, 2, 3)
    consumer.acknowledge_up_to((1, 2))
    consumer.flush_acks()
    await until(lambda: acknowledged(broker))
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 3, cursor=(1, 0))
    broker.link.drop()
    await until(lambda: acknowledged(broker) == [(1, 2), (1, 2)])
    for entry in (1, 2, 3, 4):
        broker.link.message(0, 1, entry, b"x")
    assert (await consumer.receive()).entry == 4
    await consumer.close()


@pytest.mark.parametrize("outage", [False, True], ids=["at once", "after an outage"])
async def test_a_reset_of_a_first_entry_is_noticed_if_subscribing_again_takes_long(broker: Broker, client, outage: bool):
    """Before a ledger's first entry, the cursor may be in an earlier ledger also without a reset."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 0, 1, ledger=9)
    generation = consumer.generation
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(9, 1, cursor=(7, 3))
    if outage:

        def lose(link, _) -> None:
            broker.on[BaseCommand.CLOSE_CONSUMER] = success
            link.drop()

        broker.on[BaseCommand.CLOSE_CONSUMER] = lose
    consumer._resubscribe()
    await until(lambda: consumer.registrations == 2)
    assert (consumer.generation != generation) is outage
    if outage:
        assert await take(broker, consumer, 4, ledger=7) == [4]
    await consumer.close()


async def test_an_acknowledgement_that_the_broker_has_is_not_sent_again(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 0, 1)
    consumer.acknowledge_up_to((1, 1))
    consumer.flush_acks()
    await until(lambda: acknowledged(broker))
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 9, cursor=(1, 5))
    close(broker)
    await until(lambda: consumer.registrations == 2)
    assert await take(broker, consumer, 6) == [6]
    assert acknowledged(broker) == [(1, 1)]
    await consumer.close()


async def test_a_failover_consumer_grants_the_permits_of_dropped_entries_again(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Failover, max_bytes=10))
    active(broker, True)
    await until(lambda: broker.asked[BaseCommand.FLOW])
    granted = sum(flow.messagePermits for flow in broker.asked[BaseCommand.FLOW])
    for entry in range(granted):
        broker.link.message(0, 1, entry, bytes(100))
    active(broker, False)
    active(broker, True)
    await until(lambda: sum(flow.messagePermits for flow in broker.asked[BaseCommand.FLOW]) > granted)
    assert consumer.queued == 0
    await consumer.close()


async def test_a_deactivated_consumer_sends_no_acknowledgement_again(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Failover))
    active(broker, True)
    await take(broker, consumer, 0, 1, 2)
    consumer.acknowledge_up_to((1, 1))
    active(broker, False)
    await until(lambda: acknowledged(broker) == [(1, 1)])
    consumer.acknowledge_up_to((1, 2))
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 2, cursor=(1, -1))
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    consumer.flush_acks()
    active(broker, True)
    assert await take(broker, consumer, 0, 1) == [0, 1]
    assert acknowledged(broker) == [(1, 1)]
    await consumer.close()


@pytest.mark.parametrize("lost", [False, True], ids=["closed", "lost"])
async def test_a_reader_at_the_end_misses_nothing_while_disconnected(broker: Broker, client, lost: bool):
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 9, cursor=(1, 8))
    consumer = await client.consumer(TOPIC, reader(ids.LATEST))
    assert consumer.registrations == 1
    if lost:
        broker.link.drop()
    else:
        close(broker)
    await until(lambda: consumer.registrations == 2)
    assert [ids.entry_id(asked.start_message_id) for asked in broker.asked[BaseCommand.SUBSCRIBE]] == [ids.LATEST, (1, 8)]
    for entry in (8, 9, 10):
        broker.link.message(0, 1, entry, b"x")
    assert [(await consumer.receive()).entry for _ in range(2)] == [9, 10], "(1, 8) is what was there before"
    assert len(broker.asked[BaseCommand.GET_LAST_MESSAGE_ID]) == 1
    await consumer.close()


@pytest.mark.parametrize("why", ["full", "silent"])
async def test_a_reader_at_the_end_misses_nothing_when_it_subscribes_again(broker: Broker, client, why: str):
    """It does so after an overflow, and after a stall."""
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 9, cursor=(1, 8))
    limits = {"max_bytes": 10_000} if why == "full" else {"silence_s": 0.02}
    consumer = await client.consumer(TOPIC, replace(reader(ids.LATEST), **limits))
    if why == "full":
        for entry in (9, 10, 11):
            broker.link.message(0, 1, entry, bytes(9_000))
    await until(lambda: consumer.registrations == 2)
    assert [ids.entry_id(asked.start_message_id) for asked in broker.asked[BaseCommand.SUBSCRIBE]] == [ids.LATEST, (1, 8)]
    assert await take(broker, consumer, 9, 10) == [9, 10]
    await consumer.close()


async def test_a_migrated_topic_has_other_entry_ids(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 7, 8, ledger=50)
    consumer.acknowledge_up_to((50, 8))
    consumer.flush_acks()
    await until(lambda: acknowledged(broker))
    blue = broker.link
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(link, frame, "pulsar://green:6650")
    migrated = pb.CommandTopicMigrated(
        resource_id=0, resource_type=pb.CommandTopicMigrated.Consumer, brokerServiceUrl="pulsar://green:6650"
    )
    blue.send(topicMigrated=migrated)
    close(broker)
    await until(lambda: consumer.registrations == 2)
    consumer.acknowledge_up_to((50, 8))
    assert await take(broker, consumer, 0, 1, ledger=2) == [0, 1]
    consumer.acknowledge_up_to((2, 1))
    await consumer.close()
    assert acknowledged(broker) == [(50, 8), (2, 1)]


async def test_entries_whose_individual_acknowledgements_may_be_lost_are_redelivered(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 0, 1, 2)
    consumer.acknowledge((1, 1))
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    assert await take(broker, consumer, 0, 1, 2) == [0, 1, 2]
    await consumer.close()


async def test_the_entry_of_a_chunked_message_names_its_first_chunk(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    for number in range(2):
        metadata = {"uuid": "a", "chunk_id": number, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
        broker.link.message(0, 1, 4 + number, b"x", metadata=metadata)
    entry = await consumer.receive()
    assert (entry.id, entry.first_chunk) == ((1, 5), (1, 4))
    assert (await take(broker, consumer, 6), entry.payload) == ([6], b"xx")
    await consumer.close()


async def test_a_topic_that_begins_with_a_message_in_chunks_has_its_first_bound_there(broker: Broker, client):
    def deliver(link, frame):
        broker.on[BaseCommand.FLOW] = silent
        for number in range(2):
            metadata = {"uuid": "a", "chunk_id": number, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
            link.message(frame.command.flow.consumer_id, 1, 4 + number, b"x", metadata=metadata)

    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 9)
    broker.on[BaseCommand.FLOW] = deliver
    assert await request_bounds(client, TOPIC, 5.0) == Bounds((1, 4, 0), (1, 10, 0), last=(1, 9, 0))


@pytest.mark.parametrize(("reported", "cursor"), [((1, 2), (1, 2)), ((5, -1), (5, -1)), ((-1, -1), None), (None, None)])
async def test_the_cursor_of_a_subscription_is_that_of_the_broker(broker: Broker, client, reported, cursor):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 9, cursor=reported)
    assert await consumer.cursor() == cursor
    await consumer.close()


async def test_nothing_is_delivered_while_a_seek_has_no_response(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    for entry in (0, 1):
        broker.link.message(0, 1, entry, b"x")
    assert (await consumer.receive()).entry == 0
    broker.on[BaseCommand.SEEK] = silent
    seeking = asyncio.ensure_future(consumer.seek((1, 7)))
    await until(lambda: broker.asked[BaseCommand.SEEK])
    broker.link.message(0, 1, 2, b"on its way")
    assert consumer.take() is None
    request_id = broker.asked[BaseCommand.SEEK][0].request_id
    broker.link.send(success=pb.CommandSuccess(request_id=request_id))
    await seeking
    await until(lambda: consumer.registrations == 2)
    assert await take(broker, consumer, 7) == [7]
    await consumer.close()


@pytest.mark.parametrize("what", ["redeliver", "seek"])
async def test_a_request_during_subscribe_causes_another_subscribe(broker: Broker, client, what):
    """The response to the first SUBSCRIBE is outdated, so that consumer is closed at the broker."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 0, 1, 2)
    consumer.acknowledge_up_to((1, 0))
    broker.on[BaseCommand.SUBSCRIBE] = in_turn(silent, success)
    broker.link.drop()
    await until(lambda: len(broker.asked[BaseCommand.SUBSCRIBE]) == 2)
    if what == "redeliver":
        consumer.redeliver()
    else:
        consumer._resubscribe()
    broker.link.send(success=pb.CommandSuccess(request_id=broker.asked[BaseCommand.SUBSCRIBE][1].request_id))
    await until(lambda: consumer.registrations == 2)
    assert len(broker.asked[BaseCommand.SUBSCRIBE]) == 3
    assert len(broker.asked[BaseCommand.CLOSE_CONSUMER]) == 1
    expected = [1, 2] if what == "redeliver" else [3]
    for entry in (1, 2, 3):
        broker.link.message(0, 1, entry, b"x", consumer_epoch=2)
    assert [(await asyncio.wait_for(consumer.receive(), PATIENCE_S)).entry for _ in expected] == expected
    await consumer.close()


async def test_a_possible_registration_is_closed_before_the_next_one(broker: Broker, monkeypatch):
    """Otherwise the broker keeps the old consumer with this id, and all entries it delivers have an older epoch."""
    impatient = scripted_client(request=0.2)
    consumer = await impatient.consumer(TOPIC, Subscription("s"))
    broker.on[BaseCommand.SUBSCRIBE] = in_turn(silent, success)
    is_final, failures = consumer.is_final, []

    def on_failure(error: ClusterError, delay: float) -> bool:
        failures.append(error)
        consumer.redeliver()
        return is_final(error, delay)

    monkeypatch.setattr(consumer, "is_final", on_failure)
    close(broker)
    await until(lambda: consumer.registrations == 2)
    assert failures
    assert broker.asked[BaseCommand.CLOSE_CONSUMER]
    await consumer.close()
    await impatient.close()


async def test_an_owner_with_an_invalid_address_is_looked_up_again(broker: Broker, client, monkeypatch: pytest.MonkeyPatch):
    """A misconfigured broker (`advertisedAddress`) returns a host name that cannot be resolved; the lookup must be repeated."""
    consumer = await client.consumer(TOPIC, Subscription("s"))

    async def dialled(host: str, port: int, make, **more):
        return await (dial if ".." in host else broker.dial)(host, port, make, **more)

    monkeypatch.setattr("mqbridge.pulsar.client.connection.handshake.dial", dialled)
    broker.on[BaseCommand.LOOKUP] = in_turn(
        lambda link, frame: found(link, frame, "pulsar://broker..cluster:6650"), lambda link, frame: found(link, frame, URL)
    )
    close(broker)
    await until(lambda: consumer.registrations == 2)
    await consumer.close()


async def test_individual_acknowledgements_of_earlier_connections_may_be_lost_too(broker: Broker, client):
    """A killed broker forgets also acknowledgements that were sent over earlier connections."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 0, 1)
    consumer.acknowledge((1, 0))
    consumer.redeliver()
    await until(lambda: consumer.registrations == 2)
    assert await take(broker, consumer, 1) == [1]
    broker.link.drop()
    await until(lambda: consumer.registrations == 3)
    assert await take(broker, consumer, 0, 1) == [0, 1]
    await consumer.close()


async def test_no_acknowledgement_undoes_a_seek_without_a_response(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await take(broker, consumer, 0, 1, 2)
    consumer.acknowledge_up_to((1, 1))
    consumer.flush_acks()
    await until(lambda: acknowledged(broker) == [(1, 1)])
    consumer.acknowledge_up_to((1, 2))
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 9, cursor=(1, -1))
    broker.on[BaseCommand.SEEK] = in_turn(lambda link, _: link.drop(), success)
    await consumer.seek((1, 0))
    await until(lambda: consumer.registrations == 3)
    consumer.flush_acks()
    assert await take(broker, consumer, 0) == [0]
    assert acknowledged(broker) == [(1, 1)], "neither the one that was told before, nor the one that was not"
    await consumer.close()
