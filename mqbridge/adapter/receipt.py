"""The result of a send."""

from collections.abc import Callable, Sequence

from mqbridge.errors import Failure
from mqbridge.message import Position


class MessageFailure:
    """A message of a share that was not stored: its index in the share, and the reason."""

    __slots__ = ("index", "kind", "reason")

    def __init__(self, index: int, kind: Failure, reason: str) -> None:
        self.index, self.kind, self.reason = index, kind, reason


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
        """One position per message of the share; () for a message that was not stored, or if the system does not tell."""
        if callable(self._positions):
            self._positions = self._positions()
        return self._positions

    @property
    def position(self) -> Position:
        """The highest position, () if the system does not tell."""
        return max(self.positions, default=())
