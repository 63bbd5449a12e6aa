"""The judge: the rules that a target must fulfil.

The messages of a source partition are numbered from 0. A sequence is what must keep its order: all messages of a source partition
or, if the route chooses target partitions by key, those of one of its keys. Its copy, in stored order, is correct if

1. no message is missing: the copy contains every number of the sequence that the source acknowledged;
2. no message overtakes another: before the first occurrence of a number, all smaller numbers occur;
3. repetitions are rewinds: an instance that stores a number again also stores the following numbers again. It may only skip
   numbers that another instance has stored, which had the partition meanwhile. This rule cannot hold if bytes are delayed on the
   network or a process was frozen: its delayed sends are stored when they arrive, although another instance has continued. A run
   with such faults counts these messages as `stale`; any other run fails because of them;
4. no message is damaged or misplaced: every payload is as sent, and a sequence is in one target partition: by identity in the one
   with the index of its source, otherwise wherever its first message is.

Duplicates are allowed, because delivery is at least once. What an operator deleted at the source, by deleting a topic or all of
its messages, need not be in the target; its copies are not judged.

A TubeMQ Broker that is killed loses the acknowledged messages that are only in its memory. So after such a fault the source is
read too, and rules 1 and 3 apply to the messages that it still has. The others are `lost`, whether or not they were delivered
before the kill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.chaos.layout import IDENTITY, KEY, KEYS, By
from tests.kit.oracle import HEAD, body

MAX_EXAMPLES = 5
"""Maximum number of examples of each kind in a verdict."""


class Stored(NamedTuple):
    """A message of the target: its partition, the instance that wrote it, and its payload."""

    partition: int
    writer: str
    body: bytes


@dataclass(slots=True)
class SequenceVerdict:
    """Checks the copy of one sequence, message by message."""

    expected: Collection[int]
    """The numbers that the copy must contain."""
    partition: int | None
    """The target partition that must have all of them; None until the first message shows it."""
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
    """Count of acknowledged messages that the source does not have any more: lost by a killed Broker, deleted by an operator."""
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


def judge(
    sent: Sequence[int],
    stored: Iterable[Stored],
    held: Sequence[Collection[int]] | None = None,
    *,
    first: Sequence[int] = (),
    by: By = IDENTITY,
) -> Verdict:
    """Compare a target with its source, which acknowledged `sent[p]` messages in partition p.

    `held` are the numbers in each partition of a source that may have lost messages. Without it, all must be in the target.
    `first[p]` is the first number that an operator has not deleted in partition p; without it 0. `by` is the route's rule.
    """
    copies = _Copies(sent, held, first or [0] * len(sent), by)
    for message in stored:
        copies.see(message)
    verdicts = copies.sequences
    missing = {name: sorted(set(each.expected) - each.writers.keys()) for name, each in verdicts.items()}
    gaps = [f"{name}: {len(each)} missing, {each[0]} to {each[-1]}" for name, each in missing.items() if each]
    wrong = [f"{name}: {problem}" for name, each in verdicts.items() for problem in each.examples]
    return Verdict(
        sent=sum(sent),
        arrived=copies.deleted + sum(each.arrived for each in verdicts.values()),
        missing=sum(map(len, missing.values())),
        out_of_order=sum(each.out_of_order for each in verdicts.values()),
        stale=sum(each.stale for each in verdicts.values()),
        repeated=sum(each.arrived - len(each.writers) for each in verdicts.values()),
        damaged=len(copies.damaged),
        lost=sum(sent) - sum(len(each.expected) for each in verdicts.values()),
        examples=[*gaps[:MAX_EXAMPLES], *wrong[:MAX_EXAMPLES], *copies.damaged[:MAX_EXAMPLES]],
    )


class _Copies:
    """Sorts the messages of a target into sequences. `damaged` describes those that belong to none."""

    def __init__(self, sent: Sequence[int], held: Sequence[Collection[int]] | None, first: Sequence[int], by: By) -> None:
        self._sent, self._first = sent, first
        self._width = KEYS if by == KEY else 1
        """The number of sequences of a source partition."""
        self.damaged: list[str] = []
        self.deleted = 0
        """Count of copies of messages that an operator deleted."""
        self.sequences = {
            (partition, key): SequenceVerdict(
                range(first[partition] + (key - first[partition]) % self._width, count, self._width)
                if held is None
                else {number for number in held[partition] if number % self._width == key and number >= first[partition]},
                partition if by == IDENTITY else None,
            )
            for partition, count in enumerate(sent)
            for key in range(self._width)
        }

    def see(self, message: Stored) -> None:
        """Check the next message of the target."""
        source, number = numbers_of(message)
        if not 0 <= source < len(self._sent) or not 0 <= number < self._sent[source]:
            self._damaged(message)
            return
        sequence = self.sequences[source, number % self._width]
        if sequence.partition is None:
            sequence.partition = message.partition
        if sequence.partition != message.partition or message.body != body(source, number, len(message.body)):
            self._damaged(message)
        elif number < self._first[source]:
            self.deleted += 1
        else:
            sequence.see(number, message.writer)

    def _damaged(self, message: Stored) -> None:
        source, number = numbers_of(message)
        self.damaged.append(f"partition {message.partition} contains {source}/{number}, {len(message.body)} bytes")


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
