"""The judge finds missing messages, reordered messages, and repetitions that are not rewinds."""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.judge import Stored, Verdict, judge, numbers_by_partition
from tests.chaos.layout import KEY, KEYS, MODULO
from tests.kit.oracle import body


def of(numbers: Iterable[int], writer: str = "a", partition: int = 0) -> list[Stored]:
    return [Stored(partition, writer, body(partition, number, 40)) for number in numbers]


def found(verdict: Verdict) -> tuple[int, int, int, int, int]:
    return verdict.missing, verdict.out_of_order, verdict.stale, verdict.repeated, verdict.damaged


def test_all_messages_once_and_in_order_are_correct() -> None:
    verdict = judge([10, 5], [*of(range(10)), *of(range(5), partition=1)])
    assert found(verdict) == (0, 0, 0, 0, 0)
    assert not verdict.problems(allows_stale=False)


def test_a_rewind_is_correct() -> None:
    verdict = judge([10], of([0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]))
    assert found(verdict) == (0, 0, 0, 11, 0)
    assert not verdict.problems(allows_stale=False)


def test_missing_messages_put_no_others_out_of_order() -> None:
    verdict = judge([10], of([0, 1, 2, 6, 7, 8, 9]))
    assert found(verdict) == (3, 0, 0, 0, 0)
    assert "3 missing, 3 to 5" in verdict.problems(allows_stale=True)[0]


def test_a_number_that_first_occurs_after_a_larger_one_is_out_of_order() -> None:
    verdict = judge([6], of([0, 1, 4, 2, 3, 5]))
    assert (verdict.missing, verdict.out_of_order) == (0, 2)
    assert verdict.problems(allows_stale=True)


def test_a_repetition_that_skips_messages_of_the_same_writer_is_stale() -> None:
    verdict = judge([8], of([0, 1, 2, 3, 4, 5, 1, 2, 6, 7]))
    assert found(verdict) == (0, 0, 1, 2, 0)
    assert verdict.problems(allows_stale=False)
    assert not verdict.problems(allows_stale=True)


def test_an_instance_may_skip_messages_that_another_instance_stored() -> None:
    verdict = judge([9], [*of([0, 1, 2], "a"), *of([1, 2, 3, 4, 5], "b"), *of([6, 7, 8], "a")])
    assert found(verdict) == (0, 0, 0, 2, 0)
    assert not verdict.problems(allows_stale=False)


def test_damaged_and_misplaced_messages_are_counted() -> None:
    cut = Stored(0, "a", body(0, 1, 40)[:-1] + b"?")
    verdict = judge([3, 1], [*of([0]), cut, *of([2]), *of([0], partition=1), Stored(1, "a", body(0, 1, 40)), Stored(1, "a", b"")])
    assert (verdict.missing, verdict.damaged) == (1, 3)


def test_messages_that_a_killed_broker_lost_are_counted_and_not_missing() -> None:
    source = of([0, 1, 2, 6, 7, 8, 9])
    held = numbers_by_partition([10], source)
    verdict = judge([10], of([0, 1, 2, 3, 6, 7, 8, 9]), held)
    assert (found(verdict), verdict.lost) == ((0, 0, 0, 0, 0), 3)
    assert not verdict.problems(allows_stale=False)


def test_a_message_that_the_source_still_has_is_missing_also_after_a_kill() -> None:
    verdict = judge([10], of([0, 1, 2, 8, 9]), numbers_by_partition([10], of([0, 1, 2, 6, 7, 8, 9])))
    assert (verdict.missing, verdict.lost) == (2, 3)
    assert "2 missing, 6 to 7" in verdict.problems(allows_stale=True)[0]


def test_a_rewind_need_not_repeat_messages_that_the_source_lost() -> None:
    held = numbers_by_partition([8], of([0, 1, 2, 5, 6, 7]))
    verdict = judge([8], of([0, 1, 2, 3, 4, 1, 2, 5, 6, 7]), held)
    assert (verdict.stale, verdict.repeated, verdict.lost) == (0, 2, 2)
    assert judge([8], of([0, 1, 2, 3, 4, 1, 2, 5, 6, 7])).stale == 1


def test_a_source_with_repeated_and_damaged_messages_has_each_number_once() -> None:
    assert numbers_by_partition([4, 2], [*of([0, 1, 0, 1, 7]), Stored(1, "a", b""), *of([1], partition=1)]) == [{0, 1}, {1}]


def test_by_modulo_a_source_partition_is_in_one_target_partition_whichever_that_is() -> None:
    copies = [Stored(7, "a", body(0, number, 40)) for number in range(3)]
    assert found(judge([3], copies, by=MODULO)) == (0, 0, 0, 0, 0)
    moved = judge([3], [*copies[:2], Stored(6, "a", body(0, 2, 40))], by=MODULO)
    assert (moved.missing, moved.damaged) == (1, 1)


def test_by_key_only_messages_of_one_key_keep_their_order() -> None:
    numbers = [4, 0, 1, 5, 2, 3]
    verdict = judge([6], [Stored(number % KEYS, "a", body(0, number, 40)) for number in numbers], by=KEY)
    assert (verdict.out_of_order, verdict.missing, verdict.damaged) == (1, 0, 0)
    assert "0 came after 4" in verdict.problems(allows_stale=True)[0]


def test_what_an_operator_deleted_need_not_arrive_and_its_copies_are_not_judged() -> None:
    verdict = judge([10], of([0, 1, 5, 6, 2, 7, 8, 9]), first=[5])
    assert (found(verdict), verdict.lost, verdict.arrived) == ((0, 0, 0, 0, 0), 5, 8)
    assert judge([10], of([0, 1, 6, 7, 8, 9]), first=[5]).missing == 1
