"""The rules of names and the checks of the adapter agree."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.errors import ConfigError
from mqbridge.tubemq.adapter.names import GROUP_NAME, MAX_GROUP_CHARS, TOPIC_NAME, check_group_name, check_topic_name


def is_accepted(check: Any, name: str) -> bool:
    try:
        check(name)
    except ConfigError:
        return False
    return True


@given(st.text(max_size=70) | st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,66}", fullmatch=True))
@example("a")
@example("aé")
@example("a\n")
def test_the_rule_of_topics_is_their_check(name: str) -> None:
    assert is_accepted(check_topic_name, name) == (TOPIC_NAME.problem(name) is None)


@given(st.text(max_size=20) | st.from_regex(r"[a-zA-Z][a-zA-Z0-9_-]{0,20}", fullmatch=True))
def test_a_group_with_a_proper_name_can_read(name: str) -> None:
    if GROUP_NAME.problem(name) is None:
        check_group_name(name)


@pytest.mark.parametrize("name", ["", " ", "g" * (MAX_GROUP_CHARS + 1), "a#b"])
def test_a_group_that_would_get_no_partitions_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a group"):
        check_group_name(name)
