"""The strategies divide queues exactly as the Java client does, and every queue has exactly one owner."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.rocketmq.wire.allocation_strategies import (
    STRATEGIES,
    Strategy,
    averagely,
    circle,
    consistent_hash,
    divide,
    java_order,
)
from mqbridge.rocketmq.wire.allocation_strategies import queue_order as order
from mqbridge.rocketmq.wire.bodies.queue import Queue

# Results of the three strategies in the Java client 5.3.3: for each queue the index of its owner in `members`.
# Java sorted both lists.
DIVISIONS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("divisions.json").read_text())
BY_JAVA_NAME: dict[str, Strategy] = {"AVG": averagely, "AVG_BY_CIRCLE": circle, "CONSISTENT_HASH": consistent_hash}

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
groups = st.sets(names, min_size=1, max_size=12)
topics = st.sets(st.builds(Queue, st.just("T"), names, st.integers(0, 12)), max_size=40)
strategies = st.sampled_from(list(STRATEGIES.values()))


@pytest.mark.parametrize("division", DIVISIONS, ids=lambda d: f"{d['strategy']}-{d['topic']}-{len(d['members'])}")
def test_queues_are_divided_as_the_java_client_divides_them(division: dict[str, Any]) -> None:
    queues = [Queue(division["topic"], broker, number) for broker, number in division["queues"]]
    members = division["members"]
    strategy = BY_JAVA_NAME[division["strategy"]]
    owners: list[int | None] = [None] * len(queues)
    for index, member in enumerate(members):
        for queue in divide(strategy, member, reversed(queues), list(reversed(members))):
            owners[queues.index(queue)] = index
    assert owners == division["owners"]


@pytest.mark.parametrize("division", DIVISIONS, ids=lambda d: f"{d['topic']}-{len(d['members'])}")
def test_members_and_queues_are_sorted_as_java_sorts_them(division: dict[str, Any]) -> None:
    queues = [Queue(division["topic"], broker, number) for broker, number in division["queues"]]
    members = division["members"]
    assert sorted(set(members), key=java_order) == members
    assert sorted(set(queues), key=order) == queues


def test_names_are_sorted_by_utf16_units_not_by_code_points() -> None:
    assert sorted(["\uffee", "\U0001f600"], key=java_order) == ["\U0001f600", "\uffee"]


@given(strategies, topics, groups)
def test_every_queue_has_exactly_one_owner(strategy: Strategy, queues: set[Queue], members: set[str]) -> None:
    owned = Counter(queue for member in members for queue in divide(strategy, member, queues, members))
    assert owned == Counter(queues)


@given(st.sampled_from([averagely, circle]), topics, groups)
def test_numbers_of_queues_of_two_members_differ_by_at_most_one(
    strategy: Strategy, queues: set[Queue], members: set[str]
) -> None:
    sizes = [len(divide(strategy, member, queues, members)) for member in members]
    assert max(sizes) - min(sizes) <= 1


@given(topics, groups, names)
def test_consistent_hash_moves_queues_to_the_new_member_only(queues: set[Queue], members: set[str], new: str) -> None:
    before = {queue: member for member in members for queue in divide(consistent_hash, member, queues, members)}
    grown = members | {new}
    after = {queue: member for member in grown for queue in divide(consistent_hash, member, queues, grown)}
    assert all(after[queue] in (new, owner) for queue, owner in before.items())


@given(strategies, topics, groups, names)
def test_a_member_that_is_not_listed_gets_no_queue(strategy: Strategy, queues: set[Queue], members: set[str], me: str) -> None:
    assert divide(strategy, me, queues, members - {me}) == []
