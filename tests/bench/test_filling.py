"""The messages of a corpus follow its parameters, and are the same every time."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.bench.corpora import CORPORA
from tests.kit import java
from tests.kit.java import Line

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(300), pytest.mark.thorough]

MESSAGES = 2_000


def drawn(corpus: str, *, seed: int = 1, threads: int = 4) -> list[Line]:
    """Messages of a corpus, in the order of their numbers."""
    arguments = CORPORA[corpus].arguments("print")
    *lines, _ = java.run("BenchFill", sink="print", messages=MESSAGES, seed=seed, threads=threads, **arguments)
    return sorted(lines, key=lambda line: int(line["number"]))


def test_ordinary_messages_have_the_same_names_and_different_values() -> None:
    lines = drawn("ordinary")
    assert {len(line["body"]) for line in lines} == {1_000}
    assert {frozenset(name for name, _ in line["properties"]) for line in lines} == {
        frozenset(("zone", "user", "trace", "seq", "title"))
    }
    assert len({line["body"] for line in lines}) == MESSAGES
    assert all(line["body"][:16] == f"{line['number']:016x}" for line in lines)
    zones = Counter(dict(line["properties"])["zone"] for line in lines)
    assert 0.2 < zones["eu-4"] / MESSAGES < 0.3  # what the rules of the bench leave out
    assert any(not dict(line["properties"])["title"].isascii() for line in lines)


def test_the_odd_corpus_has_every_oddity_and_all_sizes() -> None:
    lines = drawn("odd")
    oddities = Counter(line["oddity"] for line in lines)
    assert 0.15 < 1 - oddities["NONE"] / MESSAGES < 0.25
    assert len(oddities) == 11
    sizes = sorted(len(line["body"]) for line in lines)
    assert sizes[0] < 100
    assert sizes[-1] > 9_000
    assert {len(line["properties"]) for line in lines} >= set(range(31))
    assert 0.5 < sum(line["key"] is not None for line in lines) / MESSAGES < 0.8


def test_messages_of_the_rich_corpus_have_different_property_names() -> None:
    lines = drawn("rich")
    assert all(len({name for name, _ in line["properties"]}) == 30 for line in lines)
    assert len({frozenset(name for name, _ in line["properties"]) for line in lines}) > MESSAGES / 10


def test_the_same_seed_gives_the_same_messages_from_any_thread() -> None:
    one, again, other = drawn("odd", threads=1), drawn("odd", threads=8), drawn("odd", seed=2)
    assert one == again
    assert all(mine["body"] != theirs["body"] for mine, theirs in zip(one, other, strict=True) if len(mine["body"]) > 200)
    assert all(before["number"] + 1 == after["number"] for before, after in pairwise(one))
