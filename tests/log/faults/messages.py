"""Payloads that tell which message they belong to, also from a fragment of their bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

TAG = struct.Struct(">BBBHIB")
"""Magic byte, topic, partition, writer, number, check byte: the first bytes of each unit of a payload."""
MAGIC = 0xFB
UNIT_BYTES = 64
CACHED = 4096
"""Number of payloads that a process keeps; processes that are forked from it have them too."""
FILLER_BYTES = UNIT_BYTES - TAG.size - 4
SIZES = ((10, 100, 60), (500, 5_000, 25), (10_000, 60_000, 10), (200_000, 300_000, 5))
"""Payload sizes: minimum, maximum, weight."""


class MessageId(NamedTuple):
    """Identity of a message: the numbers of its topic and partition, its writer, and its number among the writer's messages."""

    topic: int
    partition: int
    writer: int
    number: int

    def __str__(self) -> str:
        return f"{topic_name(self.topic)}/{self.partition} message {self.writer}:{self.number}"


def topic_name(topic: int) -> str:
    """Return the name of the topic with this number."""
    return f"topic-{topic}"


def topic_number(name: str) -> int:
    """Return the number of the topic with this name."""
    return int(name.removeprefix("topic-"))


@lru_cache(maxsize=1 << 14)
def _tag(id_: MessageId) -> bytes:
    tag = TAG.pack(MAGIC, *id_, 0)
    return tag[:-1] + bytes([_check(tag)])


def _check(tag: bytes) -> int:
    """Return the check byte of a tag, which random bytes have in one of 256 cases."""
    return (sum(index * byte for index, byte in enumerate(tag[:-1], 3)) ^ 0x5A) & 0xFF


@lru_cache(maxsize=CACHED)
def payload(id_: MessageId, size: int) -> bytes:
    """Return the payload of a message: units of a tag, the number of the unit, and filler; `size` is at least that of a tag."""
    tag = _tag(id_)
    filler = random.Random(tag).randbytes(FILLER_BYTES)
    return b"".join([tag + index.to_bytes(4) + filler for index in range(-(-size // UNIT_BYTES))])[:size]


def parse(data: bytes | None) -> MessageId | None:
    """Return the identity of a payload; None if it is not a payload that `payload` makes in this size."""
    if data is None or len(data) < TAG.size or data[0] != MAGIC:
        return None
    id_ = MessageId(*TAG.unpack_from(data)[1:-1])
    return id_ if payload(id_, len(data)) == data else None


def tags(data: bytes) -> Iterator[tuple[int, MessageId]]:
    """Yield the offset and the identity of each tag in these bytes."""
    position = data.find(MAGIC)
    while 0 <= position <= len(data) - TAG.size:
        tag = data[position : position + TAG.size]
        if _check(tag) == tag[-1]:
            yield position, MessageId(*TAG.unpack(tag)[1:-1])
            position += TAG.size - 1
        position = data.find(MAGIC, position + 1)


def random_size(rng: random.Random, max_bytes: int) -> int:
    """Draw the size of a payload: mostly small, seldom hundreds of kilobytes."""
    low, high, _ = rng.choices(SIZES, [weight for _, _, weight in SIZES])[0]
    return min(rng.randint(low, high), max_bytes)
