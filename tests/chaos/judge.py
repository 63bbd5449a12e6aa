"""The judge: the rules that a target must fulfil.

The messages of a source partition are numbered from 0. The copy of the partition in the target, in stored order, is correct if

1. no message is missing: the copy contains every number that the source acknowledged;
2. no message overtakes another: before the first occurrence of a number, all smaller numbers occur;
3. repetitions are rewinds: an instance that stores a number again also stores the following numbers again. It may only skip
   numbers that another instance has stored, which had the partition meanwhile. This rule cannot hold if bytes are delayed on the
   network or a process was frozen: its delayed sends are stored when they arrive, although another instance has continued. A run
   with such faults counts these messages as `stale`; any other run fails because of them;
4. no message is damaged or misplaced: every payload is as sent, and every message is in the partition of its source.

Duplicates are allowed, because delivery is at least once.

A TubeMQ Broker that is killed loses the acknowledged messages that are only in its memory. So after such a fault the source is
read too, and rules 1 and 3 apply to the messages that it still has. The others are `lost`, whether or not they were delivered
before the kill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.kit.oracle import HEAD, body

MAX_EXAMPLES = 5
"""Maximum number of examples of each kind in a verdict."""


class Stored(NamedTuple):
    """A message of the target: its partition, the instance that wrote it, and its payload."""

    partition: int
    writer: str
    body: bytes


@dataclass(slots=True)
class PartitionVerdict:
    """Checks the copy of one source partition, message by message."""

    expected: Collection[int]
    """The numbers that the copy must contain."""
    highest: int = -1
    arrived: int = 0
    out_of_order: int = 0
    """Count of numbers that first occurred after a larger one."""
    stale: int = 0
    """Count of repetitions that skipped numbers of the same writer (rule 3)."""
    last: dict[str, int] = field(default_factory=dict)
    """The last number by writer."""
    writers: dict[int, str] = field(default_factory=dict)
    """The writer of each number; "" if several instances wrote it."""
    examples: list[str] = field(default_factory=list)

    def see(self, number: int, writer: str) -> None:
        """Check the next message of the copy."""
        self.arrived += 1
        if number not in self.writers and number < self.highest:
            self.out_of_order += 1
            self.examples.append(f"{number} came after {self.highest}")
        before = self.last.get(writer, number)
        if any(self.writers.get(skipped) == writer and skipped in self.expected for skipped in range(before + 1, number)):
            self.stale += 1
            self.examples.append(f"{writer} continued from {before} to {number}")
        self.highest = max(self.highest, number)
        self.last[writer] = number
        self.writers[number] = writer if self.writers.get(number, writer) == writer else ""


@dataclass(slots=True)
class Verdict:
    """Result for all partitions of one direction."""

    sent: int
    arrived: int
    missing: int
    out_of_order: int
    stale: int
    repeated: int
    damaged: int
    lost: int
    """Count of acknowledged messages that the source does not have any more; 0 if it was not read."""
    examples: list[str]

    def problems(self, *, allows_stale: bool) -> list[str]:
        """Return the violated rules. `allows_stale`: the run had faults after which stale messages are expected."""
        found = []
        if self.missing or self.out_of_order or self.damaged:
            counts = f"{self.missing} missing, {self.out_of_order} out of order, {self.damaged} damaged"
            found.append(f"{counts}: {'; '.join(self.examples)}")
        if self.stale and not allows_stale:
            found.append(f"{self.stale} repetitions are not rewinds: {'; '.join(self.examples)}")
        return found


def judge(sent: Sequence[int], stored: Iterable[Stored], held: Sequence[Collection[int]] | None = None) -> Verdict:
    """Compare a target with its source, which acknowledged `sent[p]` messages in partition p.

    `held` are the numbers in each partition of a source that may have lost messages. Without it, all must be in the target.
    """
    expected: Sequence[Collection[int]] = [range(count) for count in sent] if held is None else held
    partitions = [PartitionVerdict(numbers) for numbers in expected]
    damaged = []
    for message in stored:
        source, number = numbers_of(message)
        if (
            source != message.partition
            or not 0 <= number < sent[source]
            or message.body != body(source, number, len(message.body))
        ):
            damaged.append(f"partition {message.partition} contains {source}/{number}, {len(message.body)} bytes")
        else:
            partitions[source].see(number, message.writer)
    missing = [sorted(set(each.expected) - set(each.writers)) for each in partitions]
    gaps = [f"{p}: {len(each)} missing, {each[0]} to {each[-1]}" for p, each in enumerate(missing) if each]
    wrong = [f"{p}: {problem}" for p, each in enumerate(partitions) for problem in each.examples]
    return Verdict(
        sent=sum(sent),
        arrived=sum(each.arrived for each in partitions),
        missing=sum(map(len, missing)),
        out_of_order=sum(each.out_of_order for each in partitions),
        stale=sum(each.stale for each in partitions),
        repeated=sum(each.arrived - len(each.writers) for each in partitions),
        damaged=len(damaged),
        lost=sum(sent) - sum(map(len, expected)),
        examples=[*gaps[:MAX_EXAMPLES], *wrong[:MAX_EXAMPLES], *damaged[:MAX_EXAMPLES]],
    )


def numbers_of(message: Stored) -> tuple[int, int]:
    """Return the source partition and the number in the payload; -1, -1 if it is too short."""
    return HEAD.unpack_from(message.body) if len(message.body) >= HEAD.size else (-1, -1)


def numbers_by_partition(sent: Sequence[int], stored: Iterable[Stored]) -> list[set[int]]:
    """Return the numbers of the messages of a source, which acknowledged `sent[p]` messages in partition p."""
    found: list[set[int]] = [set() for _ in sent]
    for message in stored:
        partition, number = numbers_of(message)
        if partition == message.partition and 0 <= number < sent[partition]:
            found[partition].add(number)
    return found
