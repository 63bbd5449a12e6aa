"""What a right target is.

The messages of a source partition are numbered from 0. Its copy in the target, in stored order, is right when

1. nothing is missing: every number that the source acknowledged is there;
2. nothing overtakes: when a number is there for the first time, all smaller ones are there before it;
3. a repetition is a rewind: an instance that stores a number again stores what follows it again too. It may only leave out what
   another instance stored (which took the partition meanwhile). This cannot hold while bytes are late on the network or a process
   was stopped: what is on its way when somebody else goes on is stored when it arrives. So a run with such faults counts these
   messages as `stale`, and any other run fails for them;
4. nothing is damaged or strange: every body is what was sent, and everything is in the partition of its source.

Repetitions as such are right: delivery is at least once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.kit.oracle import HEAD, body

EXAMPLES = 5


class Stored(NamedTuple):
    """A message of the target: where it is, which instance wrote it, and its body."""

    partition: int
    writer: str
    body: bytes


@dataclass(slots=True)
class PartitionVerdict:
    """The copy of one source partition, message by message."""

    highest: int = -1
    arrived: int = 0
    out_of_order: int = 0
    """Numbers that were there for the first time after a larger one."""
    stale: int = 0
    last: dict[str, int] = field(default_factory=dict)
    """The last number by writer."""
    writers: dict[int, str] = field(default_factory=dict)
    """Who wrote each number; "" when more than one did."""
    examples: list[str] = field(default_factory=list)

    def see(self, number: int, writer: str) -> None:
        self.arrived += 1
        if number not in self.writers and number < self.highest:
            self.out_of_order += 1
            self.examples.append(f"{number} came after {self.highest}")
        before = self.last.get(writer, number)
        if any(self.writers.get(left_out) == writer for left_out in range(before + 1, number)):
            self.stale += 1
            self.examples.append(f"{writer} went on from {before} to {number}")
        self.highest = max(self.highest, number)
        self.last[writer] = number
        self.writers[number] = writer if self.writers.get(number, writer) == writer else ""


@dataclass(slots=True)
class Verdict:
    """All partitions of one direction."""

    sent: int
    arrived: int
    missing: int
    out_of_order: int
    stale: int
    repeated: int
    damaged: int
    examples: list[str]

    def problems(self, *, late_bytes: bool) -> list[str]:
        """What is not right; `late_bytes`: something held bytes up, or a process, so that stale messages are to be expected."""
        found = []
        if self.missing or self.out_of_order or self.damaged:
            counts = f"{self.missing} missing, {self.out_of_order} out of order, {self.damaged} damaged"
            found.append(f"{counts}: {'; '.join(self.examples)}")
        if self.stale and not late_bytes:
            found.append(f"{self.stale} repetitions are no rewinds: {'; '.join(self.examples)}")
        return found


def judge(sent: Sequence[int], stored: Iterable[Stored]) -> Verdict:
    """Compare a target with its source, which acknowledged `sent[p]` messages in partition p."""
    partitions = [PartitionVerdict() for _ in sent]
    damaged = []
    for one in stored:
        source, number = HEAD.unpack_from(one.body) if len(one.body) >= HEAD.size else (-1, -1)
        if source != one.partition or not 0 <= number < sent[source] or one.body != body(source, number, len(one.body)):
            damaged.append(f"partition {one.partition} holds {source}/{number}, {len(one.body)} bytes")
        else:
            partitions[source].see(number, one.writer)
    missing = [sorted(set(range(count)) - set(each.writers)) for count, each in zip(sent, partitions, strict=True)]
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
        examples=[*gaps[:EXAMPLES], *wrong[:EXAMPLES], *damaged[:EXAMPLES]],
    )
