"""Physical offsets: a number for each message, and back."""

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.rocketmq.server import physical_offsets as module
from mqbridge.rocketmq.server.physical_offsets import (
    BLOCK_BITS,
    QueueName,
    block_ends,
    numbers_at,
    physical_base,
    physical_offset,
    physical_offsets,
)

BLOCK = 1 << BLOCK_BITS
QUEUES = st.builds(QueueName, st.text(max_size=8), st.text(max_size=8))
NUMBERS = st.one_of(
    st.integers(0, (1 << 63) - 1),
    st.builds(lambda block, near: max(0, block * BLOCK + near), st.integers(0, 1 << 21), st.integers(-3, 3)),
)


@given(QUEUES, NUMBERS)
@example(QueueName("t", "0"), 0)
@example(QueueName("t", "0"), (1 << 63) - 1)
def test_a_number_has_an_offset_of_63_bits_and_comes_back(queue: QueueName, number: int) -> None:
    number = min(number, (1 << 63) - 1)
    offset = physical_offset(queue, number)
    assert 0 <= offset < 1 << 63
    assert number in list(numbers_at(queue, offset, max(0, number - 5), number + 5))
    assert number in list(numbers_at(queue, offset, number, number + 1)), "the bounds are the number itself"
    assert number not in list(numbers_at(queue, offset, number + 1, number + 10))
    assert number not in list(numbers_at(queue, offset, max(0, number - 10), number))


@given(QUEUES, st.integers(0, 1 << 20), st.integers(0, BLOCK - 1))
def test_a_base_serves_its_whole_block_and_may_be_negative(queue: QueueName, block: int, place: int) -> None:
    base = physical_base(queue, block * BLOCK)
    assert physical_base(queue, block * BLOCK + place) == base
    assert physical_offset(queue, block * BLOCK + place) == base + block * BLOCK + place
    assert physical_offset(queue, block * BLOCK + place) & (BLOCK - 1) == place


def test_a_base_is_negative_where_the_block_is_larger_than_its_digest() -> None:
    queue = QueueName("t", "0")
    block = (1 << 22) - 1
    assert physical_base(queue, block * BLOCK) <= 0


@given(st.lists(st.integers(0, 3 * BLOCK), min_size=1, max_size=20, unique=True).map(sorted))
@example([BLOCK - 1, BLOCK])
@example([0, BLOCK, 2 * BLOCK, 2 * BLOCK + 1])
def test_runs_of_numbers_end_where_blocks_do(numbers: list[int]) -> None:
    ends = block_ends(numbers)
    assert ends[-1] == len(numbers)
    runs = [numbers[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    assert [number for run in runs for number in run] == numbers
    assert all(run[0] // BLOCK == run[-1] // BLOCK for run in runs)
    assert all(first[-1] // BLOCK != second[0] // BLOCK for first, second in pairwise(runs))


def test_nothing_has_one_empty_run() -> None:
    assert block_ends([]) == [0]


def test_a_foreign_offset_is_usually_nobodys() -> None:
    queue, other = QueueName("t", "0"), QueueName("t", "1")
    assert list(numbers_at(other, physical_offset(queue, 5), 0, 100)) == []
    assert physical_offset(queue, 5) != physical_offset(QueueName("u", "0"), 5)
    assert list(numbers_at(queue, physical_offset(queue, 5), 0, 0)) == []


def test_names_of_topic_and_partition_do_not_run_together() -> None:
    assert physical_base(QueueName("a", "bc"), 0) != physical_base(QueueName("ab", "c"), 0)


def test_both_ends_of_a_queue_that_skips_numbers_are_looked_at(monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 4)
    queue, end = QueueName("t", "0"), 1000 * BLOCK
    for number in (7, 3 * BLOCK + 7, end - 5, end - BLOCK - 5):
        assert list(numbers_at(queue, physical_offset(queue, number), 0, end)) == [number]


def test_blocks_with_the_same_digest_are_all_found(monkeypatch) -> None:
    monkeypatch.setattr(module, "_digest", lambda _, __: 9)
    queue = QueueName("t", "0")
    assert sorted(numbers_at(queue, physical_offset(queue, 5), 0, 3 * BLOCK)) == [5, BLOCK + 5, 2 * BLOCK + 5]


@given(QUEUES, st.lists(NUMBERS, unique=True, max_size=5))
def test_offsets_of_several_messages_are_those_of_each(queue: QueueName, numbers: list[int]) -> None:
    numbers.sort()
    assert physical_offsets(queue, numbers) == [physical_offset(queue, number) for number in numbers]
    assert physical_offsets(queue, range(BLOCK - 2, BLOCK + 2))[2:] == [physical_offset(queue, BLOCK + each) for each in (0, 1)]
