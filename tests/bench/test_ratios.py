"""The range of the CPU ratios is the range in the table, and the README states the one of the page."""

import re
from pathlib import Path

import pytest

from tests.bench import ratios
from tests.bench.__main__ import PAGE
from tests.bench.bridge import GATEWAY, JAVA
from tests.bench.bridge_page import DIRECTIONS, Row, cases, moved_messages
from tests.bench.figures import Figures, Reading
from tests.bench.pages import chapters

TITLE = "## CPU time relative to Java clients"
RATIOS = (0.25, 0.31, 0.6, 0.4, 0.184, 0.3, 0.3, 0.3, 0.3)


def rows(count: int = len(DIRECTIONS)) -> list[Row]:
    """Return the rows of `count` directions, whose CPU ratios are RATIOS."""
    chosen = cases(DIRECTIONS[:count], ["ordinary"], raised=False, rules=False)
    java = Figures(rate=1, cpu=20, rss_mb=300)
    return [(case, {GATEWAY: Figures(2, 20 * ratio, 90), JAVA: java}) for case, ratio in zip(chosen, RATIOS[:count], strict=True)]


def test_the_first_fifth_is_in_no_figure() -> None:
    """The gateway is measured from a reading to another, so what was spent before the first does not count."""
    total = 400_000
    fifth, end = Reading(5.0, 80_000, 0, 9.0, 1.0), Reading(9.0, total, 0, 10.6, 1.32)
    assert end.figures(fifth, 90).cpu == pytest.approx((1.6 + 0.32) / 320_000 * 1e6)


def test_fewer_messages_are_moved_into_tubemq() -> None:
    assert [moved_messages(ratios.MESSAGES, system, ratios.MESSAGES_INTO) for system in ("pulsar", "rocketmq", "tubemq")] == [
        400_000,
        400_000,
        200_000,
    ]
    assert moved_messages(50_000, "tubemq", ratios.MESSAGES_INTO) == 50_000


def test_the_chapter_states_the_range_of_its_table() -> None:
    text = ratios.chapter(rows(), rounds=3)
    [(lowest, highest)] = ratios.RANGE.findall(text)
    shown = [line.split(" | ")[-2] for line in text.splitlines() if re.match(r"\| \w+ to \w+ \|", line)]
    assert (lowest, highest) == (min(shown), max(shown)) == ("0.18", "0.60")
    assert len(shown) == 9


def test_the_readme_is_renewed_only_by_all_directions(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(ratios.README.read_text())
    ratios.renew_readme(rows(8), readme)
    assert readme.read_text() == ratios.README.read_text()
    ratios.renew_readme(rows(), readme)
    assert ratios.RANGE.findall(readme.read_text()) == [("0.18", "0.60")]


def test_the_readme_and_the_page_state_the_same_range() -> None:
    chapter = chapters(PAGE.read_text())[TITLE]
    [stated] = ratios.RANGE.findall(chapter)
    assert ratios.RANGE.findall(ratios.README.read_text()) == [stated]
