"""The consumer with a scripted broker: permits, acknowledgements, reconnections; and `PendingAcks` alone."""

import asyncio
import contextlib
from collections.abc import Coroutine, Generator
from dataclasses import replace
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.client.consumer.consumer_state import ConsumerState
from mqbridge.pulsar.client.consumer.pending_acks import MAX_IDS_PER_COMMAND, PendingAcks
from mqbridge.pulsar.client.consumer.stall_detector import StallDetector
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types, reader
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.frame import Frame
from mqbridge.pulsar.wire.ids import EARLIEST
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, SingleMessageMetadata
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, ends_at, in_turn, success, until

TOPIC = "persistent://public/default/t-partition-3"
HELLO = join_batch([(SingleMessageMetadata(), text) for text in (b"he", b"l", b"lo")])


def ids_of(ack) -> list[tuple[int, int, list[int]]]:
    return [(*ids.entry_id(each), list(each.ack_set)) for each in ack.message_id]


async def test_entries_have_id_partition_and_redelivery_count(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    broker.link.message(0, 5, 7, HELLO, redelivery_count=2, ack_set=[6], metadata={"num_messages_in_batch": 3})
    entry = await consumer.receive()
    assert (entry.ledger, entry.entry, entry.partition, entry.payload) == (5, 7, 3, HELLO)
    assert (entry.redelivery_count, entry.ack_set, entry.defect) == (2, (6,), None)
    await consumer.close()


async def test_subscribe_contains_the_settings(broker: Broker, client):
    shared = await client.consumer(TOPIC, Subscription("s", Types.Key_Shared, earliest=False, consumer_name="me"))
    reader = await client.consumer(TOPIC, Subscription("r", reader_from=(4, 2)))
    first, second = broker.asked[BaseCommand.SUBSCRIBE]
    assert (first.subType, first.initialPosition, first.consumer_name) == (Types.Key_Shared, Types.Latest, "me")
    assert first.keySharedMeta.keySharedMode == pb.AUTO_SPLIT
    assert not first.HasField("consumer_epoch")
    assert (second.durable, ids.entry_id(second.start_message_id), second.consumer_epoch) == (False, (4, 2), 0)
    assert second.initialPosition == Types.Latest, "with the latest position as its start, a broker goes by this"
    await shared.close()
    await reader.close()


async def test_a_damaged_entry_is_delivered_with_its_defect(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    broker.link.message(0, 1, 0, b"x", metadata={"compression": pb.LZ4, "uncompressed_size": 99})
    assert (await consumer.receive()).defect is not None
    await consumer.close()


@pytest.mark.parametrize("iterations", range(1, 4))
async def test_an_entry_that_arrives_when_the_wait_begins_ends_it(broker: Broker, client, iterations: int):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    waiting = asyncio.create_task(consumer.wait_available(PATIENCE_S))
    for _ in range(iterations):
        await asyncio.sleep(0)
    consumer._changed.set()  # as an entry does
    await asyncio.wait([waiting], timeout=PATIENCE_S / 2)
    assert waiting.done()
    await consumer.close()


async def test_acknowledgements_are_collected(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared))
    for entry in range(2500):
        consumer.acknowledge((1, entry))
    await until(lambda: sum(len(ack.message_id) for ack in broker.asked[BaseCommand.ACK]) == 2500)
    assert [len(ack.message_id) for ack in broker.asked[BaseCommand.ACK]] == [1000, 1000, 500]
    await consumer.close()


async def test_close_sends_pending_acknowledgements(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    for entry in range(6):
        broker.link.message(0, 1, entry, b"x")
        await consumer.receive()
    consumer.acknowledge_up_to((1, 6))
    consumer.acknowledge_up_to((1, 5))
    consumer.acknowledge_up_to((1, 3))
    await consumer.close()
    (ack,) = broker.asked[BaseCommand.ACK]
    assert (ack.ack_type, ids_of(ack)) == (pb.CommandAck.Cumulative, [(1, 5, [])])
    assert broker.asked[BaseCommand.CLOSE_CONSUMER] != []
    with pytest.raises(ClusterError, match="closed"):
        await consumer.receive()


async def test_after_a_lost_connection_delivered_entries_are_skipped(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    for entry in range(4):
        broker.link.message(0, 1, entry, b"%d" % entry)
    assert [(await consumer.receive()).entry for _ in range(3)] == [0, 1, 2]
    consumer.acknowledge_up_to((1, 0))
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    await until(lambda: broker.asked[BaseCommand.FLOW])
    for entry in range(1, 5):
        broker.link.message(0, 1, entry, b"%d" % entry)
    assert [(await consumer.receive()).entry for _ in range(2)] == [3, 4]
    assert ids_of(broker.asked[BaseCommand.ACK][-1]) == [(1, 0, [])], "told again: the first may have been lost"
    await consumer.close()


async def test_shared_consumers_deliver_redelivered_entries(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared))
    broker.link.message(0, 1, 0, b"x")
    await consumer.receive()
    broker.link.send(close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=ids.NO_REQUEST))
    await until(lambda: consumer.registrations == 2)
    broker.link.message(0, 1, 0, b"x")
    assert (await consumer.receive()).entry == 0
    await consumer.close()


async def test_redelivery_of_everything_subscribes_again_after_the_last_acknowledged_entry(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    for entry in range(4):
        broker.link.message(0, 1, entry, b"x", consumer_epoch=0)
    assert [(await consumer.receive()).entry for _ in range(3)] == [0, 1, 2]
    consumer.acknowledge_up_to((1, 0))
    consumer.redeliver()
    broker.link.message(0, 1, 4, b"on its way before", consumer_epoch=0)
    await until(lambda: consumer.registrations == 2)
    broker.link.message(0, 1, 5, b"read for the old registration", consumer_epoch=0)
    for entry in range(1, 5):
        broker.link.message(0, 1, entry, b"again", consumer_epoch=1)
    assert [(await consumer.receive()).entry for _ in range(4)] == [1, 2, 3, 4]
    assert consumer.queued == 0
    assert broker.asked[BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES] == []
    assert [asked.consumer_epoch for asked in broker.asked[BaseCommand.SUBSCRIBE]] == [0, 1]
    await consumer.close()


async def test_seek_discards_acknowledgements_and_subscribes_again(broker: Broker, client):
    def seek(link, frame):
        link.send(close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=ids.NO_REQUEST))
        success(link, frame)

    broker.on[BaseCommand.SEEK] = seek
    consumer = await client.consumer(TOPIC, Subscription("s"))
    broker.link.message(0, 1, 9, b"x")
    await consumer.receive()
    consumer.acknowledge_up_to((1, 9))
    await consumer.seek((1, 2))
    await until(lambda: consumer.registrations == 2)
    broker.link.message(0, 1, 2, b"x")
    assert (await consumer.receive()).entry == 2
    await asyncio.sleep(0.15)
    assert broker.asked[BaseCommand.ACK] == []
    (asked,) = broker.asked[BaseCommand.SEEK]
    assert ids.entry_id(asked.message_id) == (1, 2)
    await consumer.close()


async def test_after_a_seek_without_a_close_the_consumer_subscribes_again(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    broker.link.message(0, 1, 9, b"old")
    await consumer.seek(publish_time=5)
    await until(lambda: consumer.registrations == 2)
    assert consumer.queued == 0
    assert len(broker.asked[BaseCommand.CLOSE_CONSUMER]) == 1
    await consumer.close()


async def test_a_final_error_of_subscribing_ends_the_consumer(broker: Broker, client):
    def unauthorized(link, frame):
        link.error(frame.command.subscribe.request_id, pb.AuthorizationError)

    def busy(link, frame):
        link.error(frame.command.subscribe.request_id, pb.ConsumerBusy)

    broker.on[BaseCommand.SUBSCRIBE] = in_turn(success, busy, unauthorized)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    broker.link.drop()
    with pytest.raises(ClusterError, match="AuthorizationError") as caught:
        await asyncio.wait_for(consumer.receive(), PATIENCE_S)
    assert caught.value.failure is Failure.FATAL
    assert len(broker.asked[BaseCommand.SUBSCRIBE]) == 3, "a subscription that is busy after a reconnection is waited for"
    await consumer.close()


async def test_a_failover_consumer_follows_the_broker(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Failover))
    assert not consumer.active
    broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=True))
    await asyncio.wait_for(consumer.wait_active(True), PATIENCE_S)
    for entry in range(3):
        broker.link.message(0, 1, entry, b"x")
    assert (await consumer.receive()).entry == 0
    broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=False))
    await asyncio.wait_for(consumer.wait_active(False), PATIENCE_S)
    assert consumer.queued == 0
    broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=True))
    broker.link.message(0, 1, 0, b"again")
    assert (await consumer.receive()).entry == 0, "it was not acknowledged before the other consumer took over"
    await consumer.close()


async def test_a_short_deactivation_is_noticed(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Failover))
    broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=True))
    await asyncio.wait_for(consumer.wait_active(True), PATIENCE_S)
    over = asyncio.ensure_future(consumer.wait_deactivated(consumer.deactivations))
    await asyncio.sleep(0)
    for is_active in (False, True):  # in one turn, as of one read
        change = pb.CommandActiveConsumerChange(consumer_id=0, is_active=is_active)
        command = BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change)
        consumer.on_push(Frame(command.type, command, b"", 0))
    assert consumer.active
    await asyncio.wait_for(over, PATIENCE_S)
    await consumer.close()


class Counted:
    """Awaits a coroutine and counts how often the loop resumes it."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.resumed = 0
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, None]:
        """Pass on whatever the coroutine waits for."""
        awaiting = self._coroutine.__await__()
        with contextlib.suppress(StopIteration):
            waited_for = next(awaiting)
            while True:
                yield waited_for
                self.resumed += 1
                waited_for = next(awaiting)


@pytest.mark.parametrize("kind", [Types.Exclusive, Types.Failover, Types.Shared])
async def test_entries_and_idle_receivers_do_not_wake_a_task_that_waits_for_a_change_of_the_active_consumer(
    broker: Broker, client, kind: int
):
    consumer = await client.consumer(TOPIC, Subscription("s", kind))
    broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=True))
    await asyncio.wait_for(consumer.wait_active(True), PATIENCE_S)
    counted = Counted(consumer.wait_deactivated(consumer.deactivations))
    waiting = asyncio.ensure_future(counted)
    for entry in range(10):
        broker.link.message(0, 1, entry, b"x")
        assert (await consumer.receive()).entry == entry
        await consumer.wait_available(0.0)
    assert counted.resumed == 0
    if kind == Types.Failover:
        broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=False))
        await asyncio.wait_for(waiting, PATIENCE_S)
        await consumer.close()
    else:
        await consumer.close()
        with pytest.raises(ClusterError, match="closed"):
            await asyncio.wait_for(waiting, PATIENCE_S)
    assert counted.resumed == 1


async def test_a_stalled_subscription_is_subscribed_again(broker: Broker, client):
    """It subscribes again only once. If the last entry still does not arrive, it is not for consumers (for example, a marker)."""
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 9, cursor=(1, 6))
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Failover, silence_s=0.02))
    broker.link.send(active_consumer_change=pb.CommandActiveConsumerChange(consumer_id=0, is_active=True))
    broker.link.message(0, 1, 7, b"x")
    assert (await consumer.receive()).entry == 7
    await until(lambda: consumer.registrations == 2)
    await until(lambda: len(broker.asked[BaseCommand.GET_LAST_MESSAGE_ID]) > 4)
    assert (consumer.registrations, consumer.stalls) == (2, 1)
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 10, cursor=(1, 6))
    await until(lambda: consumer.registrations == 3)
    for entry in (7, 8, 9, 10):
        broker.link.message(0, 1, entry, b"x")
    assert [(await consumer.receive()).entry for _ in range(3)] == [8, 9, 10]
    asked = len(broker.asked[BaseCommand.GET_LAST_MESSAGE_ID])
    await until(lambda: len(broker.asked[BaseCommand.GET_LAST_MESSAGE_ID]) > asked + 2)
    assert consumer.registrations == 3, "it is at the end"
    await consumer.close()


async def test_a_consumer_that_ends_during_a_stall_check_makes_no_further_checks():
    checks: list[asyncio.Future[None]] = []

    def find_unreceived() -> asyncio.Future[None]:
        checks.append(asyncio.get_running_loop().create_future())
        return checks[-1]

    state = ConsumerState(in_order=True, failover=False, start=None)
    detector = StallDetector(TOPIC, 0.0, state, lambda: True, find_unreceived, resubscribe=lambda: None)
    detector.has_news = False
    detector.schedule_check()
    await until(lambda: len(checks) == 1)
    checks[0].set_result(None)
    await until(lambda: len(checks) == 2)
    state.on_ended(ClusterError("failed"))
    detector.stop()
    checks[1].set_result(None)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(checks) == 2
    await detector.close()


@pytest.mark.parametrize("why", ["shared", "passive", "full"])
async def test_expected_silence_is_no_stall(broker: Broker, client, why: str):
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 9)
    kind = {"shared": Types.Shared, "passive": Types.Failover, "full": Types.Exclusive}[why]
    consumer = await client.consumer(TOPIC, Subscription("s", kind, silence_s=0.01, max_bytes=1))
    if why == "full":
        broker.link.message(0, 1, 0, b"waits to be taken")
    await asyncio.sleep(0.1)
    assert broker.asked[BaseCommand.GET_LAST_MESSAGE_ID] == []
    await consumer.close()


async def test_the_end_of_a_terminated_topic_is_not_an_error(broker: Broker, client):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    broker.link.send(reachedEndOfTopic=pb.CommandReachedEndOfTopic(consumer_id=0))
    assert broker.link.open
    await consumer.close()


# --- acknowledgements -------------------------------------------------------------------------------------------------


def words_of(acks: PendingAcks) -> list[tuple[int, int, list[int]]]:
    return [(*ids.entry_id(each), list(each.ack_set)) for group in acks.take_individual() for each in group]


def test_messages_of_a_batch_are_acknowledged_one_by_one():
    acks = PendingAcks(batch_index=True)
    acks.add_message((1, 0), 0, 3)
    assert words_of(acks) == [(1, 0, [6])]
    acks.add_message((1, 0), 2, 3)
    assert words_of(acks) == [(1, 0, [2])]
    acks.add_message((1, 0), 1, 3)
    assert words_of(acks) == [(1, 0, [])]
    assert words_of(acks) == []


def test_without_batch_index_an_entry_waits_for_its_last_message():
    acks = PendingAcks(batch_index=False)
    for index in (2, 0):
        acks.add_message((1, 0), index, 3)
        assert words_of(acks) == []
    acks.add_message((1, 0), 1, 3)
    assert words_of(acks) == [(1, 0, [])]


def test_cumulative_acknowledgement_inside_a_batch():
    acks = PendingAcks(batch_index=True)
    acks.add_cumulative((1, 4), 1, 3)
    acks.add_cumulative((1, 4), 0, 3)
    taken = acks.take_cumulative()
    assert (ids.entry_id(taken), list(taken.ack_set)) == ((1, 4), [4])
    acks.add_cumulative((1, 4), 2, 3)
    assert list(acks.take_cumulative().ack_set) == []
    assert acks.take_cumulative() is None
    plain = PendingAcks(batch_index=False)
    plain.add_cumulative((1, 0), 1, 3)
    taken = plain.take_cumulative()
    assert (ids.entry_id(taken), taken.entryId) == ((1, -1), ids.NO_REQUEST)


def test_many_acknowledgements_are_split_into_commands():
    acks = PendingAcks(batch_index=False)
    for entry in range(MAX_IDS_PER_COMMAND + 1):
        acks.add_entry((1, entry))
    assert [len(group) for group in acks.take_individual()] == [MAX_IDS_PER_COMMAND, 1]


@pytest.mark.parametrize(
    ("topic", "creates"), [("persistent://public/default/t", False), ("non-persistent://public/default/t", True)]
)
@pytest.mark.parametrize("reads", [True, False])
async def test_a_reconnecting_consumer_creates_no_persistent_topic(
    broker: Broker, client, topic: str, creates: bool, reads: bool
):
    """A subscription that was deleted meanwhile is created at the earliest message: later ones were not delivered."""
    subscription = replace(reader(EARLIEST), name="s") if reads else Subscription("s", earliest=False, rollback_s=60)
    consumer = await client.consumer(topic, subscription)
    broker.link.drop()
    await until(lambda: consumer.registrations == 2)
    first, second = broker.asked[BaseCommand.SUBSCRIBE]
    assert (first.force_topic_creation, second.force_topic_creation) == (True, creates)
    if not reads:
        assert (first.initialPosition, second.initialPosition) == (Types.Latest, Types.Earliest)
        assert (first.start_message_rollback_duration_sec, second.start_message_rollback_duration_sec) == (60, 0)
    await consumer.close()
