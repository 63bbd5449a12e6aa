"""Figures that are computed from a run: rates and costs, medians, when to ask again, quantiles of sums."""

import pytest

from tests.bench.bridge import LEAST_POLL_S, POLL_S, pause_s
from tests.bench.figures import Figures, Reading, median
from tests.bench.latency import Times, added, quantile, summed


def test_figures_are_the_difference_of_two_readings() -> None:
    begin, end = Reading(10.0, 20_000, 100, 3.0, 1.0), Reading(12.0, 100_000, 2_600, 4.2, 1.4)
    expected = Figures(rate=40_000, cpu=pytest.approx(20.0), rss_mb=90.5, batch=32, kernel=pytest.approx(5.0))
    assert end.figures(begin, 90.5) == expected


def test_readings_with_no_messages_between_them_are_refused() -> None:
    now = Reading(10.0, 20_000, 100, 3.0, 1.0)
    with pytest.raises(ValueError, match="too few messages"):
        now.figures(now, 90.5)


def test_each_figure_has_its_own_median() -> None:
    assert median([Figures(1, 30, 5), Figures(3, 10, 4), Figures(2, 20, 9)]) == Figures(2, 20, 5)


def test_ratios_divide_the_first_figures_by_the_second() -> None:
    assert Figures(30, 10, 90).beside(Figures(20, 40, 360)) == Figures(1.5, 0.25, 0.25)


def test_the_gateway_is_polled_more_often_towards_the_end() -> None:
    begin = Reading(0.0, 0, 0, 0.0, 0.0)
    assert pause_s(begin, Reading(1.0, 0, 0, 0.0, 0.0), 1000) == POLL_S
    assert pause_s(begin, Reading(1.0, 100, 0, 0.0, 0.0), 1000) == POLL_S
    assert pause_s(begin, Reading(1.0, 900, 0, 0.0, 0.0), 1000) == pytest.approx(0.1 / 1.8)
    assert pause_s(begin, Reading(1.0, 999, 0, 0.0, 0.0), 1000) == LEAST_POLL_S


def test_a_quantile_is_a_value_of_the_sorted_list() -> None:
    assert quantile([1, 2, 3, 4], 0.5) == 3
    assert quantile([1, 2, 3, 4], 0.0) == 1
    assert quantile([1, 2, 3, 4], 1.0) == 4


def test_the_distribution_of_a_sum_contains_all_pairs() -> None:
    assert summed([1, 2], [10, 30]) == [11, 12, 31, 32]


def test_the_added_latency_is_zero_if_a_bridge_takes_no_time() -> None:
    source, target = Times(0, [100, 200]), Times(0, [10, 30])
    through = Times(0, [110, 130, 210, 230])
    assert added(through, source, target, 0.5) == 0
    assert added(Times(0, [value + 7 for value in through.quantiles]), source, target, 0.99) == 7
