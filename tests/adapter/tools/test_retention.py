"""Warnings about messages that are deleted by their age."""

from mqbridge.adapter.tools.retention import group_warnings, target_warnings
from mqbridge.adapter.topics import Bounds

BOUNDS = {name: Bounds((100,), (300,)) for name in ("0", "1", "2", "3")}
LATE = dict.fromkeys(BOUNDS, (200,))


def warnings(committed: dict[str, int]) -> list[str]:
    return group_warnings("orders", "g", "kept=4h", {name: (offset,) for name, offset in committed.items()}, BOUNDS, LATE)


def test_a_group_that_keeps_up_is_not_warned_about() -> None:
    assert warnings({}) == []
    assert warnings({"0": 200, "1": 250, "2": 300}) == []


def test_a_group_is_warned_about_before_it_loses_messages() -> None:
    (text,) = warnings({"0": 100, "1": 199, "2": 200})
    assert text.startswith("group 'g' is late in orders: ")
    assert "(kept=4h; partitions 0, 1)" in text


def test_a_group_that_has_lost_messages_is_warned_about() -> None:
    lost, late = warnings({"0": 99, "1": 150, "2": 300})
    assert "were deleted (kept=4h; partition 0)" in lost
    assert "(kept=4h; partition 1)" in late


def test_data_that_may_have_had_messages_of_other_partitions_only_is_not_called_lost() -> None:
    (text,) = group_warnings("t", "g", "k", {"0": (99,)}, BOUNDS, LATE, is_contiguous=False)
    assert "may have had messages of these partitions (k; partition 0): the group may find a gap" in text


def test_an_unknown_partition_is_ignored() -> None:
    assert warnings({"9": 0}) == []


def test_a_warning_names_five_partitions_and_counts_the_others() -> None:
    bounds = {str(number): Bounds((100,), (300,)) for number in range(9)}
    (text,) = group_warnings("t", "g", "k", dict.fromkeys(bounds, (120,)), bounds, dict.fromkeys(bounds, (200,)))
    assert "partitions 0, 1, 2, 3, 4 and 4 more" in text


def test_a_target_that_keeps_messages_for_less_than_a_day_is_warned_about() -> None:
    assert target_warnings("t", "kept=24h", 24 * 3600) == target_warnings("t", "kept=for ever", None) == []
    (text,) = target_warnings("t", "kept=90m", 90 * 60)
    assert text.startswith("t keeps messages for only 1.5 hours (kept=90m)")
