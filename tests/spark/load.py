"""What a mirror is judged by: topics filled fast with numbered messages, and a reader that compares what arrived with that.

Partition p of the target is fed by partition p of the source. A message begins with its partition and number, and the rest
follows from them; both sides keep a running checksum per partition, of every payload and every number in its property, in order.
"""

from __future__ import annotations

import asyncio
import random
import struct
import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.message import Batch, Message, Share
from tests.e2e.support import opened

HEAD = struct.Struct(">II")
NUMBER = "number"
"""A property: properties travel by another way than payloads."""
FILLER = random.Random(12).randbytes(64 << 10)
BATCH = 500
WINDOW = 6
"""Batches in flight per partition while filling."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Place:
    """A topic of a cluster."""

    system: str
    settings: dict[str, Any]
    topic: str


@dataclass(slots=True)
class Tally:
    """One partition: how many messages, and their checksum."""

    count: int = 0
    checksum: int = 0

    def add(self, payload: bytes, number: str) -> None:
        self.count += 1
        self.checksum = zlib.crc32(number.encode(), zlib.crc32(payload, self.checksum))


@dataclass(slots=True)
class Arrived(Tally):
    """One target partition, and what is wrong with it."""

    repeated: int = 0
    next: int = 0
    wrong: list[str] = field(default_factory=list)

    def see(self, partition: int, message: Message) -> None:
        payload = message.payload or b""
        source, number = HEAD.unpack_from(payload) if len(payload) >= HEAD.size else (-1, -1)
        self.add(payload, message.property(NUMBER) or "")
        if source == partition and number == self.next:
            self.next += 1
        elif source == partition and number < self.next:
            self.repeated += 1
        else:
            self.wrong.append(f"{source}/{number} came where {partition}/{self.next} was due")
            self.next = max(self.next, number + 1)


def body(partition: int, number: int, size: int) -> bytes:
    """The payload of a message."""
    begin = number * 61 % (len(FILLER) - size)
    return HEAD.pack(partition, number) + FILLER[begin : begin + size - HEAD.size]


def shares(total: int, partitions: int) -> list[int]:
    """Uneven shares of so many messages."""
    counts = [total // partitions + (p - partitions // 2) * 10 for p in range(partitions)]
    counts[0] += total - sum(counts)
    return counts


async def fill(place: Place, counts: Sequence[int], size: int = 1024, begin: Sequence[Tally] | None = None) -> list[Tally]:
    """Send `counts[p]` messages to partition p, in order, numbered on from `begin`; what was sent, by partition."""
    tallies = [Tally(one.count, one.checksum) for one in begin or [Tally() for _ in counts]]
    async with opened(place.system, place.settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(place.topic, stamp_origin=False))
        assert outbound.partitions == len(counts)

        async def fill_partition(partition: int, tally: Tally, end: int) -> None:
            waiting: deque[asyncio.Future[Receipt]] = deque()
            while tally.count < end:
                batch = []
                for number in range(tally.count, min(tally.count + BATCH, end)):
                    payload, text = body(partition, number, size), str(number)
                    batch.append(Message(payload, ((NUMBER, text),)))
                    tally.add(payload, text)
                waiting.append(outbound.send(partition, Share(Batch.of(batch))))
                if len(waiting) >= WINDOW:
                    assert not (await waiting.popleft()).failures
            for receipt in await asyncio.gather(*waiting):
                assert not receipt.failures

        await asyncio.gather(*(fill_partition(p, tally, tally.count + counts[p]) for p, tally in enumerate(tallies)))
        await outbound.close()
    return tallies


async def arrived(place: Place) -> list[Arrived]:
    """Everything that a topic holds, by partition."""
    async with opened(place.system, place.settings) as cluster:
        described = await cluster.describe(place.topic)
        assert described is not None, f"there is no topic {place.topic}"
        bounds = await cluster.bounds(place.topic)
        found = [Arrived() for _ in described.partitions]

        async def read(cluster: Cluster, index: int, name: str) -> None:
            async for batch in cluster.read(place.topic, name, bounds[name].first, bounds[name].next):
                for message in batch.messages:
                    found[index].see(index, message)

        await asyncio.gather(*(read(cluster, index, name) for index, name in enumerate(described.partitions)))
    return found


def assert_equal(found: Sequence[Arrived], sent: Sequence[Tally]) -> None:
    """Nothing lost, doubled, damaged or out of order."""
    problems = [
        f"partition {index}: {one.count} of {all_.count} messages, {one.repeated} of them repeated, checksum {one.checksum:08x} "
        f"for {all_.checksum:08x}; {len(one.wrong)} out of place: {one.wrong[:SHOWN]}"
        for index, (one, all_) in enumerate(zip(found, sent, strict=True))
        if one.wrong or one.repeated or (one.count, one.checksum) != (all_.count, all_.checksum)
    ]
    assert not problems, "\n".join(problems)


async def judge(place: Place, sent: Sequence[Tally]) -> None:
    """Read the target back and compare it with what was sent."""
    assert_equal(await arrived(place), sent)
