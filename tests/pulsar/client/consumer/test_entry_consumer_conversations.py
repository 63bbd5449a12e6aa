"""Fixed conversations of `test_entry_consumer_model.py`: each showed a fault that random ones find only sometimes."""

from collections.abc import Callable

import pytest

from tests.pulsar.client.consumer.test_entry_consumer_model import ConsumerConversation as Conversation

Steps = Callable[[Conversation], None]


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


KEPT = ("exclusive", "failover")
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
