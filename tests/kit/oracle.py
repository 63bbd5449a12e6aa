"""The oracle: knows which messages were sent to each partition, and judges which arrived.

A message says which source partition it belongs to and the how-manyth it is there, and everything else in it follows from these
two numbers. So a reader can tell loss, reordering, damage and repetition apart without keeping a copy of what was sent.
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
    """Its TubeMQ attribute string: type, minute, and pairs that are many, few, and not ASCII."""
    return f"$msgType$={TYPES[number % 3]},$msgTime$=2026112012{number % 60:02d},seq={number},part={partition},name=grün".encode()


def message(partition: int, number: int, size: int) -> Message:
    """As a TubeMQ producer would send it."""
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
    """The number that has to come next when nothing is lost."""
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
            # A repeat begins a run that is delivered again: everything after it has to come again in order too.
            self.next = number + 1
        else:
            self.wrong.append(f"{partition}/{number} came where {self.next} was due")
            self.next = number + 1

    @property
    def complete(self) -> bool:
        """All arrived, in order, undamaged; repeats apart."""
        return not self.wrong and self.next == self.expected


class Oracle:
    """Judges a target whose partition p is fed by source partition p."""

    def __init__(self, counts: Sequence[int], size: int) -> None:
        self.size = size
        self.partitions = [Verdict(count) for count in counts]

    def see(self, partition: int, messages: Iterable[Message]) -> None:
        """Messages that arrived in a target partition, in order."""
        verdict = self.partitions[partition]
        for got in messages:
            payload = got.payload or b""
            source, number = HEAD.unpack_from(payload) if len(payload) >= HEAD.size else (-1, -1)
            verdict.see(partition, number, self._said(partition, source, number, got))

    def _said(self, partition: int, source: int, number: int, got: Message) -> str | None:
        if source != partition:
            return f"belongs to partition {source}"
        want = message(partition, number, self.size)
        if got.payload != want.payload:
            return "its body is damaged"
        if got.attributes != want.attributes or got.properties != want.properties or got.msg_type != want.msg_type:
            return f"says {got.attributes!r} {got.properties!r}"
        return None

    @property
    def arrived(self) -> int:
        """Messages seen, repeats included."""
        return sum(verdict.arrived for verdict in self.partitions)

    @property
    def repeats(self) -> int:
        """Messages that arrived more often than once."""
        return self.arrived - sum(min(verdict.next, verdict.expected) for verdict in self.partitions)

    def assert_complete(self) -> None:
        """Nothing lost, damaged or out of order."""
        problems = [
            f"partition {number}: {verdict.next} of {verdict.expected} in order; {verdict.wrong[:3]}"
            for number, verdict in enumerate(self.partitions)
            if not verdict.complete
        ]
        assert not problems, "\n".join(problems)
