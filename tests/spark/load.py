"""Fills topics with numbered messages, and checks that a copy of the topic has each message once, in order and unchanged.

Partition p of the source is copied to partition p of the target. A payload begins with its partition and number, from which the
other bytes are computed. For each partition, both sides compute a checksum of all payloads and number properties in order.
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

from mqbridge.adapter import reading
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.message import Batch, Message, Share
from tests.e2e.support import opened

PAYLOAD_PREFIX = struct.Struct(">II")
"""Partition and number."""
NUMBER = "number"
"""The property with the number. It is checked too, because properties and payloads are copied by different code."""
FILLER = random.Random(12).randbytes(64 << 10)
BATCH = 500
MAX_BATCHES_IN_FLIGHT = 6
"""Per partition, while a topic is filled."""
MAX_SHOWN_ERRORS = 3


@dataclass(frozen=True, slots=True)
class TopicRef:
    """A topic, with the system and the settings of its cluster."""

    system: str
    settings: dict[str, Any]
    name: str


@dataclass(slots=True)
class SentMessages:
    """The number and the checksum of the messages of one partition."""

    count: int = 0
    checksum: int = 0

    def add(self, payload: bytes, number: str) -> None:
        self.count += 1
        self.checksum = zlib.crc32(number.encode(), zlib.crc32(payload, self.checksum))


@dataclass(slots=True)
class ReceivedMessages(SentMessages):
    """The messages of one target partition, with the errors in their order."""

    repeated: int = 0
    """Number of messages that were received before."""
    next: int = 0
    """The number that the next message must have."""
    errors: list[str] = field(default_factory=list)

    def receive(self, partition: int, message: Message) -> None:
        """Add the next message of the partition."""
        payload = message.payload or b""
        source, number = PAYLOAD_PREFIX.unpack_from(payload) if len(payload) >= PAYLOAD_PREFIX.size else (-1, -1)
        self.add(payload, message.property(NUMBER) or "")
        if source == partition and number == self.next:
            self.next += 1
        elif source == partition and number < self.next:
            self.repeated += 1
        else:
            self.errors.append(f"out-of-order message {source}/{number}, expected {partition}/{self.next}")
            self.next = max(self.next, number + 1)


def make_payload(partition: int, number: int, size: int) -> bytes:
    """Return the payload of a message."""
    begin = number * 61 % (len(FILLER) - size)
    return PAYLOAD_PREFIX.pack(partition, number) + FILLER[begin : begin + size - PAYLOAD_PREFIX.size]


def uneven_counts(total: int, partitions: int) -> list[int]:
    """Divide a number of messages among partitions, so that each partition has another number. Return the numbers."""
    counts = [total // partitions + (p - partitions // 2) * 10 for p in range(partitions)]
    counts[0] += total - sum(counts)
    return counts


async def fill(
    topic: TopicRef, counts: Sequence[int], size: int = 1024, begin: Sequence[SentMessages] | None = None
) -> list[SentMessages]:
    """Send `counts[p]` messages to partition p in order. Return all messages that were sent, by partition.

    `begin`: what was sent to the topic before; the numbers continue there.
    """
    sent = [SentMessages(earlier.count, earlier.checksum) for earlier in begin or [SentMessages() for _ in counts]]
    async with opened(topic.system, topic.settings) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic.name, stamp_origin=False))
        assert outbound.partitions == len(counts)

        async def fill_partition(partition: int, sent_messages: SentMessages, end: int) -> None:
            receipts: deque[asyncio.Future[Receipt]] = deque()
            while sent_messages.count < end:
                batch = []
                for number in range(sent_messages.count, min(sent_messages.count + BATCH, end)):
                    payload, text = make_payload(partition, number, size), str(number)
                    batch.append(Message(payload, ((NUMBER, text),)))
                    sent_messages.add(payload, text)
                receipts.append(outbound.send(partition, Share(Batch.of(batch))))
                if len(receipts) >= MAX_BATCHES_IN_FLIGHT:
                    assert not (await receipts.popleft()).failures
            for receipt in await asyncio.gather(*receipts):
                assert not receipt.failures

        await asyncio.gather(*(fill_partition(p, messages, messages.count + counts[p]) for p, messages in enumerate(sent)))
        await outbound.close()
    return sent


async def read_topic(topic: TopicRef) -> list[ReceivedMessages]:
    """Read all messages of a topic. Return them by partition."""
    async with opened(topic.system, topic.settings) as cluster:
        described = await cluster.describe(topic.name)
        assert described is not None, f"there is no topic {topic.name}"
        bounds = await cluster.bounds(topic.name)
        received = [ReceivedMessages() for _ in described.partitions]

        async def read(cluster: Cluster, index: int, name: str) -> None:
            async for batch in reading.read(cluster, topic.name, name, bounds[name].first, bounds[name].next):
                for message in batch.messages:
                    received[index].receive(index, message)

        await asyncio.gather(*(read(cluster, index, name) for index, name in enumerate(described.partitions)))
    return received


def assert_equal(received: Sequence[ReceivedMessages], sent: Sequence[SentMessages]) -> None:
    """Assert that no message is lost, repeated, damaged or out of order."""
    problems = [
        f"partition {index}: {actual.count} of {expected.count} messages, {actual.repeated} of them repeated, checksum "
        f"{actual.checksum:08x}, expected {expected.checksum:08x}; {len(actual.errors)} out of order: "
        f"{actual.errors[:MAX_SHOWN_ERRORS]}"
        for index, (actual, expected) in enumerate(zip(received, sent, strict=True))
        if actual.errors or actual.repeated or (actual.count, actual.checksum) != (expected.count, expected.checksum)
    ]
    assert not problems, "\n".join(problems)


async def assert_topic_has(topic: TopicRef, sent: Sequence[SentMessages]) -> None:
    """Read a topic, and assert that it has exactly the messages that were sent."""
    assert_equal(await read_topic(topic), sent)
