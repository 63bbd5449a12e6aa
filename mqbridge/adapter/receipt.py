"""The result of a send."""

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from mqbridge.errors import Failure
from mqbridge.message import Position


class MessageFailure:
    """A message that was not stored: its index, the kind of failure, and the reason as text.

    `index` is the index in the share that was sent (the messages of a batch for one target partition); for `InboundLane.reject`
    it is the index in the batch.
    """

    __slots__ = ("failure_kind", "index", "reason")

    def __init__(self, index: int, failure_kind: Failure, reason: str) -> None:
        self.index, self.failure_kind, self.reason = index, failure_kind, reason


class OffsetPositions(Sequence[Position]):
    """The positions (offset,) of messages with consecutive offsets; a position is made when it is used."""

    __slots__ = ("offsets",)

    def __init__(self, offsets: range) -> None:
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets)

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> "OffsetPositions": ...
    def __getitem__(self, index: int | slice) -> "Position | OffsetPositions":
        return OffsetPositions(self.offsets[index]) if isinstance(index, slice) else (self.offsets[index],)

    def __iter__(self) -> Iterator[Position]:
        return zip(self.offsets)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OffsetPositions):
            return self.offsets == other.offsets
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"OffsetPositions({self.offsets})"


class Receipt:
    """The result of one `send`: the messages that were not stored, and the positions of the others, computed on demand."""

    __slots__ = ("_positions", "failures")

    def __init__(
        self,
        positions: Callable[[], Sequence[Position]] | Sequence[Position] = (),
        failures: Sequence[MessageFailure] = (),
    ) -> None:
        self._positions = positions
        self.failures = list(failures)

    @property
    def positions(self) -> Sequence[Position]:
        """One position per message of the share; () for a message that was not stored, or whose position is not known.

        Empty if no message of the share was stored.
        """
        if callable(self._positions):
            self._positions = self._positions()
        return self._positions

    @property
    def highest_position(self) -> Position:
        """The highest position of the stored messages; () if none is known."""
        positions = self.positions
        if isinstance(positions, OffsetPositions):
            return positions[-1] if positions else ()
        return max(positions, default=())
