"""The judge finds missing messages, reordered messages, and repetitions that are not rewinds."""

from __future__ import annotations

from collections.abc import Iterable

from tests.chaos.judge import Stored, Verdict, judge
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
