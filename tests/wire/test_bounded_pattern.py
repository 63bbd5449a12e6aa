"""Regular expressions whose matching takes a bounded time."""

import re

import pytest

from mqbridge.wire import bounded_pattern
from mqbridge.wire.bounded_pattern import Ambiguous, BoundedPattern

REFUSED = [
    r"(a+)+$",
    r"(?:a+)+",
    r"(a*)*b",
    r"(.*)*",
    r"(a|aa)+$",
    r"(a|b|ab)*c",
    r"(a|.)*x",
    r"(\w+\s?)*x",
    r"([^-]+-?)+x",
    r"(.*a){20}",
    r"(x+x+)+y",
    r"(a{1,2}){1,30}b",
    r"(a?){30}a{30}",
    r"((a+)b?)+c",
    r"(a?b?)*c",
    r"(\d+|\w+)*-",
    r"(?P<x>(o+)+)_",
    r"(?i:(ab|AB)*)x",
    r"(?=(a+)+b).*",
    r"(?>(a+)+)b",
    r"(^a|a)*b",
]
"""Expressions with a loop that can read a text in several ways."""

ACCEPTED = [
    (r"", 0),
    (r"orders", 0),
    (r"|".join(f"topic-{number}" for number in range(200)), 0),
    (r"orders_(?P<region>.+)", 1),
    (r"(foo|bar)+", 1),
    (r"(a|b|c)*", 1),
    (r"([a-z]+\.)+com", 1),
    (r"([a-f0-9]{2}:){5}[a-f0-9]{2}", 1),
    (r"(persistent|non-persistent)://([^/]+)/([^/]+)/(.+)", 1),
    (r"[^-]+(-[^-]+)*", 1),
    (r"\w+(\.\w+)*@\w+(\.\w+)*", 1),
    (r"(?:a++)+b", 1),
    (r"(?>a+)+b", 2),
    (r"(?!test).*", 1),
    (r".*orders.*", 2),
    (r".*a.*b.*", 3),
]
"""Expressions without, and their numbers of loops that can read the same text."""


@pytest.mark.parametrize("expression", REFUSED)
def test_a_loop_that_can_read_a_text_in_several_ways_is_refused(expression: str) -> None:
    with pytest.raises(Ambiguous):
        BoundedPattern(expression)


@pytest.mark.parametrize(("expression", "loops"), ACCEPTED)
def test_other_expressions_are_accepted(expression: str, loops: int) -> None:
    pattern = BoundedPattern(expression)
    assert pattern.loops == loops
    assert (pattern.max_chars is None) == (loops < 2)


@pytest.mark.parametrize(("expression", "loops"), ACCEPTED)
def test_the_longest_text_that_is_tried_is_matched(expression: str, loops: int) -> None:
    """The time limit of the tests ends those that take too long."""
    pattern = BoundedPattern(expression)
    for unit in ("a", "-", "a-", "a.", "0", "ab", "orders", "x@", "foo", "a/"):
        length = pattern.max_chars or 10_000
        text = (unit * length)[: length - 1] + "\0"
        assert (pattern.fullmatch(text) is None) == (re.fullmatch(expression, text) is None)


def test_a_text_that_is_too_long_does_not_match_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    pattern = BoundedPattern(".*a.*b.*")
    assert pattern.max_chars is not None
    text = "ab" * pattern.max_chars
    assert pattern.fullmatch(text[: pattern.max_chars]) is not None
    assert not caplog.text
    assert pattern.fullmatch(text) is None
    assert "is not tried on a text of" in caplog.text
    assert len(caplog.text) < 1000


def test_an_expression_that_is_too_large_to_be_looked_at_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_pattern, "MAX_STEPS", 1000)
    with pytest.raises(Ambiguous, match="too large"):
        BoundedPattern("(?:" + "|".join(f"{number}x" for number in range(100)) + ")*")
