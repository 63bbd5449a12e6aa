"""Received MESSAGEs: partly acknowledged batches, here or at the broker, and invalid metadata."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.pulsar.adapter.batches import deliverable_mask
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.batch import join_batch
from mqbridge.pulsar.wire.ids import full_mask, to_words
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, SingleMessageMetadata
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import Broker, ends_at, scripted_client, until

TOPIC = "persistent://public/default/t"
SHARED = Subscription("s", Types.Shared)


def deliver(broker: Broker, entry: int, count: int, *ack_set: int, **more) -> None:
    """Send a batch of `count` messages to consumer 0."""
    payload = join_batch([(SingleMessageMetadata(), b"%d" % index) for index in range(count)])
    broker.link.message(0, 1, entry, payload, ack_set=ack_set, metadata={"num_messages_in_batch": count}, **more)


def acknowledged(broker: Broker) -> list[tuple[int, list[int]]]:
    return [(ids.entry_id(each)[1], list(each.ack_set)) for ack in broker.asked[BaseCommand.ACK] for each in ack.message_id]


def granted(broker: Broker) -> int:
    return sum(flow.messagePermits for flow in broker.asked[BaseCommand.FLOW])


async def first_of(broker: Broker, consumer):
    """Return the next entry of ledger 1, None if there is none. A message sent after it shows when to stop waiting."""
    broker.link.message(0, 2, 0, b"behind")
    entry = await asyncio.wait_for(consumer.receive(), PATIENCE_S)
    if entry.ledger == 1:
        await asyncio.wait_for(consumer.receive(), PATIENCE_S)
        return entry
    return None


# --- partly acknowledged ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "ours", "theirs"), [(3, 0b001, 0b110), (3, 0b110, 0b001), (70, 1 << 69, full_mask(69))])
async def test_an_entry_acknowledged_partly_by_the_client_and_partly_at_the_broker_is_complete(
    broker: Broker, client, count, ours, theirs
):
    """Some messages are acknowledged here and the others at the broker, so the entry is acknowledged."""
    consumer = await client.consumer(TOPIC, SHARED)
    deliver(broker, 0, count)
    entry_id = (await consumer.receive()).id
    assert not consumer.acknowledge_messages(entry_id, ours, count)
    consumer.redeliver([entry_id])
    deliver(broker, 0, count, *to_words(full_mask(count) & ~theirs))
    assert await first_of(broker, consumer) is None
    assert consumer.held_bytes == 0
    await consumer.close()
    assert acknowledged(broker) == [(0, [])]


async def test_an_entry_without_unacknowledged_messages_is_no_backlog(broker: Broker, client):
    consumer = await client.consumer(TOPIC, SHARED)
    deliver(broker, 0, 3)
    consumer.acknowledge_message((await consumer.receive()).id, 0, 3)
    broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = ends_at(1, 1)
    assert await consumer.has_more()
    consumer.acknowledge_message((1, 1), 0, 2)
    deliver(broker, 1, 2, 0b01)
    await until(lambda: (1, []) in acknowledged(broker))
    assert (consumer.queued, await consumer.has_more()) == (0, False)
    await consumer.close()


@given(
    st.integers(1, 70).flatmap(
        lambda count: st.tuples(
            st.just(count), st.integers(0, full_mask(count)), st.one_of(st.none(), st.integers(0, full_mask(count + 3)))
        )
    )
)
def test_an_entry_keeps_its_unacknowledged_messages(case):
    asyncio.run(redeliver_with(*case))


async def redeliver_with(count: int, ours: int, theirs: int | None) -> None:
    """Messages in `ours` are acknowledged here; `theirs` is the broker's mask of unacknowledged messages, None for all."""
    with pytest.MonkeyPatch.context() as patch:
        broker = Broker()
        patch.setattr("mqbridge.pulsar.client.connection.handshake.dial", broker.dial)
        client = scripted_client()
        consumer = await client.consumer(TOPIC, SHARED)
        deliver(broker, 0, count)
        entry_id = (await consumer.receive()).id
        is_whole = ours and consumer.acknowledge_messages(entry_id, ours, count)
        words = [] if theirs is None else to_words(theirs) or [0]
        deliver(broker, 0, count, *words)
        entry = await first_of(broker, consumer)
        mine = 0 if is_whole else ours  # the acknowledgement of a whole entry that is redelivered was lost
        left = full_mask(count) & ~mine & (full_mask(count) if theirs is None else theirs)
        assert (0 if entry is None else deliverable_mask(entry)) == left
        await client.close()


async def test_a_damaged_entry_is_one_message_even_if_partly_acknowledged(broker: Broker, client):
    """Its number of messages is unknown, so the broker's mask cannot be applied."""
    consumer = await client.consumer(TOPIC, SHARED)
    message = pb.CommandMessage(consumer_id=0, message_id=ids.message_id(1, 0), ack_set=[6])
    broker.link.send(message=message)
    entry = await first_of(broker, consumer)
    assert entry.defect is not None
    assert deliverable_mask(entry) == 1
    await consumer.close()


@pytest.mark.parametrize("lost", [False, True], ids=["closed", "lost"])
async def test_after_a_reconnection_partial_acknowledgements_are_forgotten(broker: Broker, client, lost: bool):
    """An operator who sets a shared subscription back has the broker close its consumers, and wants all of it again.

    A consumer that has lost its connection is not told.
    """
    consumer = await client.consumer(TOPIC, SHARED)
    deliver(broker, 0, 3)
    entry_id = (await consumer.receive()).id
    consumer.acknowledge_message(entry_id, 0, 3)
    if lost:
        broker.link.drop()
    else:
        broker.link.send(close_consumer=pb.CommandCloseConsumer(consumer_id=0, request_id=ids.NO_REQUEST))
    await until(lambda: consumer.registrations == 2)
    assert not consumer._acks.partial
    deliver(broker, 0, 3)
    assert deliverable_mask(await consumer.receive()) == 0b111
    await consumer.close()


# --- metadata that cannot be true -------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [4, 1 << 20, (1 << 31) - 1])
async def test_a_batch_that_announces_more_messages_than_its_bytes_allow(broker: Broker, client, told):
    consumer = await client.consumer(TOPIC, Subscription("s"))
    before = granted(broker)
    broker.link.message(0, 1, 0, bytes(21), metadata={"num_messages_in_batch": told})
    entry = await consumer.receive()
    assert f"{told} messages" in str(entry.defect)
    assert (entry.count, deliverable_mask(entry)) == (1, 1)
    # The broker has taken so many from the credit: it must have them back, or it never delivers again.
    broker.link.message(0, 1, 1, b"good")
    assert (await consumer.receive()).payload == b"good"
    await until(lambda: granted(broker) - told - 1 >= before // 2)
    assert all(flow.messagePermits < 1 << 31 for flow in broker.asked[BaseCommand.FLOW])
    await consumer.close()
