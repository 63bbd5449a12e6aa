"""Sequence ids of producers with a configured name, made from source positions, which ascend in each target partition.

A broker that deduplicates drops a whole entry if its first message was stored before, even if other messages of the entry were
not. So no entry may mix stored and new messages: stored messages are left out before entries are made, and a send fails if its
messages do not come after the last position sent. The messages of a batch for one target partition (a share) are one send.
"""

from asyncio import Future
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import overload

from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import ClusterError, Failure, LocalProtocolError
from mqbridge.mapping.sequences import sequence_of
from mqbridge.message import Message, Partition, Position, format_position
from mqbridge.native import is_native
from mqbridge.pulsar.mapping.request import EncodedEntry
from mqbridge.pulsar.mapping.stored_units import UnitToStore

_position_of_message = attrgetter("position")


class MessagePositions(Sequence[Position]):
    """The positions of messages, each created on access."""

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
        return MessagePositions(self._messages[index]) if isinstance(index, slice) else self._messages[index].position

    def first_descent(self) -> int | None:
        """Return the index of the first position that is not greater than its predecessor; None if all ascend."""
        if is_native(self._messages):
            index: int | None = self._messages.first_descent()  # type: ignore[attr-defined]
            return index
        return _first_descent(list(map(_position_of_message, self._messages)))

    def readable(self) -> Iterator[tuple[int, Position]]:
        """Yield the index and the position of each message without a defect."""
        return ((index, message.position) for index, message in enumerate(self._messages) if message.defect is None)


class UnitPositions(Sequence[Position]):
    """The positions of the messages of units; those at the indexes `damaged` cannot be read."""

    __slots__ = ("_damaged", "_positions")

    def __init__(self, positions: Sequence[Position], damaged: Collection[int]) -> None:
        self._positions, self._damaged = positions, damaged

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> Position: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Position]: ...

    def __getitem__(self, index: int | slice) -> Position | Sequence[Position]:
        return self._positions[index]

    def first_descent(self) -> int | None:
        """Return the index of the first position that is not greater than its predecessor; None if all ascend."""
        return _first_descent(self._positions)

    def readable(self) -> Iterator[tuple[int, Position]]:
        """Yield the index and the position of each message of the units that can be read."""
        return ((index, position) for index, position in enumerate(self._positions) if index not in self._damaged)


SourcePositions = MessagePositions | UnitPositions


def _first_descent(positions: Sequence[Position]) -> int | None:
    return next((index for index, (previous, position) in enumerate(pairwise(positions), 1) if position <= previous), None)


class SenderSequence:
    """Tracks the last source position stored in, and sent to, each target partition of one outbound.

    `sender` is the configured name of the sender, `topic` the target.
    """

    def __init__(self, sender: str, topic: str) -> None:
        self.sender = sender
        self._topic = topic
        self._source: Partition | None = None
        """The source partition for which `Outbound.resume` found out which messages are stored; None before its first call."""
        self._partitions: frozenset[int] | None = None
        """Target partitions that accept sends; None: all."""
        self._stored: dict[int, Position] = {}
        """Target partition -> last stored position when the outbound was resumed."""
        self._sent: dict[int, Position] = {}
        """Target partition -> last position sent after that."""
        self._interrupted: set[int] = set()
        """Target partitions with a failed send: only `Outbound.resume` finds out which messages are stored."""

    def check_source(self, source: Partition) -> None:
        """Check, before the outbound is resumed for `source`, that it was not resumed for another source.

        Raises LocalProtocolError, because positions of two sources have no order.
        """
        if self._source not in (None, source):
            raise LocalProtocolError(
                f"sender {self.sender!r} may send only messages of partition {self._source} into topic {self._topic!r}, "
                f"not messages of partition {source}"
            )

    def set_stored(self, source: Partition, stored: Mapping[int, Position], partitions: Collection[int] | None = None) -> None:
        """Set the source, and by target partition the last position that is stored; clear everything noted about sends.

        Only these target `partitions` accept sends from now on; None: all do.
        """
        self._source, self._stored = source, dict(stored)
        self._partitions = None if partitions is None else frozenset(partitions)
        self._sent.clear()
        self._interrupted.clear()

    def count_stored_first(self, partition: int, source: Partition, positions: SourcePositions) -> int:
        """Check that a share of `source` may be sent now; return how many of its first messages are stored already.

        `positions` are those of its messages. Raises the errors of `check_first` and `count_stored`.
        """
        first = next(positions.readable(), None)
        if first is not None:
            self.check_first(partition, source, first[1])
        return self.count_stored(partition, positions)

    def check_first(self, partition: int, source: Partition, first: Position) -> None:
        """Check that a share may be sent whose first message without a defect has the position `first`.

        Raises LocalProtocolError if the outbound was not resumed for `source`. Raises ClusterError after a failed send (RETRY),
        if the stored position is one of another system (FATAL), and if `first` is not after the last position sent (FATAL).
        """
        if self._source != source or (self._partitions is not None and partition not in self._partitions):
            raise LocalProtocolError(
                f"sender {self.sender!r} must call resume for partition {source} before it sends into partition {partition} "
                f"(counted from 0) of topic {self._topic!r}"
            )
        if partition in self._interrupted:
            raise ClusterError(
                f"the last send of sender {self.sender!r} into partition {partition} (counted from 0) of topic {self._topic!r} "
                "failed: call resume before the next send",
                Failure.RETRY,
            )
        stored, sent = self._stored.get(partition), self._sent.get(partition)
        if stored is not None and len(stored) != len(first):  # each system's positions have their own length
            raise ClusterError(
                f"sender {self.sender!r} has sent messages of another source into topic {self._topic!r}, up to position "
                f"{format_position(stored)}: choose another sender name",
                Failure.FATAL,
            )
        if sent is not None and first <= sent:
            raise self._order_error(first, sent)

    def count_stored(self, partition: int, positions: SourcePositions) -> int:
        """Return how many messages at the beginning of the share are stored already.

        Raises ClusterError if the positions of messages without a defect do not ascend. A defective message may be out of order:
        a chunked message that stays incomplete gets its defect after later entries were delivered. It is never sent.
        """
        stored = self._stored.get(partition)
        if positions.first_descent() is None:
            return 0 if stored is None else bisect_right(positions, stored)
        readable = list(positions.readable())
        for (_, previous), (_, position) in pairwise(readable):
            if position <= previous:
                raise self._order_error(position, previous)
        return max((index + 1 for index, position in readable if stored is not None and position <= stored), default=0)

    def _order_error(self, position: Position, previous: Position) -> ClusterError:
        return ClusterError(
            f"messages of partition {self._source} are not in ascending order: position {format_position(position)} follows "
            f"{format_position(previous)}, but sender {self.sender!r} derives sequence ids in topic {self._topic!r} from "
            "positions; sort the messages, or remove the sender's name",
            Failure.FATAL,
        )

    def assign_ids(
        self, partition: int, entries: Sequence[EncodedEntry | UnitToStore], positions: Sequence[Position]
    ) -> list[tuple[int, int]]:
        """Return the sequence ids of each entry's first and last message, and note the entries as sent.

        `positions` are those of all messages of the share. Raises ClusterError (FATAL) if a position fits no sequence id.
        """
        positions_of_entries = [(positions[entry.indexes[0]], positions[entry.indexes[-1]]) for entry in entries]
        sequence_ids = [(sequence_of(first), sequence_of(last)) for first, last in positions_of_entries]
        if positions_of_entries:
            self._sent[partition] = positions_of_entries[-1][1]
        return sequence_ids

    def on_send_done(self, partition: int, receipt: "Future[Receipt]") -> None:
        """Note the result of a send into this partition.

        A REFUSED message is not stored. After any other failure this is unknown, so the outbound must be resumed.
        """
        if receipt.cancelled() or receipt.exception() is not None:
            is_interrupted = True
        else:
            is_interrupted = any(failure.failure_kind is not Failure.REFUSED for failure in receipt.result().failures)
        if is_interrupted:
            self._interrupted.add(partition)
