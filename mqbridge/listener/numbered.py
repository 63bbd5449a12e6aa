"""Batches with the numbers of their messages, for clients that read a partition from a number on: a pull takes a slice of one."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from mqbridge.adapter.numbering import Numbering
from mqbridge.message import Batch, Message, Unit


class Slice(NamedTuple):
    """What a pull gets: consecutive messages of a partition.

    contents  the units, one message each, or the messages
    numbers   their numbers, ascending
    next      number from which the next pull reads
    units     the same as `contents` if they are units of the clients' format; otherwise None
    messages  the same as `contents` if they are messages; otherwise None
    """

    numbers: Sequence[int]
    next: int
    units: Sequence[Unit] | None
    messages: Sequence[Message] | None


class NumberedBatch:
    """A batch whose messages have numbers."""

    __slots__ = ("_messages", "_units", "batch", "end", "first", "last", "numbers")

    def __init__(self, batch: Batch, numbering: Numbering, unit_format: str) -> None:
        """Units are used if they are of this format, and have one message each; otherwise the messages."""
        units = batch.units if batch.format == unit_format else None
        if units is not None and (len(units) != batch.count or any(unit.message_count != 1 for unit in units)):
            units = None
        self.batch, self._units = batch, units
        self._messages = None if units is not None else batch.messages
        contents: Sequence[Unit] | Sequence[Message] = self._messages if units is None else units  # type: ignore[assignment]
        self.first, self.end = numbering.number(batch.first), numbering.number(batch.next)
        """Number of the position where the batch begins, and of the one where reading goes on behind it.

        No message of the partition lies between `end` and the number after the last message, whatever the numbers between are:
        behind the last message of a Pulsar entry, for example, the next entry begins.
        """
        self.numbers: Sequence[int] = range(self.first, self.end)
        """Numbers of the messages, ascending."""
        if len(self.numbers) != len(contents):  # messages are missing between them, or numbers do not count messages
            self.numbers = array("q", [numbering.number(each.position) for each in contents])
        self.last = self.numbers[-1]
        """Number of the last message."""

    def count_before(self, number: int) -> int:
        """Return how many messages have a smaller number."""
        return bisect_left(self.numbers, number)

    def after(self, number: int) -> int:
        """Return the number after the last message that has a smaller number than this one; `first` if none has."""
        count = self.count_before(number)
        return self.numbers[count - 1] + 1 if count else self.first

    def cut(self, number: int, max_messages: int, max_bytes: int) -> Slice:
        """Return the messages from a number on, up to these limits, but one at least; none behind the last one."""
        begin = self.count_before(number)
        end, size = begin, 0
        while end < len(self.numbers) and end - begin < max_messages and (end == begin or size < max_bytes):
            size += self._size(end)
            if size > max_bytes and end > begin:
                break
            end += 1
        next_number = self.end if end == len(self.numbers) else self.numbers[end]
        numbers = self.numbers[begin:end]
        return Slice(
            numbers.tolist() if isinstance(numbers, array) else numbers,
            next_number,
            None if self._units is None else self._units[begin:end],
            None if self._messages is None else self._messages[begin:end],
        )

    def _size(self, index: int) -> int:
        if self._units is not None:
            return len(self._units[index].data)
        assert self._messages is not None  # noqa: S101 - one of the two is set
        return len(self._messages[index].payload or b"")

    def drop_contents(self) -> None:
        """Forget the contents; the numbers stay."""
        self._units = self._messages = None
        self.batch.drop_contents()
