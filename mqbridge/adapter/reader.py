"""Reading one partition by position, as no group's member."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from mqbridge.adapter.inbound import BatchSource
from mqbridge.message import Batch, Position

READ_BYTES = 1 << 20
"""Default of the bytes that a reader reads ahead."""


class PartitionReader(BatchSource, Protocol):
    """Reads one partition from a position on, up to the end with which it was opened, if any.

    The server stores nothing of it. A reader that is idle at the end of the partition holds at most its `max_bytes`.
    """

    @property
    def position(self) -> Position:
        """Position of the next message: the begin, or the position of the last `seek`, or `Batch.next` of the last batch."""

    async def receive(self) -> Batch | None:
        """Wait for the next batch; None at the end of the range. Without an end, it never returns None.

        Cancelling this call loses no message. It returns None early, without an error, if the partition ends before the range.
        The bounds of a batch are exact. Raises ClusterError, and GapError if messages were lost: `seek` continues behind the gap.
        """

    async def close(self, deadline: float | None = None) -> None:
        """End the reader; a second call does nothing. `deadline` is an event loop time; None: CLOSE_S from now."""


@runtime_checkable
class LimitsBatches(Protocol):
    """A reader that reads nothing ahead, and asks at each read how many bytes there is room for."""

    batch_limit: Callable[[], AbstractContextManager[int]]
    """Gives the maximum bytes of a batch, and is left when the batch is in memory. What was stored as one is read whole."""
