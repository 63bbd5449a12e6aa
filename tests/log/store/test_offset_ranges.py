"""Sets of offsets: what is missing, and what is there twice."""

from hypothesis import given
from hypothesis import strategies as st

from mqbridge.log.store.jumps import Jump
from mqbridge.log.store.offset_ranges import OffsetRange, OffsetRanges, without_jumps
from mqbridge.log.store.schema import JUMP_LOST, JUMP_RESTORED


def ranges_of(offsets: set[int]) -> list[OffsetRange]:
    """Return the ranges of a set, the plain way."""
    begins = sorted(offset for offset in offsets if offset - 1 not in offsets)
    ends = sorted(offset + 1 for offset in offsets if offset + 1 not in offsets)
    return [OffsetRange(*pair) for pair in zip(begins, ends, strict=True)]


@given(st.lists(st.integers(1, 5), max_size=30), st.randoms(), st.integers(0, 20), st.integers(0, 80))
def test_missing_offsets_are_those_of_no_batch(sizes: list[int], chance, begin: int, end: int) -> None:
    batches, at = [], 0
    for size in sizes:
        batches.append((at, at + size))
        at += size
    kept = [each for each in batches if chance.random() < 0.6]
    chance.shuffle(kept)
    ranges, known = OffsetRanges(), set()
    for each in kept:
        ranges.add(*each)
        known |= set(range(*each))
    assert ranges.sorted() == ranges_of(known)
    assert ranges.missing(begin, end) == ranges_of(set(range(begin, end)) - known)
    assert ranges.overlaps() == []


def test_offsets_of_several_batches_are_found() -> None:
    ranges = OffsetRanges()
    for begin, end in ((0, 10), (20, 30), (5, 12), (29, 31)):
        ranges.add(begin, end)
    assert ranges.overlaps() == [(5, 10), (29, 30)]
    assert ranges.missing(0, 40) == [(12, 20), (31, 40)]


def test_offsets_that_were_jumped_over_are_not_missing() -> None:
    missing = [OffsetRange(3, 20), OffsetRange(30, 40), OffsetRange(50, 70)]
    jumps = [Jump(10, 35, JUMP_LOST), Jump(50, 60, JUMP_RESTORED)]
    assert without_jumps(missing, jumps) == [(3, 10), (35, 40), (60, 70)]
    assert without_jumps(missing, []) == missing
