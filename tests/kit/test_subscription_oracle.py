"""The oracle of subscriptions finds what is lost, and what is delivered again too early."""

from __future__ import annotations

from tests.kit.subscription_oracle import Confirmed, Seen, SubscriptionOracle


def test_a_message_that_nobody_got_is_lost() -> None:
    verdict = SubscriptionOracle([1, 2]).judge([Seen(10, 1, 0, 0)], [])
    assert verdict.lost == [2]
    assert not verdict.twice


def test_a_message_behind_the_oldest_unacknowledged_one_may_come_again() -> None:
    oracle = SubscriptionOracle([0, 1, 2])
    oracle.cause(50)
    seen = [Seen(10 + each, each, 0, each) for each in range(3)] + [Seen(60, 1, 0, 1), Seen(61, 2, 0, 2)]
    verdict = oracle.judge(seen, [Confirmed(20, 0, 0), Confirmed(21, 0, 2), Confirmed(70, 0, 1)])
    assert (verdict.twice, verdict.confirmed_twice, verdict.too_early) == (2, 1, 0)
    assert verdict.spans == [2]


def test_a_message_before_the_oldest_unacknowledged_one_must_not_come_again() -> None:
    oracle = SubscriptionOracle([0, 1])
    oracle.cause(50)
    seen = [Seen(10, 0, 3, 0), Seen(11, 1, 3, 1), Seen(60, 0, 3, 0)]
    verdict = oracle.judge(seen, [Confirmed(20, 3, 0), Confirmed(70, 3, 1)])
    assert (verdict.twice, verdict.too_early, verdict.behind) == (1, 1, 1)


def test_a_message_that_comes_again_without_a_cause_is_reported() -> None:
    verdict = SubscriptionOracle([0]).judge([Seen(10, 0, 0, 0), Seen(20, 0, 0, 0)], [])
    assert verdict.too_early == 1
    assert "without a cause" in verdict.examples[0]


def test_an_acknowledgement_after_the_cause_does_not_count() -> None:
    oracle = SubscriptionOracle([0])
    oracle.cause(50)
    verdict = oracle.judge([Seen(10, 0, 0, 0), Seen(60, 0, 0, 0)], [Confirmed(55, 0, 0)])
    assert (verdict.twice, verdict.confirmed_twice, verdict.too_early) == (1, 0, 0)


def test_what_was_acknowledged_just_before_a_kill_may_come_again() -> None:
    for lag_s, too_early in ((0.0, 1), (1.0, 0)):
        oracle = SubscriptionOracle([0])
        oracle.cause(50, lag_s)
        verdict = oracle.judge([Seen(10, 0, 0, 0), Seen(60, 0, 0, 0)], [Confirmed(45, 0, 0)])
        assert verdict.too_early == too_early


def test_an_acknowledgement_whose_answer_was_lost_counts_from_the_next_cause_on() -> None:
    oracle = SubscriptionOracle([0, 1])
    oracle.cause(50)
    oracle.cause(70)
    seen = [Seen(10, 0, 0, 0), Seen(11, 1, 0, 1), Seen(80, 1, 0, 1)]
    verdict = oracle.judge(seen, [Confirmed(20, 0, 1)])
    assert verdict.spans == [0, 0]
    assert verdict.too_early == 1
