"""The oracle of delivery tests: it detects lost, reordered, damaged and repeated messages.

The payload of a message contains its source partition and its number there, and its other content is computed from these two
numbers. So the oracle needs no copy of the sent messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mqbridge.message import Message

HEAD = struct.Struct(">II")
TYPES = ("t0", "t1", "t2")


def body(partition: int, number: int, size: int) -> bytes:
    """Return the body of a message: its partition and number, then bytes that depend on them."""
    head = HEAD.pack(partition, number)
    return (head * (size // len(head) + 1))[: max(size, len(head))]


def attributes(partition: int, number: int) -> bytes:
    """Return the TubeMQ attribute string of a message: type, minute, and pairs with different, equal and non-ASCII values."""
    return f"$msgType$={TYPES[number % 3]},$msgTime$=2026112012{number % 60:02d},seq={number},part={partition},name=grün".encode()


def message(partition: int, number: int, size: int) -> Message:
    """Return a message as received from a TubeMQ producer."""
    text = attributes(partition, number)
    pairs = tuple((key, value) for key, _, value in (item.partition("=") for item in text.decode().split(",")))
    return Message(body(partition, number, size), pairs, msg_type=TYPES[number % 3], attributes=text)


@dataclass(slots=True)
class Verdict:
    """The messages of one target partition, compared with those sent to its source partition."""

    expected: int
    arrived: int = 0
    repeated: int = 0
    next: int = 0
    """The number of the next message if none is lost."""
    wrong: list[str] = field(default_factory=list)

    def see(self, partition: int, number: int, problem: str | None) -> None:
        """Record a message that arrived: the partition and number in its body, and a problem with the rest of it."""
        self.arrived += 1
        if problem is not None:
            self.wrong.append(f"{partition}/{number}: {problem}")
        elif number == self.next:
            self.next += 1
        elif number < self.next:
            self.repeated += 1
            # A repetition begins a redelivery: all messages after it must be repeated too, in order.
            self.next = number + 1
        else:
            self.wrong.append(f"{partition}/{number} arrived instead of {self.next}")
            self.next = number + 1

    @property
    def complete(self) -> bool:
        """True if all messages arrived in order and undamaged; repetitions are allowed."""
        return not self.wrong and self.next == self.expected


class Oracle:
    """Checks a target. Partition p of the target must have the messages of source partition p."""

    def __init__(self, counts: Sequence[int], size: int) -> None:
        self.size = size
        self.partitions = [Verdict(count) for count in counts]

    def see(self, partition: int, messages: Iterable[Message]) -> None:
        """Check messages that arrived in a target partition, in this order."""
        verdict = self.partitions[partition]
        for arrived in messages:
            payload = arrived.payload or b""
            source, number = HEAD.unpack_from(payload) if len(payload) >= HEAD.size else (-1, -1)
            verdict.see(partition, number, self._find_problem(partition, source, number, arrived))

    def _find_problem(self, partition: int, source: int, number: int, arrived: Message) -> str | None:
        if source != partition:
            return f"belongs to partition {source}"
        expected = message(partition, number, self.size)
        if arrived.payload != expected.payload:
            return "the payload is damaged"
        fields = arrived.attributes, arrived.properties, arrived.msg_type
        if fields != (expected.attributes, expected.properties, expected.msg_type):
            return f"has attributes {arrived.attributes!r} and properties {arrived.properties!r}"
        return None

    @property
    def arrived(self) -> int:
        """Number of arrived messages, including repetitions."""
        return sum(verdict.arrived for verdict in self.partitions)

    @property
    def repeats(self) -> int:
        """Number of repetitions."""
        return self.arrived - sum(min(verdict.next, verdict.expected) for verdict in self.partitions)

    def assert_complete(self) -> None:
        """Fail if a message is lost, damaged or out of order."""
        problems = [
            f"partition {number}: {verdict.next} of {verdict.expected} in order; {verdict.wrong[:3]}"
            for number, verdict in enumerate(self.partitions)
            if not verdict.complete
        ]
        assert not problems, "\n".join(problems)
