"""What a named sender numbers by: the positions of its source, which ascend in each target partition.

A broker that deduplicates drops an entry whole when its first message was stored before, whatever else is in it. So no entry may
begin with what is stored and go on behind it: messages that the broker holds are left out before entries are made, and what goes
back behind something that was sent is refused.
"""

from asyncio import Future
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import overload

from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import ClusterError, Failure, LocalProtocolError
from mqbridge.message import Message, Partition, Position, format_position
from mqbridge.native import is_native
from mqbridge.pulsar.mapping.request import EncodedEntry
from mqbridge.pulsar.mapping.sequences import sequence_of

_position = attrgetter("position")


class Positions(Sequence[Position]):
    """Of messages, each made when it is asked for."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | Sequence[Position]:
        return Positions(self._messages[index]) if isinstance(index, slice) else self._messages[index].position

    def first_descent(self) -> int | None:
        """The index of the first one that does not come behind the one before it."""
        if is_native(self._messages):
            found: int | None = self._messages.first_descent()  # type: ignore[attr-defined]
            return found
        positions = list(map(_position, self._messages))
        return next((index for index, (last, next_) in enumerate(pairwise(positions), 1) if next_ <= last), None)

    def readable(self) -> Iterator[tuple[int, Position]]:
        """Index and position of each message without a defect."""
        return ((index, message.position) for index, message in enumerate(self._messages) if message.defect is None)


class Numbering:
    """Of one outbound: where each of its target partitions stands in the source."""

    def __init__(self, sender: str, topic: str) -> None:
        self.sender = sender
        self._topic = topic
        self._source: Partition | None = None
        self._stored: dict[int, Position] = {}
        """The last position that a target partition held when the source was resumed."""
        self._sent: dict[int, Position] = {}
        """The last one that was sent since."""
        self._interrupted: set[int] = set()
        """Target partitions in which a send has failed: only a resume tells what of it is stored."""

    def check_source(self, source: Partition) -> None:
        """Raises LocalProtocolError for another one than before: positions of two sources are in no order."""
        if self._source not in (None, source):
            raise LocalProtocolError(f"{self.sender!r} sends from {self._source} into {self._topic!r}, not from {source}")

    def resumed(self, source: Partition, stored: Mapping[int, Position]) -> None:
        """The target partitions hold the source up to here."""
        self._source, self._stored = source, dict(stored)
        self._sent.clear()
        self._interrupted.clear()

    def check_first(self, partition: int, source: Partition, first: Position) -> None:
        """For a share whose first readable message is there.

        Raises LocalProtocolError for a source that was not resumed, ClusterError for a share that goes back behind what was sent.
        """
        if self._source != source:
            raise LocalProtocolError(f"{self.sender!r} has not resumed {source} in {self._topic!r}")
        if partition in self._interrupted:
            raise ClusterError(
                f"a send of {self.sender!r} into {self._topic!r} has failed: resume before the next", Failure.RETRY
            )
        stored, sent = self._stored.get(partition), self._sent.get(partition)
        if stored is not None and len(stored) != len(first):
            raise ClusterError(
                f"{self.sender!r} has sent from another source into {self._topic!r}, up to {format_position(stored)}: "
                "take a new name",
                Failure.FATAL,
            )
        if sent is not None and first <= sent:
            raise self._goes_back(first, sent)

    def count_stored(self, partition: int, positions: Positions) -> int:
        """How many of the first messages at these positions are stored. Raises ClusterError where they do not ascend.

        Messages with a defect are never sent, and may come late: chunks are given up when what came behind them was handed out.
        """
        stored = self._stored.get(partition)
        if positions.first_descent() is None:
            return 0 if stored is None else bisect_right(positions, stored)
        readable = list(positions.readable())
        for (_, before), (_, position) in pairwise(readable):
            if position <= before:
                raise self._goes_back(position, before)
        return max((index + 1 for index, position in readable if stored is not None and position <= stored), default=0)

    def _goes_back(self, position: Position, before: Position) -> ClusterError:
        return ClusterError(
            f"messages of {self._source} do not ascend: {format_position(position)} comes behind {format_position(before)}, "
            f"and what {self.sender!r} sends into {self._topic!r} is numbered by position; sort them, or name no sender",
            Failure.FATAL,
        )

    def number(self, partition: int, entries: Sequence[EncodedEntry], positions: Sequence[Position]) -> list[tuple[int, int]]:
        """The sequence ids of the first and last message of each entry; what they are of counts as sent. Raises ClusterError."""
        ends = [(positions[out.indexes[0]], positions[out.indexes[-1]]) for out in entries]
        numbers = [(sequence_of(first), sequence_of(last)) for first, last in ends]
        if ends:
            self._sent[partition] = ends[-1][1]
        return numbers

    def ended(self, partition: int, receipt: "Future[Receipt]") -> None:
        """The receipt of a send into this partition is out."""
        if receipt.cancelled() or receipt.exception() is not None:
            is_stored = False
        else:
            is_stored = all(failure.kind is Failure.REFUSED for failure in receipt.result().failures)
        if not is_stored:
            self._interrupted.add(partition)
