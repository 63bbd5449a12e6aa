"""What the processes of a fault sent, what was acknowledged to them, and what they read: their records, and the oracle's view."""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.log.faults.messages import MessageId

PartitionId = tuple[int, int]
"""Number of the topic, number of the partition."""
GroupPartition = tuple[str, int, int]
"""Group, number of the topic, number of the partition."""


class Recorder:
    """Writes the records of one process, each as one line that is out of the process when `record` returns."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    @classmethod
    def to_file(cls, path: Path) -> Recorder:
        """Return a recorder that appends to a file, which outlives the process."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return cls(lambda line: os.write(descriptor, line))

    def record(self, kind: str, *values: Any) -> None:
        """Write a record with the current time."""
        self._write(json.dumps([kind, time.monotonic_ns(), *values]).encode() + b"\n")


def read_records(paths: Iterable[Path]) -> list[list[Any]]:
    """Return the records of these files in the order of time; the last line of a killed process may be incomplete."""
    records = [json.loads(line) for path in paths for line in path.read_bytes().split(b"\n")[:-1]]
    return sorted(records, key=lambda record: record[1])


class Ack(NamedTuple):
    """An acknowledged message: the message and the time."""

    id: MessageId
    at_ns: int


class Conflict(NamedTuple):
    """Two messages at one offset: the acknowledged one, the time of the other one, and a description."""

    ack: Ack
    at_ns: int
    text: str


class Committed(NamedTuple):
    """A committed position that a process saw: the times before and after the request, and the position."""

    begin_ns: int
    end_ns: int
    position: int


@dataclass(slots=True)
class History:
    """All records of a fault, by message, partition and group."""

    sizes: dict[MessageId, int] = field(default_factory=dict)
    """Payload size of every message that was sent, acknowledged or not."""
    shares: dict[MessageId, int] = field(default_factory=dict)
    """Number of the send that contained the message."""
    acks: dict[PartitionId, dict[int, list[Ack]]] = field(default_factory=lambda: defaultdict(dict))
    """Acknowledged messages by offset, which must be one for each."""
    conflicts: list[Conflict] = field(default_factory=list)
    """Offsets that were acknowledged twice, or whose message was delivered as another one."""
    acknowledged: dict[GroupPartition, int] = field(default_factory=dict)
    """The highest position that a member of the group acknowledged, whether it was committed or not."""
    delivered: dict[GroupPartition, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Offsets that any member of the group received, or that a GapError named to it."""
    committed: dict[GroupPartition, list[Committed]] = field(default_factory=lambda: defaultdict(list))
    said: list[tuple[int, str]] = field(default_factory=list)
    """Errors of mqbridge and log records from WARNING on, with their times."""
    problems: list[str] = field(default_factory=list)
    """Violations that the records show by themselves."""
    events: Counter[str] = field(default_factory=Counter)
    """Number of records by kind."""

    @property
    def acknowledged_messages(self) -> int:
        """The number of acknowledged messages."""
        return sum(len(acks) for partition in self.acks.values() for acks in partition.values())

    def all_acks(self, key: PartitionId) -> Iterator[tuple[int, Ack]]:
        """Yield the offset and the message of every acknowledgement of a partition."""
        for offset, acks in self.acks.get(key, {}).items():
            for ack in acks:
                yield offset, ack

    def confirmed(self, key: GroupPartition) -> int:
        """Return the highest committed position that a process saw; 0 if none did."""
        return max((each.position for each in self.committed.get(key, ())), default=0)


def history_of(records: Iterable[list[Any]]) -> History:
    """Sort the records of a fault."""
    history = History()
    for kind, at_ns, *values in records:
        history.events[kind] += 1
        if handler := _HANDLERS.get(kind):
            handler(history, at_ns, *values)
    return history


def _send(history: History, _: int, ids: list[list[int]], sizes: list[int]) -> None:
    share = len(history.shares)
    for parts, size in zip(ids, sizes, strict=True):
        id_ = MessageId(*parts)
        history.sizes[id_], history.shares[id_] = size, share


def _ack(history: History, at_ns: int, ids: list[list[int]], offsets: list[int]) -> None:
    for parts, offset in zip(ids, offsets, strict=True):
        id_ = MessageId(*parts)
        acks = history.acks[id_.topic, id_.partition].setdefault(offset, [])
        if acks:
            text = f"offset given twice: {offset} was acknowledged for {acks[-1].id} and for {id_}"
            history.conflicts.append(Conflict(acks[-1], at_ns, text))
        acks.append(Ack(id_, at_ns))


def _delivered(
    history: History, at_ns: int, group: str, topic: int, partition: int, first: int, numbers: list[list[int]]
) -> None:
    for offset, (writer, number) in enumerate(numbers, first):
        id_, acks = MessageId(topic, partition, writer, number), history.acks[topic, partition].get(offset)
        if acks and all(ack.id != id_ for ack in acks):
            text = f"wrong message: {group} received {id_} at offset {offset} of {acks[-1].id}"
            history.conflicts.append(Conflict(acks[-1], at_ns, text))
    history.delivered[group, topic, partition].update(range(first, first + len(numbers)))


def _gap(history: History, at_ns: int, group: str, topic: int, partition: int, first: int, end: int, text: str) -> None:
    history.delivered[group, topic, partition].update(range(first, end))
    history.said.append((at_ns, text))


def _acknowledge(history: History, _: int, group: str, topic: int, partition: int, position: int) -> None:
    key = group, topic, partition
    history.acknowledged[key] = max(history.acknowledged.get(key, 0), position)


def _committed(history: History, end_ns: int, begin_ns: int, group: str, topic: int, partition: int, position: int) -> None:
    history.committed[group, topic, partition].append(Committed(begin_ns, end_ns, position))


def _said(history: History, at_ns: int, text: str) -> None:
    history.said.append((at_ns, text))


def _problem(history: History, _: int, text: str) -> None:
    history.problems.append(text)


_HANDLERS: dict[str, Callable[..., None]] = {
    "send": _send,
    "ack": _ack,
    "delivered": _delivered,
    "gap": _gap,
    "acknowledge": _acknowledge,
    "committed": _committed,
    "said": _said,
    "problem": _problem,
}
