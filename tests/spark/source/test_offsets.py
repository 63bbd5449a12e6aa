"""The JSON form of offsets in the checkpoint."""

import json
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ConfigError
from mqbridge.spark.source.offsets import dump_offsets, load_offsets

POSITIONS = st.lists(st.integers(-1, 2**62), min_size=1, max_size=3).map(tuple)
OFFSETS = st.dictionaries(st.tuples(st.text(), st.text()), POSITIONS, max_size=20)


@given(OFFSETS, st.randoms(use_true_random=False))
def test_offsets_are_read_back_and_their_text_does_not_depend_on_the_order(offsets: dict[Any, Any], order: random.Random) -> None:
    """Spark compares offsets as text: in another order, the same offsets would begin one empty batch after another."""
    shuffled = list(offsets.items())
    order.shuffle(shuffled)
    text = json.dumps(dump_offsets(offsets))
    assert json.dumps(dump_offsets(dict(shuffled))) == text
    assert load_offsets(json.loads(text)) == offsets


def test_the_form_of_existing_checkpoints_does_not_change() -> None:
    written = {"topics": {"a": {"0": "5", "broker:1": "12:3:0"}}, "version": 1}
    assert dump_offsets({("a", "broker:1"): (12, 3, 0), ("a", "0"): (5,)}) == written
    assert list(written) == list(dump_offsets({}))


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"topics": {}, "version": 2}, "offsets of version 2, this mqbridge reads version 1"),
        ({"orders": {"0": 5}}, "this source did not write: {'orders'"),
        ({"topics": {"a": {"0": "x"}}, "version": 1}, "this source did not write"),
        ({"topics": ["a"], "version": 1}, "this source did not write"),
        (7, "this source did not write: 7"),
    ],
)
def test_offsets_of_another_source_or_a_later_version_are_an_error(written: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        load_offsets(written)


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        5,
        {"version": 1},
        {"version": 1, "topics": 5},
        {"version": 1, "topics": {"orders": 5}},
        {"version": 1, "topics": {"orders": {"0": None}}},
        {"version": 1, "topics": {"orders": {"0": 5}}},
        {"version": 1, "topics": {"orders": {"0": "x"}}},
        {"version": 1, "topics": {"orders": {"0": "9" * 10_000}}},
        {"version": "9" * 10_000, "topics": {}},
    ],
    ids=lambda document: str(document)[:60],
)
def test_damaged_offsets_are_refused(document: object) -> None:
    with pytest.raises(ConfigError, match="offsets that this source did not write") as caught:
        load_offsets(document)
    assert len(str(caught.value)) < 1000
