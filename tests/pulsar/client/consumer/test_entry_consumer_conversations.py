"""Fixed conversations of `test_entry_consumer_model.py`: each showed a fault that random ones find only sometimes."""

import asyncio
from collections.abc import Callable

import pytest

from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand
from tests.pulsar.client.consumer.test_entry_consumer_model import STEP_S
from tests.pulsar.client.consumer.test_entry_consumer_model import ConsumerConversation as Conversation

Steps = Callable[[Conversation], None]


def one_by_one(conversation: Conversation, count: int) -> None:
    """Deliver and take this many entries, each by itself: `take` then knows the position of each."""
    for _ in range(count):
        conversation.deliver(1)
        conversation.take(1)


def acknowledge_first(conversation: Conversation, count: int) -> None:
    """Acknowledge the first entries that were taken, one by one."""
    for _ in range(count):
        conversation.acknowledge(0)
    conversation.flush()


def redelivery_comes_behind_what_was_being_read(conversation: Conversation) -> None:
    conversation.deliver(4)
    conversation.take(4)
    conversation.acknowledge(1)
    conversation.redeliver()
    conversation.deliver(12)
    conversation.take(12)


def another_consumer_is_active_while_all_credit_is_used(conversation: Conversation) -> None:
    conversation.lose_activity(acks=False, unread=12, back=0, then="active")


def entries_come_while_a_reader_at_the_end_is_away(conversation: Conversation) -> None:
    conversation.broker.unreachable = {"broker"}
    conversation.lose_connection(acks=False, forgets=0, slow=False)
    conversation.publish(2, big=False)
    conversation.broker.unreachable = set()
    conversation.flush()


def an_operator_sets_the_cursor_back(conversation: Conversation) -> None:
    conversation.reset_from_outside(back=3, slow=False)


def an_operator_sets_the_cursor_back_slowly(conversation: Conversation) -> None:
    conversation.reset_from_outside(back=3, slow=True)
    conversation.answer_late()


def a_slow_reset_while_an_acknowledgement_waits(conversation: Conversation) -> None:
    conversation.seek(acks=False, fails="", to=1)
    conversation.long_silence()
    conversation.reset_from_outside(back=1, slow=True)
    conversation.acknowledge(0)


def a_slow_reset_and_a_redelivery(conversation: Conversation) -> None:
    a_slow_reset_while_an_acknowledgement_waits(conversation)
    conversation.redeliver()
    conversation.answer_late()
    conversation.flush()


def a_slow_reset_and_an_outage(conversation: Conversation) -> None:
    a_slow_reset_while_an_acknowledgement_waits(conversation)
    conversation.outage()


def the_connection_ends_after_another_took_over_and_was_set_back(conversation: Conversation) -> None:
    conversation.lose_activity(acks=True, unread=0, back=3, then="lost")


def the_topic_moves_to_a_cluster_with_smaller_ids(conversation: Conversation) -> None:
    conversation.deliver(2)
    conversation.take(2)
    if not conversation.broker.reads:
        conversation.acknowledge(1)
    conversation.migrate(closes=True)


def the_old_cluster_ends_before_it_has_closed_the_consumer(conversation: Conversation) -> None:
    conversation.migrate(closes=False)


def entries_without_ids_of_their_own(conversation: Conversation) -> None:
    conversation.consume(3, acknowledges=False)
    conversation.lose_connection(acks=False, forgets=0, slow=False)
    conversation.consume(1, acknowledges=False)


def single_acknowledgements_behind_an_open_entry(conversation: Conversation) -> None:
    conversation.deliver(4)
    conversation.take(4)
    conversation.acknowledge(2)
    conversation.flush()
    conversation.lose_connection(acks=False, forgets=0, slow=False)


def single_acknowledgements_of_an_earlier_run_are_lost(conversation: Conversation) -> None:
    for _ in range(2):
        conversation.deliver(1)
        conversation.take(1)
        conversation.acknowledge(0)
    conversation.flush()
    conversation.redeliver()
    conversation.deliver(2)
    conversation.take(2)
    conversation.lose_connection(acks=False, forgets=2, slow=False)


def a_reset_before_the_close_for_a_redelivery_is_confirmed(conversation: Conversation) -> None:
    conversation.broker.holds_close = True
    conversation.redeliver()
    conversation.broker.set_cursor(0)
    conversation.do(conversation.broker.answer_held)
    conversation.pass_time(1.0)


def a_reset_before_the_consumer_subscribes_again(conversation: Conversation) -> None:
    conversation.broker.refusals = 1
    conversation.redeliver()
    conversation.broker.set_cursor(0)
    conversation.pass_time(1.0)


def a_reset_after_the_consumer_has_left_a_stalled_registration(conversation: Conversation) -> None:
    conversation.broker.refusals = 1
    while conversation.broker.refusals:
        conversation.pass_time(STEP_S)
    conversation.broker.set_cursor(0)
    conversation.pass_time(10.0)


def a_reset_while_the_consumer_is_cut_off(conversation: Conversation) -> None:
    one_by_one(conversation, 6)
    conversation.acknowledge(4)
    conversation.flush()
    conversation.reset_during_an_outage(back=3, index=4)


def a_reset_while_the_consumer_is_cut_off_and_an_acknowledgement_waits(conversation: Conversation) -> None:
    one_by_one(conversation, 6)
    conversation.acknowledge(2)
    conversation.flush()
    conversation.reset_during_an_outage(back=2, index=4)


def a_reset_while_the_consumer_is_cut_off_and_a_single_acknowledgement_waits(conversation: Conversation) -> None:
    one_by_one(conversation, 6)
    acknowledge_first(conversation, 3)
    conversation.reset_during_an_outage(back=2, index=2)


def a_reset_into_an_earlier_ledger_while_the_consumer_is_cut_off(conversation: Conversation) -> None:
    """The consumer's first entry is the first one of its ledger, and no acknowledgement was sent."""
    one_by_one(conversation, 8)
    conversation.acknowledge(8)
    conversation.flush()
    conversation.broker.begin_ledger()
    conversation.publish(4, False)
    conversation.restart()
    one_by_one(conversation, 3)
    conversation.reset_during_an_outage(back=5, index=1)


def an_overflow_while_single_acknowledgements_wait(conversation: Conversation) -> None:
    """An operator moves the cursor after the overflow, before the consumer subscribes again."""
    one_by_one(conversation, 4)
    acknowledge_first(conversation, 3)
    conversation.acknowledge(0)
    conversation.broker.refusals = 1
    conversation.publish(8, big=True)
    conversation.deliver(12)
    assert not conversation.broker.refusals, "it overflowed"
    conversation.broker.set_cursor(0)
    conversation.pass_time(1.0)


def a_reset_while_single_acknowledgements_wait(conversation: Conversation) -> None:
    one_by_one(conversation, 4)
    acknowledge_first(conversation, 3)
    conversation.acknowledge(0)
    conversation.reset_from_outside(back=2, slow=False, waits=False)


def a_reset_while_a_batch_is_partly_acknowledged(conversation: Conversation) -> None:
    one_by_one(conversation, 3)
    for _ in range(2):
        conversation.acknowledge(0)
    conversation.acknowledge_part(0, 0)
    conversation.flush()
    conversation.reset_from_outside(back=1, slow=False)


def a_reset_into_an_earlier_ledger(conversation: Conversation) -> None:
    """The consumer's first entry is the first one of its ledger, and an acknowledgement of it waits."""
    one_by_one(conversation, 8)
    conversation.acknowledge(8)
    conversation.flush()
    conversation.broker.begin_ledger()
    conversation.publish(4, False)
    conversation.restart()
    one_by_one(conversation, 3)
    conversation.acknowledge(1)
    conversation.reset_from_outside(back=5, slow=False, waits=False, index=1)


def a_reset_into_an_earlier_ledger_after_a_partial_acknowledgement(conversation: Conversation) -> None:
    one_by_one(conversation, 8)
    conversation.acknowledge(8)
    conversation.flush()
    conversation.broker.begin_ledger()
    conversation.publish(4, False)
    one_by_one(conversation, 1)
    conversation.acknowledge_part(12, 0)
    conversation.reset_from_outside(back=5, slow=False)


def a_negative_acknowledgement_while_the_subscription_is_deleted(conversation: Conversation) -> None:
    one_by_one(conversation, 1)
    conversation.negative_acknowledge(0, 0.0)
    conversation.unsubscribe("", 9)


def acknowledgements_while_a_seek_is_repeated(conversation: Conversation) -> None:
    consumer, broker = conversation.consumer, conversation.broker
    one_by_one(conversation, 4)
    conversation.acknowledge(0)
    conversation.flush()
    broker.seek_fails, broker.holds_answers = "after", True

    async def seek_and_acknowledge() -> None:
        seek = asyncio.ensure_future(consumer.seek(broker.position(2)))
        await asyncio.sleep(0)
        for entry in conversation.taken if conversation.run_of_last == consumer.generation else ():
            consumer.acknowledge(entry)
        await asyncio.sleep(STEP_S)
        broker.answer_held()
        await seek

    conversation.run(seek_and_acknowledge())
    conversation.pass_time(STEP_S)


def single_acknowledgements_precede_a_cumulative_one(conversation: Conversation) -> None:
    one_by_one(conversation, 7)
    for entry in conversation.taken[:5]:
        conversation.do(conversation.consumer.acknowledge, entry)
    conversation.flush()
    conversation.acknowledge(12)
    conversation.reset_from_outside(back=3, slow=False, waits=False, index=12)


def another_consumer_acknowledges_after_a_reset(conversation: Conversation) -> None:
    broker = conversation.broker
    one_by_one(conversation, 8)
    conversation.acknowledge(2)
    conversation.flush()
    conversation.acknowledge(5)
    broker.set_cursor(0)
    broker.cursor, broker.active, broker.owed = 3, False, broker.messages(range(4, 8))
    conversation.unload(False)
    conversation.pass_time(1.0)


def the_broker_does_not_report_the_cursor(conversation: Conversation) -> None:
    one_by_one(conversation, 4)
    conversation.acknowledge(2)
    conversation.flush()
    conversation.broker.on[BaseCommand.GET_LAST_MESSAGE_ID] = lambda link, frame: link.error(
        frame.command.getLastMessageId.request_id, pb.AuthorizationError
    )
    conversation.reset_from_outside(back=2, slow=False)


def two_resets_and_failed_attempts_to_subscribe(conversation: Conversation) -> None:
    one_by_one(conversation, 6)
    conversation.acknowledge(3)
    conversation.flush()
    conversation.acknowledge(5)
    conversation.reset_from_outside(back=2, slow=True, waits=False, index=5)
    conversation.broker.set_cursor(0)
    conversation.broker.refusals = 2
    conversation.unload(True)
    conversation.pass_time(1.0)
    conversation.answer_late()
    conversation.pass_time(5.0)


def the_topic_moves_to_a_cluster_with_larger_ids(conversation: Conversation) -> None:
    one_by_one(conversation, 6)
    conversation.acknowledge(3)
    conversation.flush()
    conversation.acknowledge(5)
    conversation.migrate(closes=True, by=10)


def a_reset_before_receipts_time_out(conversation: Conversation) -> None:
    one_by_one(conversation, 4)
    for _ in range(3):
        conversation.acknowledge(0)
    conversation.confirm("lost")
    conversation.broker.set_cursor(0)
    conversation.unload(False)
    conversation.pass_time(5.0)


def an_incomplete_message_begins_before_the_first_delivered_entry(conversation: Conversation) -> None:
    """Its first chunk keeps the cursor back, which is no reset."""
    conversation.broker.chunked = [[0, 5]]
    one_by_one(conversation, 3)
    generation = conversation.consumer.generation
    conversation.acknowledge(12)
    conversation.flush()
    conversation.unload(False)
    conversation.pass_time(1.0)
    assert conversation.consumer.generation == generation
    one_by_one(conversation, 8)
    assert [entry for _, entry in conversation.taken] == [1, 2, 3, 4, 5, 6, 7]


def an_incomplete_message_begins_before_a_redelivery(conversation: Conversation) -> None:
    conversation.broker.chunked = [[0, 5]]
    one_by_one(conversation, 3)
    generation = conversation.consumer.generation
    conversation.acknowledge(12)
    conversation.flush()
    conversation.redeliver()
    conversation.pass_time(1.0)
    assert conversation.consumer.generation == generation + 1
    one_by_one(conversation, 8)
    assert [entry for _, entry in conversation.taken] == [3, 4, 5, 6, 7]


def a_reset_while_an_acknowledgement_stops_before_a_chunk(conversation: Conversation) -> None:
    one_by_one(conversation, 2)
    conversation.acknowledge(12)
    conversation.flush()
    conversation.broker.chunked = [[3, 5]]
    one_by_one(conversation, 5)
    conversation.reset_from_outside(back=1, slow=False, waits=False, index=12)


def more_than_ten_messages_are_interleaved(conversation: Conversation) -> None:
    """Each of them begins before the first one is complete."""
    conversation.publish(16, big=False)
    conversation.broker.chunked = [[entry, entry + 12] for entry in range(12)]
    one_by_one(conversation, 24)
    assert [entry for _, entry in conversation.taken] == list(range(12, 24))


def late_chunks_without_the_first_one(conversation: Conversation) -> None:
    """Each is delivered at once, and delays no acknowledgement."""
    conversation.broker.chunked = [[-1, 1, 4, 99]]
    one_by_one(conversation, 6)
    assert [entry for _, entry in conversation.taken] == [0, 1, 2, 3, 4, 5]
    conversation.acknowledge(12)
    conversation.flush()
    assert conversation.broker.cursor == 5


def a_restart_behind_a_dangling_chunk(conversation: Conversation) -> None:
    conversation.broker.chunked = [[1, 99]]
    one_by_one(conversation, 6)
    assert [entry for _, entry in conversation.taken] == [0, 2, 3, 4, 5]
    conversation.acknowledge(3)
    conversation.flush()
    assert conversation.broker.cursor == 0
    conversation.restart()
    one_by_one(conversation, 8)
    assert [entry for _, entry in conversation.taken] == [5, 6, 7]


def a_topic_with_a_chunked_message_moves_to_a_cluster_with_larger_ids(conversation: Conversation) -> None:
    """There, the chunks come once more, and are no repetitions by their producer."""
    conversation.broker.chunked = [[0, 1]]
    one_by_one(conversation, 3)
    conversation.migrate(closes=True, by=10)
    conversation.pass_time(1.0)
    one_by_one(conversation, 3)
    assert [entry for _, entry in conversation.taken] == [1, 2]


KEPT = ("exclusive", "failover")
BATCHES = ("batches", "batches by index")
CONVERSATIONS: list[tuple[str, int, Steps]] = [
    *((kind, 0, redelivery_comes_behind_what_was_being_read) for kind in KEPT),
    ("failover", 0, another_consumer_is_active_while_all_credit_is_used),
    ("latest reader", 0, entries_come_while_a_reader_at_the_end_is_away),
    *((kind, 3, an_operator_sets_the_cursor_back) for kind in KEPT),
    *((kind, 3, an_operator_sets_the_cursor_back_slowly) for kind in KEPT),
    *(
        (kind, 0, steps)
        for kind in (*KEPT, "single acks")
        for steps in (a_slow_reset_and_a_redelivery, a_slow_reset_and_an_outage)
    ),
    ("failover", 1, the_connection_ends_after_another_took_over_and_was_set_back),
    *((kind, 3, the_topic_moves_to_a_cluster_with_smaller_ids) for kind in (*KEPT, "earliest reader", "latest reader")),
    *((kind, 3, the_old_cluster_ends_before_it_has_closed_the_consumer) for kind in KEPT),
    ("non-persistent", 0, entries_without_ids_of_their_own),
    ("single acks", 0, single_acknowledgements_behind_an_open_entry),
    ("single acks", 0, single_acknowledgements_of_an_earlier_run_are_lost),
    *(
        (kind, 2, steps)
        for kind in (*KEPT, "batches", "single acks")
        for steps in (a_reset_before_the_close_for_a_redelivery_is_confirmed, a_reset_before_the_consumer_subscribes_again)
    ),
    ("exclusive", 2, a_reset_after_the_consumer_has_left_a_stalled_registration),
    ("single acks", 0, a_reset_while_single_acknowledgements_wait),
    *((f"single acks of {kind}", 0, a_reset_while_a_batch_is_partly_acknowledged) for kind in BATCHES),
    *(
        (kind, 0, steps)
        for kind in (*KEPT, *BATCHES, "single acks", "single acks of batches")
        for steps in (
            a_reset_while_the_consumer_is_cut_off,
            a_reset_while_the_consumer_is_cut_off_and_an_acknowledgement_waits,
        )
    ),
    *((kind, 4, a_reset_into_an_earlier_ledger_while_the_consumer_is_cut_off) for kind in KEPT),
    ("single acks", 0, a_reset_while_the_consumer_is_cut_off_and_a_single_acknowledgement_waits),
    ("single acks", 0, an_overflow_while_single_acknowledgements_wait),
    *((kind, 4, a_reset_into_an_earlier_ledger) for kind in KEPT),
    *((kind, 4, a_reset_into_an_earlier_ledger_after_a_partial_acknowledgement) for kind in BATCHES),
    ("exclusive", 0, a_negative_acknowledgement_while_the_subscription_is_deleted),
    ("single acks", 0, acknowledgements_while_a_seek_is_repeated),
    ("exclusive", 0, single_acknowledgements_precede_a_cumulative_one),
    ("failover", 0, another_consumer_acknowledges_after_a_reset),
    *((kind, 0, the_broker_does_not_report_the_cursor) for kind in KEPT),
    *((kind, 0, two_resets_and_failed_attempts_to_subscribe) for kind in KEPT),
    *((kind, 0, the_topic_moves_to_a_cluster_with_larger_ids) for kind in KEPT),
    *((kind, 0, a_reset_before_receipts_time_out) for kind in ("single acks", "single acks of batches")),
    *((kind, 0, an_incomplete_message_begins_before_the_first_delivered_entry) for kind in KEPT),
    *((kind, 0, an_incomplete_message_begins_before_a_redelivery) for kind in KEPT),
    *((kind, 0, a_reset_while_an_acknowledgement_stops_before_a_chunk) for kind in KEPT),
    *(
        (kind, 0, steps)
        for kind in KEPT
        for steps in (
            more_than_ten_messages_are_interleaved,
            late_chunks_without_the_first_one,
            a_restart_behind_a_dangling_chunk,
            a_topic_with_a_chunked_message_moves_to_a_cluster_with_larger_ids,
        )
    ),
]


@pytest.mark.parametrize(("kind", "consumed", "steps"), CONVERSATIONS, ids=[f"{c[2].__name__}, {c[0]}" for c in CONVERSATIONS])
def test_a_conversation(kind: str, consumed: int, steps: Steps) -> None:
    """The broker model, `take` and `teardown` make the assertions."""
    conversation = Conversation()
    try:
        conversation.make(kind, consumed)
        steps(conversation)
        conversation.it_lives()
    finally:
        conversation.teardown()
