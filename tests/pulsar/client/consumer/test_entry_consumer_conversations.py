"""Fixed conversations of `consumer/test_entry_consumer_model.py`: each showed a fault that random ones find only sometimes."""

from collections.abc import Callable

import pytest

from tests.pulsar.client.consumer.test_entry_consumer_model import ConsumerConversation as Conversation

Steps = Callable[[Conversation], None]


def redelivery_comes_behind_what_was_being_read(talk: Conversation) -> None:
    talk.deliver(4)
    talk.take(4)
    talk.acknowledge(1)
    talk.redeliver()
    talk.deliver(12)
    talk.take(12)


def another_consumer_is_active_while_all_credit_is_used(talk: Conversation) -> None:
    talk.lose_activity(acks=False, unread=12, back=0, then="active")


def entries_come_while_a_reader_at_the_end_is_away(talk: Conversation) -> None:
    talk.broker.unreachable = {"broker"}
    talk.lose_connection(acks=False, forgets=0, slow=False)
    talk.publish(2, big=False)
    talk.broker.unreachable = set()
    talk.flush()


def an_operator_sets_the_cursor_back(talk: Conversation) -> None:
    talk.reset_from_outside(back=3, slow=False)


def an_operator_sets_the_cursor_back_slowly(talk: Conversation) -> None:
    talk.reset_from_outside(back=3, slow=True)
    talk.answer_late()


def the_connection_ends_after_another_took_over_and_was_set_back(talk: Conversation) -> None:
    talk.lose_activity(acks=True, unread=0, back=3, then="lost")


def the_topic_moves_to_a_cluster_with_smaller_ids(talk: Conversation) -> None:
    talk.deliver(2)
    talk.take(2)
    if not talk.broker.reads:
        talk.acknowledge(1)
    talk.migrate(closes=True)


def the_old_cluster_ends_before_it_has_closed_the_consumer(talk: Conversation) -> None:
    talk.migrate(closes=False)


def entries_without_ids_of_their_own(talk: Conversation) -> None:
    talk.consume(3, acknowledges=False)
    talk.lose_connection(acks=False, forgets=0, slow=False)
    talk.consume(1, acknowledges=False)


def single_acknowledgements_behind_an_open_entry(talk: Conversation) -> None:
    talk.deliver(4)
    talk.take(4)
    talk.acknowledge(2)
    talk.flush()
    talk.lose_connection(acks=False, forgets=0, slow=False)


def single_acknowledgements_of_an_earlier_run_are_lost(talk: Conversation) -> None:
    for _ in range(2):
        talk.deliver(1)
        talk.take(1)
        talk.acknowledge(0)
    talk.flush()
    talk.redeliver()
    talk.deliver(2)
    talk.take(2)
    talk.lose_connection(acks=False, forgets=2, slow=False)


KEPT = ("exclusive", "failover")
CONVERSATIONS: list[tuple[str, int, Steps]] = [
    *((kind, 0, redelivery_comes_behind_what_was_being_read) for kind in KEPT),
    ("failover", 0, another_consumer_is_active_while_all_credit_is_used),
    ("latest reader", 0, entries_come_while_a_reader_at_the_end_is_away),
    *((kind, 3, an_operator_sets_the_cursor_back) for kind in KEPT),
    *((kind, 3, an_operator_sets_the_cursor_back_slowly) for kind in KEPT),
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
    talk = Conversation()
    try:
        talk.make(kind, consumed)
        steps(talk)
        talk.it_lives()
    finally:
        talk.teardown()
