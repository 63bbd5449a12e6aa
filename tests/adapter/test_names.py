"""Names that a system refuses are escaped, reversibly."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.adapter.names import ANY_NAME, NameRule

WORD = NameRule(re.compile(r"[a-zA-Z]"), re.compile(r"[a-zA-Z0-9_]"), 64, "use a letter, then letters, digits and underscores")


@given(st.text())
@example("x_2d_")
@example("x_2d_2d_")
@example("xx_2d_")
@example("x_-2d_")
@example("x_2dx_2d_x_2d_")
@example("-")
@example("x_110000_")
def test_every_name_survives_its_escape(name: str) -> None:
    escaped = WORD.escape(name)
    assert WORD.unescape(escaped) == name
    if 0 < len(escaped) <= 64:
        assert WORD.problem(escaped) is None
    assert ANY_NAME.unescape(ANY_NAME.escape(name)) == name


@given(st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,60}", fullmatch=True).filter(lambda name: "x_" not in name))
def test_a_valid_name_is_its_own_escape(name: str) -> None:
    assert WORD.escape(name) == name


@given(st.lists(st.text(alphabet="x_2d-", max_size=8), unique=True))
def test_two_names_have_two_escapes(names: list[str]) -> None:
    assert len({WORD.escape(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("orders_2", None),
        ("", "it is empty; "),
        ("2orders", "'2' is not permitted; "),
        ("orders-2", "'-' is not permitted; "),
        ("o" * 65, "it has 65 characters; "),
    ],
)
def test_a_problem_names_its_cause(name: str, problem: str | None) -> None:
    assert WORD.problem(name) == (None if problem is None else problem + WORD.text)


def test_a_name_that_is_too_short_is_escaped_whole() -> None:
    rule = NameRule(WORD.first, WORD.others, 64, "use two characters or more", min_chars=2)
    assert rule.problem("a") == "it has 1 characters; use two characters or more"
    assert (rule.escape("a"), rule.unescape("x_61_"), rule.escape("")) == ("x_61_", "a", "")
    assert rule.problem(rule.escape("a")) is None
    assert rule.escape("x_61_") == "x_78__61_"
