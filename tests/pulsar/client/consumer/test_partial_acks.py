"""Masks of partly acknowledged batches: kept as long as they are needed, and never without bound."""

import pytest

from mqbridge.pulsar.client.consumer import partial_acks
from mqbridge.pulsar.client.consumer.partial_acks import MAX_RELEASED_ENTRIES, PartialAcks
from mqbridge.pulsar.client.consumer.pending_acks import PendingAcks
from mqbridge.pulsar.client.consumer.subscription import Subscription, Types
from tests.pulsar.client.broker import Broker, until

TOPIC = "persistent://public/default/t"


def test_released_entries_are_bounded():
    acks = PendingAcks(batch_index=True)
    for entry in range(5 * MAX_RELEASED_ENTRIES):
        acks.add_messages((1, entry), 0b001, 3)
        acks.partial.release([(1, entry)])
    assert len(acks.partial) == MAX_RELEASED_ENTRIES
    newest = (1, 5 * MAX_RELEASED_ENTRIES - 1)
    assert acks.partial.on_redelivered(newest) == 0b110
    assert acks.partial.on_redelivered((1, 0)) is None, "it comes as a whole"


def test_held_entries_are_kept_however_many_are_released():
    acks = PendingAcks(batch_index=False)
    acks.add_messages((1, 0), 0b001, 3)
    for entry in range(1, 2 * MAX_RELEASED_ENTRIES):
        acks.add_messages((1, entry), 0b001, 3)
        acks.partial.release([(1, entry)])
    assert acks.add_messages((1, 0), 0b110, 3), "the first message was not forgotten"


def test_a_redelivered_entry_is_held_again():
    partial = PartialAcks()
    partial.set((1, 0), 0b10)
    partial.release_all()
    assert partial.on_redelivered((1, 0)) == 0b10
    for entry in range(1, 2 * MAX_RELEASED_ENTRIES):
        partial.set((1, entry), 1)
        partial.release([(1, entry)])
    assert partial.unacknowledged((1, 0)) == 0b10


def test_held_entries_are_bounded_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(partial_acks, "MAX_HELD_ENTRIES", 10)
    monkeypatch.setattr(partial_acks, "MAX_RELEASED_ENTRIES", 5)
    partial = PartialAcks()
    for entry in range(100):
        partial.set((1, entry), 1)
    assert len(partial) == 15


def test_a_cumulative_acknowledgement_completes_earlier_entries():
    acks = PendingAcks(batch_index=True)
    for entry in range(4):
        acks.add_messages((1, entry), 0b001, 3)
    acks.add_cumulative((1, 2), 1, 3)
    assert [acks.partial.unacknowledged((1, entry)) for entry in range(4)] == [None, None, 0b110, 0b110]
    acks.add_cumulative((1, 2))
    assert acks.partial.unacknowledged((1, 2)) is None


async def test_lost_connections_and_redeliveries_release_entries(broker: Broker, client):
    """Another consumer acknowledges the rest of an entry again and again, and this consumer is not notified."""
    consumer = await client.consumer(TOPIC, Subscription("s", Types.Shared))
    partial = consumer._acks.partial
    for entry in range(3 * MAX_RELEASED_ENTRIES):
        consumer.acknowledge_message((1, entry), 0, 3)
        if entry % 2:
            consumer.redeliver([(1, entry - 1), (1, entry)])
        if entry % 500 == 0 and entry <= MAX_RELEASED_ENTRIES:  # a lost registration forgets them all
            registrations = consumer.registrations
            broker.link.drop()
            await until(lambda before=registrations: consumer.registrations > before)
    consumer.redeliver([(1, 3 * MAX_RELEASED_ENTRIES - 1)])
    assert len(partial) == MAX_RELEASED_ENTRIES
    await consumer.seek((1, 0))
    assert len(partial) == 0
    await consumer.close()
