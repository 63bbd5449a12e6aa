"""Receipts for acknowledgements, negative acknowledgements, timeouts; and a consumer's statistics and last message."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError, ServerRefused
from mqbridge.pulsar.client.consumer.redelivery_timer import TICK_S, RedeliveryTimer
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from mqbridge.pulsar.wire.schemas import STRING
from tests.pulsar.client.broker import Broker, in_turn, silent, success, until

TOPIC = "persistent://public/default/t"


def noted(link, frame):
    asked = frame.command.ack
    if asked.HasField("request_id"):
        link.send(ackResponse=pb.CommandAckResponse(consumer_id=asked.consumer_id, request_id=asked.request_id))


def not_noted(link, frame):
    asked = frame.command.ack
    if asked.HasField("request_id"):
        response = pb.CommandAckResponse(
            consumer_id=asked.consumer_id, request_id=asked.request_id, error=pb.MetadataError, message="no"
        )
        link.send(ackResponse=response)


def acknowledged(broker: Broker) -> list[list[int]]:
    return [[ids.entry_id(each)[1] for each in ack.message_id] for ack in broker.asked[BaseCommand.ACK]]


def redelivered(broker: Broker) -> list[list[int]]:
    asked = broker.asked[BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES]
    return [[ids.entry_id(each)[1] for each in one.message_ids] for one in asked]


async def deliver(broker: Broker, consumer, count: int):
    for entry in range(count):
        broker.link.message(0, 1, entry, b"x")
    return [await consumer.receive() for _ in range(count)]


# --- receipts ---------------------------------------------------------------------------------------------------------


async def test_acknowledgements_are_confirmed(broker: Broker, client):
    broker.on[BaseCommand.ACK] = noted
    shared = await client.consumer(TOPIC, Subscription("s", Types.Shared))
    shared.acknowledge((1, 1))
    shared.acknowledge((1, 2))
    await shared.confirm_acks()
    ordered = await client.consumer(TOPIC, Subscription("o"))
    broker.link.message(1, 1, 7, b"x")
    await ordered.receive()
    ordered.acknowledge_up_to((1, 7))
    await ordered.confirm_acks()
    assert acknowledged(broker) == [[1, 2], [7]]
    assert all(ack.HasField("request_id") for ack in broker.asked[BaseCommand.ACK])
    await shared.close()
    await ordered.close()


async def test_unconfirmed_acknowledgements_are_sent_again(broker: Broker, client):
    broker.on[BaseCommand.ACK] = in_turn(not_noted, noted)
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared, batch_index_ack=True))
    consumer.acknowledge((1, 1))
    consumer.acknowledge_message((1, 2), 0, 3)
    with pytest.raises(ServerRefused, match="MetadataError"):
        await consumer.confirm_acks()
    consumer.acknowledge_message((1, 2), 1, 3)
    await consumer.confirm_acks()
    again = broker.asked[BaseCommand.ACK][-1]
    assert [(ids.entry_id(each)[1], list(each.ack_set)) for each in again.message_id] == [(1, []), (2, [4])]
    await consumer.close()


async def test_a_lost_confirmation_is_an_error_and_is_repeated_after_reconnecting(broker: Broker, client):
    broker.on[BaseCommand.ACK] = in_turn(lambda link, _: link.drop(), noted)
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared))
    consumer.acknowledge((1, 1))
    with pytest.raises(ClusterError):
        await consumer.confirm_acks()
    await until(lambda: len(broker.asked[BaseCommand.ACK]) == 2)
    assert acknowledged(broker) == [[1], [1]]
    await consumer.close()


async def test_a_seek_discards_unconfirmed_acknowledgements(broker: Broker, client):
    broker.on[BaseCommand.ACK] = silent
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared))
    consumer.acknowledge((1, 1))
    confirming = asyncio.ensure_future(consumer.confirm_acks())
    await until(lambda: broker.asked[BaseCommand.ACK])
    await consumer.seek(ids.EARLIEST)
    broker.link.drop()
    with pytest.raises(ClusterError):
        await confirming
    await until(lambda: consumer.registrations >= 2)
    await consumer.close()
    assert acknowledged(broker) == [[1]]


# --- again ------------------------------------------------------------------------------------------------------------


async def test_a_negative_acknowledgement_requests_redelivery_after_its_delay(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared))
    entries = await deliver(broker, consumer, 4)
    consumer.negative_acknowledge(entries[3].id, 30.0)
    consumer.negative_acknowledge(entries[0].id, 0.0)
    consumer.negative_acknowledge(entries[1].id, 0.0)
    consumer.negative_acknowledge(entries[2].id, 0.0)
    consumer.acknowledge(entries[2].id)
    await until(lambda: redelivered(broker))
    assert redelivered(broker) == [[0, 1]], "one that was acknowledged after all is not asked for"
    await consumer.close()


async def test_a_negative_acknowledgement_on_an_ordered_subscription_redelivers_everything(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    entries = await deliver(broker, consumer, 3)
    consumer.acknowledge_up_to(entries[0].id)
    consumer.negative_acknowledge(entries[1].id, 0.0)
    await until(lambda: consumer.registrations == 2)
    assert redelivered(broker) == []
    for entry in range(1, 3):
        broker.link.message(0, 1, entry, b"again", consumer_epoch=1)
    assert [(await consumer.receive()).entry for _ in range(2)] == [1, 2]
    await consumer.close()


async def test_unacknowledged_entries_are_redelivered_after_the_timeout(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared, ack_timeout_s=0.05))
    entries = await deliver(broker, consumer, 4)
    consumer.acknowledge(entries[1].id)
    consumer.acknowledge_message(entries[2].id, 0, 1)
    await until(lambda: redelivered(broker))
    assert redelivered(broker) == [[0, 3]]
    broker.link.message(0, 1, 0, b"x", redelivery_count=1)
    assert (await consumer.receive()).redelivery_count == 1
    await until(lambda: len(redelivered(broker)) == 2)
    assert redelivered(broker)[1] == [0]
    await consumer.close()


async def test_a_timeout_on_an_ordered_subscription_rewinds_it_once(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", ack_timeout_s=0.05))
    entries = await deliver(broker, consumer, 3)
    consumer.acknowledge_up_to(entries[1].id)
    await until(lambda: consumer.registrations == 2)
    await asyncio.sleep(0.3)
    assert (consumer.registrations, redelivered(broker)) == (2, [])
    await consumer.close()


async def test_a_reconnection_clears_redelivery_timers_of_shared_subscriptions(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared, ack_timeout_s=0.05))
    await deliver(broker, consumer, 2)
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    await asyncio.sleep(0.3)
    assert redelivered(broker) == []
    await consumer.close()


async def test_redelivery_timers_of_ordered_subscriptions_survive_a_lost_connection(broker: Broker, client):
    """The consumer skips the entry that the broker redelivers. So only our timer can get it delivered again."""
    consumer = await client.consumer(TOPIC, Subscription("s"))
    entries = await deliver(broker, consumer, 2)
    consumer.negative_acknowledge(entries[0].id, 0.0)
    broker.link.drop()
    await until(lambda: consumer.registrations == 3)
    for entry in range(2):
        broker.link.message(0, 1, entry, b"again", consumer_epoch=2)
    assert [(await consumer.receive()).entry for _ in range(2)] == [0, 1]
    await asyncio.sleep(0.3)
    assert consumer.registrations == 3, "once"
    await consumer.close()


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 100), st.booleans())))
def test_each_entry_is_redelivered_once_and_not_too_early(steps):
    due, expected = RedeliveryTimer(), {}
    for number, at, discard in steps:
        if discard:
            due.discard((0, number))
            expected.pop((0, number), None)
        else:
            due.add((0, number), at)
            expected[0, number] = at
    now = 0.0
    while (at := due.next_at()) is not None:
        now = max(now, at)
        for entry in due.pop(now):
            due_at = expected.pop(entry)
            assert due_at - 1e-9 <= now <= max(due_at + 2 * TICK_S, now)
    assert (expected, len(due)) == ({}, 0)


def test_discard_up_to_removes_earlier_redelivery_times():
    due = RedeliveryTimer()
    for entry in range(5):
        due.add((1, entry), float(entry))
    due.discard_up_to((1, 2))
    assert due.pop(100.0) == [(1, 3), (1, 4)]


# --- questions --------------------------------------------------------------------------------------------------------


async def test_statistics(broker: Broker, client):
    def answer(link, frame):
        response = pb.CommandConsumerStatsResponse(
            request_id=frame.command.consumerStats.request_id, consumerName="me", msgBacklog=5, unackedMessages=2, msgRateOut=1.5
        )
        link.send(consumerStatsResponse=response)

    def refuse(link, frame):
        response = pb.CommandConsumerStatsResponse(
            request_id=frame.command.consumerStats.request_id, error_code=pb.AuthorizationError, error_message="no"
        )
        link.send(consumerStatsResponse=response)

    broker.on[BaseCommand.CONSUMER_STATS] = in_turn(answer, refuse)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    stats = await consumer.stats()
    assert (stats.name, stats.backlog, stats.unacked_messages, stats.rate_out) == ("me", 5, 2, 1.5)
    with pytest.raises(ServerRefused, match="AuthorizationError"):
        await consumer.stats()
    await consumer.close()


async def test_unsubscribing_is_refused_or_ends_the_consumer(broker: Broker, client):
    def close_and_succeed(link, frame):
        link.send(close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=ids.NO_REQUEST))
        success(link, frame)

    def close_and_refuse(link, frame):
        link.send(close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=ids.NO_REQUEST))
        link.error(frame.command.unsubscribe.request_id, pb.MetadataError)

    broker.on[BaseCommand.UNSUBSCRIBE] = in_turn(close_and_refuse, close_and_succeed)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    with pytest.raises(ServerRefused, match="MetadataError"):
        await consumer.unsubscribe()
    await until(lambda: consumer.registrations == 2)
    await consumer.unsubscribe(force=True)
    assert [asked.force for asked in broker.asked[BaseCommand.UNSUBSCRIBE]] == [False, True]
    with pytest.raises(ClusterError, match="is deleted"):
        await consumer.receive()
    await consumer.close()
    assert len(broker.asked[BaseCommand.SUBSCRIBE]) == 2, "to subscribe again would make it anew"


async def test_last_message_includes_the_batch_index(broker: Broker, client):
    def answer(link, frame):
        message_id = pb.MessageIdData(ledgerId=3, entryId=4, batch_index=9)
        response = pb.CommandGetLastMessageIdResponse(
            last_message_id=message_id, request_id=frame.command.getLastMessageId.request_id
        )
        link.send(getLastMessageIdResponse=response)

    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = answer
    consumer = await client.consumer(TOPIC, Subscription("s"))
    assert await consumer.last_message() == (3, 4, 9)
    assert await consumer.last_id() == (3, 4)
    await consumer.close()


async def test_subscribe_command_contains_all_settings(broker: Broker, client):
    subscription = Subscription(
        "s",
        Types.Key_Shared,
        priority=3,
        key_ranges=((0, 99), (200, 299)),
        schema=STRING,
        properties=(("a", "b"),),
        create_topic=False,
        rollback_s=60,
    )
    consumer = await client.consumer(TOPIC, subscription)
    (asked,) = broker.asked[BaseCommand.SUBSCRIBE]
    assert (asked.priority_level, asked.force_topic_creation, asked.start_message_rollback_duration_sec) == (3, False, 60)
    assert [(each.start, each.end) for each in asked.keySharedMeta.hashRanges] == [(0, 99), (200, 299)]
    assert (asked.keySharedMeta.keySharedMode, asked.schema.type) == (pb.STICKY, pb.Schema.String)
    assert [(pair.key, pair.value) for pair in asked.subscription_properties] == [("a", "b")]
    await consumer.close()
