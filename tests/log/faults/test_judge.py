"""The judge finds every kind of fault in logs that are wrong on purpose, and none in a log that is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.log.faults.history import History, history_of
from tests.log.faults.inspection import INSPECTOR, Observation, Reading
from tests.log.faults.judge import Rules, Verdict, judge
from tests.log.faults.messages import MessageId

STRICT, LENIENT = Rules(keeps_all=True), Rules()
SIZE = 100
KEY = (0, 0)


def id_of(number: int, partition: int = 0, writer: int = 1) -> MessageId:
    return MessageId(0, partition, writer, number)


def history(count: int = 6, *more: list[Any]) -> History:
    """Return the history of messages that were acknowledged one by one, at the times 10, 20 and so on."""
    records: list[list[Any]] = []
    for number in range(count):
        records.append(["send", number * 10, [id_of(number)], [SIZE]])
        records.append(["ack", number * 10, [id_of(number)], [number]])
    return history_of([*records, *more])


def observation(ids: Mapping[int, MessageId | None], **attributes: Any) -> Observation:
    """Return what an inspection sees of a log that has these messages, by offset."""
    seen = Observation(topics=["topic-0"], **attributes)
    seen.bounds[KEY] = 0, max(ids, default=-1) + 1
    for readings in seen.readings.values():
        readings[KEY] = Reading({offset: (id_, SIZE) for offset, id_ in ids.items()})
    return seen


def whole(count: int = 6) -> dict[int, MessageId | None]:
    return {number: id_of(number) for number in range(count)}


def problems(verdict: Verdict) -> set[str]:
    return set(verdict.problems)


@pytest.mark.parametrize("rules", [STRICT, LENIENT, Rules(keeps_prefix=True)])
def test_a_whole_log_is_right(rules: Rules) -> None:
    verdict = judge(history(), observation(whole()), rules)
    assert not verdict.problems
    assert (verdict.acknowledged, verdict.lost_said, verdict.silent) == (6, 0, 0)


def test_a_message_that_was_sent_and_not_acknowledged_may_be_there_once() -> None:
    sent = history(6, ["send", 70, [id_of(6)], [SIZE]])
    assert not judge(sent, observation(whole(6)), STRICT).problems
    assert not judge(sent, observation(whole(7)), STRICT).problems
    assert "stored twice" in problems(judge(sent, observation(whole(7) | {7: id_of(6)}), STRICT))


def test_a_lost_message_of_which_nothing_is_said_is_silent() -> None:
    lost = whole()
    del lost[3]
    verdict = judge(history(), observation(lost), LENIENT)
    assert (problems(verdict), verdict.silent) == ({"silent loss"}, 1)


@pytest.mark.parametrize("end", [4, None])
def test_a_gap_says_that_a_message_is_lost(end: int | None) -> None:
    lost = whole()
    del lost[3]
    seen = observation(lost)
    for readings in seen.readings.values():
        readings[KEY].gaps.append((3, end, "damaged"))
    verdict = judge(history(), seen, LENIENT)
    assert (problems(verdict), verdict.lost_said, verdict.silent) == (set(), 1, 0)
    assert "said to be lost" in problems(judge(history(), seen, STRICT))


def test_both_ways_of_reading_must_say_it() -> None:
    lost = whole()
    del lost[3]
    seen = observation(lost)
    seen.readings["read"][KEY].gaps.append((3, 4, "damaged"))
    assert problems(judge(history(), seen, LENIENT)) == {"silent loss"}


def test_a_gap_elsewhere_says_nothing() -> None:
    lost = whole()
    del lost[3]
    seen = observation(lost)
    for readings in seen.readings.values():
        readings[KEY].gaps.append((1, 3, "damaged"))
    assert problems(judge(history(), seen, LENIENT)) == {"silent loss"}


def test_an_error_of_the_whole_file_or_a_log_record_at_its_opening_says_it() -> None:
    for seen in (Observation(error="ClusterError: damaged"), observation({}, opening=["ERROR: the file has lost messages"])):
        verdict = judge(history(), seen, LENIENT)
        assert (problems(verdict), verdict.lost_said) == (set(), 6)


def test_denying_that_a_topic_exists_is_silent() -> None:
    denied = Observation(topic_errors={0: "topic 'topic-0' does not exist in log 'log'; create it"})
    assert judge(history(), denied, LENIENT).silent == 6
    damaged = Observation(topic_errors={0: "the log is damaged"})
    assert judge(history(), damaged, LENIENT).lost_said == 6


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({2: id_of(3), 3: id_of(2)}, "wrong message"),
        ({2: id_of(2, partition=1)}, "wrong message"),
        ({2: None}, "damaged payload"),
        ({6: id_of(2)}, "stored twice"),
        ({6: id_of(99)}, "damaged payload"),
    ],
)
def test_swapped_foreign_damaged_and_repeated_messages(wrong: dict[int, MessageId | None], problem: str) -> None:
    assert problem in problems(judge(history(), observation(whole() | wrong), LENIENT))


def test_a_payload_of_another_size_is_damaged() -> None:
    seen = observation(whole())
    seen.readings["lane"][KEY].messages[2] = id_of(2), SIZE - 1
    assert problems(judge(history(), seen, LENIENT)) == {"damaged payload"}


def test_messages_of_a_writer_out_of_order() -> None:
    sent = history(2, ["send", 70, [id_of(2)], [SIZE]], ["send", 80, [id_of(3)], [SIZE]])
    verdict = judge(sent, observation({0: id_of(0), 1: id_of(1), 2: id_of(3), 3: id_of(2)}), LENIENT)
    assert problems(verdict) == {"out of order"}


def test_an_offset_that_was_acknowledged_twice() -> None:
    twice = history(3, ["send", 70, [id_of(9)], [SIZE]], ["ack", 70, [id_of(9)], [2]])
    verdict = judge(twice, observation(whole(3)), LENIENT)
    assert problems(verdict) == {"offset given twice", "silent loss"}
    assert not judge(twice, observation(whole(2) | {2: id_of(9)}), Rules(forgives_before_ns=60)).problems


def test_an_offset_that_is_given_again_after_a_silent_loss() -> None:
    seen = observation(whole(3), appended={KEY: [(id_of(0, writer=INSPECTOR), 3)]})
    assert "offset given twice" in problems(judge(history(), seen, LENIENT))
    for readings in seen.readings.values():
        readings[KEY].gaps.append((3, 6, "the file has lost its end"))
    verdict = judge(history(), seen, LENIENT)
    assert (problems(verdict), verdict.notes["offsets given again after a loss"]) == (set(), 1)


def test_only_the_newest_messages_may_be_lost_with_a_prefix_kept() -> None:
    kept = whole(4)
    verdict = judge(history(), observation(kept), Rules(keeps_prefix=True))
    assert (problems(verdict), verdict.lost_allowed) == (set(), 2)
    del kept[1]
    assert problems(judge(history(), observation(kept), Rules(keeps_prefix=True))) == {"hole"}


def test_messages_that_the_fault_took_away_may_be_lost() -> None:
    lost = whole()
    del lost[1], lost[5]
    verdict = judge(history(), observation(lost), Rules(forgives_before_ns=20))
    assert (verdict.lost_allowed, verdict.silent) == (1, 1)


def test_the_retention_may_drop_the_oldest_messages_beyond_its_size_only() -> None:
    dropped = {number: id_of(number) for number in range(2, 6)}
    assert not judge(history(), observation(dropped), Rules(keeps_all=True, retention_bytes=900)).problems
    assert judge(history(), observation(dropped), Rules(keeps_all=True, retention_bytes=100_000)).silent == 2


def test_positions_ahead_of_what_the_group_acknowledged() -> None:
    group = ["acknowledge", 70, "group", 0, 0, 3]
    assert problems(judge(history(6, group), observation(whole(), committed={("group", 0, 0): 4}), LENIENT)) == {"position ahead"}
    assert not judge(history(6, group), observation(whole(), committed={("group", 0, 0): 3}), LENIENT).problems
    said = observation(whole(), committed={("group", 0, 0): 4}, group_errors={"group": "offset 4 is damaged"})
    assert not judge(history(6, group), said, LENIENT).problems


def test_positions_that_went_back() -> None:
    records = [["acknowledge", 70, "group", 0, 0, 3], ["committed", 90, 80, "group", 0, 0, 3]]
    records.append(["delivered", 60, "group", 0, 0, 0, [[1, 0], [1, 1], [1, 2]]])
    for committed in ({("group", 0, 0): 2}, {}):
        assert problems(judge(history(6, *records), observation(whole(), committed=committed), STRICT)) == {"position went back"}
        verdict = judge(history(6, *records), observation(whole(), committed=committed), LENIENT)
        assert (problems(verdict), verdict.notes["positions back, silent"]) == (set(), 1)


def test_a_position_that_one_process_saw_after_another_saw_a_higher_one() -> None:
    records = [["acknowledge", 70, "group", 0, 0, 3], ["committed", 90, 80, "group", 0, 0, 3]]
    seen = observation(whole(), committed={("group", 0, 0): 3})
    after, meanwhile = ["committed", 110, 100, "group", 0, 0, 2], ["committed", 110, 85, "group", 0, 0, 2]
    assert "position went back" in problems(judge(history(6, *records, after), seen, LENIENT))
    assert not judge(history(6, *records, meanwhile), seen, LENIENT).problems


def test_messages_that_the_group_skipped() -> None:
    records = [["acknowledge", 70, "group", 0, 0, 4], ["delivered", 60, "group", 0, 0, 0, [[1, 0], [1, 1]]]]
    seen = observation(whole(), committed={("group", 0, 0): 4})
    assert problems(judge(history(6, *records), seen, STRICT)) == {"skipped by the group"}


def test_a_group_that_received_another_message() -> None:
    record = ["delivered", 60, "group", 0, 0, 2, [[1, 3]]]
    assert problems(judge(history(6, record), observation(whole()), LENIENT)) == {"wrong message"}


def test_a_log_that_does_not_open_or_append_after_a_fault_without_damage() -> None:
    assert "does not open" in problems(judge(history(), Observation(error="ClusterError: locked"), STRICT))
    refusing = observation(whole(), append_errors={KEY: "the disk is full"})
    assert problems(judge(history(), refusing, STRICT)) == {"does not append"}
    assert not judge(history(), refusing, LENIENT).problems


def test_other_exceptions_and_hangs() -> None:
    seen = observation(whole(), problems=["hang: reading a partition did not end"])
    assert problems(judge(history(6, ["problem", 70, "exception outside the error tree: TypeError"]), seen, LENIENT)) == {
        "hang",
        "exception outside the error tree",
    }


def test_intact_messages_that_are_not_delivered() -> None:
    seen = observation({number: id_of(number) for number in (0, 1)})
    for readings in seen.readings.values():
        readings[KEY].gaps.append((2, None, "damaged"))
    touched = Rules(touched={id_of(2)})
    assert (judge(history(), seen, touched).intact, judge(history(), seen, touched).problems) == (3, {})
    one_row = Rules(touched={id_of(2)}, damages_one_row=True)
    assert problems(judge(history(), seen, one_row)) == {"intact but not delivered"}
