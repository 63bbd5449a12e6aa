"""Ranges of offsets in tables."""

import pytest

from mqbridge.cli.output.ranges import ranges_text


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([], ""),
        ([(5, 6)], "5"),
        ([(0, 3), (7, 8)], "0-2, 7"),
        ([(number, number + 2) for number in range(0, 70, 10)], "0-1, 10-11, 20-21, 30-31, 40-41 and 2 more ranges"),
    ],
)
def test_the_first_ranges_are_shown(ranges: list[tuple[int, int]], text: str) -> None:
    assert ranges_text(ranges) == text
