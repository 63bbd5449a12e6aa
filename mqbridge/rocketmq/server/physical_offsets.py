"""Physical offsets: numbers by which clients name a stored message to its broker, without its topic or its queue.

    63 bits:  22 bits, a digest of the topic, the partition and the block | 41 bits, the place of the message in its block

A block are 2^41 consecutive numbers, so that numbers may have 63 bits: those of topics that were made again are large. Nothing
is stored for physical offsets, and every gateway makes the same ones. Several blocks may have the same digest: whoever looks a
message up takes the topic from the request if that names one, and compares the unique id of the message if it can.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

BLOCK_BITS = 41
"""Bits of a place in a block: a queue that gets 10,000 messages each second needs another block after seven years."""
_PLACE_MASK = (1 << BLOCK_BITS) - 1
_DIGEST_BITS = 63 - BLOCK_BITS


class QueueName(NamedTuple):
    """A queue, by the names of its topic and partition in the cluster."""

    topic: str
    partition: str


@lru_cache(maxsize=65_536)
def _digest(queue: QueueName, block: int) -> int:
    digest = hashlib.sha256(f"{queue.topic}\0{queue.partition}\0{block}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _DIGEST_BITS)


def physical_offset(queue: QueueName, number: int) -> int:
    """Return the physical offset of a message."""
    return physical_base(queue, number) + number


def physical_offsets(queue: QueueName, numbers: Sequence[int]) -> list[int]:
    """Return the physical offsets of messages with ascending numbers."""
    offsets: list[int] = []
    for end in block_ends(numbers) if numbers else ():
        base = physical_base(queue, numbers[len(offsets)])
        offsets += [base + number for number in numbers[len(offsets) : end]]
    return offsets


def physical_base(queue: QueueName, number: int) -> int:
    """Return what is added to the numbers of the block of this one, which may be negative."""
    block = number >> BLOCK_BITS
    return (_digest(queue, block) - block) << BLOCK_BITS


def block_ends(numbers: Sequence[int]) -> list[int]:
    """Return the indexes at which runs of numbers of one block end."""
    if not numbers or numbers[0] >> BLOCK_BITS == numbers[-1] >> BLOCK_BITS:  # the usual case
        return [len(numbers)]
    ends = [index for index in range(1, len(numbers)) if numbers[index] >> BLOCK_BITS != numbers[index - 1] >> BLOCK_BITS]
    return [*ends, len(numbers)]


MAX_BLOCKS = 4096
"""Maximum number of blocks of a queue that are looked at; one that skips numbers has two far ends."""


def numbers_at(queue: QueueName, offset: int, first: int, end: int) -> Iterator[int]:
    """Yield the numbers from `first` to before `end` of a queue that have this physical offset, usually none or one."""
    digest, place = offset >> BLOCK_BITS, offset & _PLACE_MASK
    lowest, highest = first >> BLOCK_BITS, max(first, end - 1) >> BLOCK_BITS
    for block in {*range(lowest, min(highest, lowest + MAX_BLOCKS) + 1), *range(max(lowest, highest - 1), highest + 1)}:
        number = block << BLOCK_BITS | place
        if first <= number < end and _digest(queue, block) == digest:
            yield number
