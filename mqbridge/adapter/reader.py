"""Reading one partition by position, as no group's member."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mqbridge.adapter.inbound import BatchSource
from mqbridge.message import Batch, Position

if TYPE_CHECKING:
    from mqbridge.adapter.cluster import Cluster

READ_BYTES = 1 << 20
"""Default of the bytes that a reader reads ahead."""
RANGE_BYTES = 4 << 20
"""Bytes that `read` reads ahead: its callers read whole ranges, and the way to the servers may be long."""


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
class ReadsRanges(Protocol):
    """A cluster of an adapter that was written for the contract's second edition, which had no readers."""

    def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """Yield the batches of the range; see the function of this name."""


async def read(
    cluster: "Cluster", topic: str, partition: str, begin: Position, end: Position | None = None
) -> AsyncGenerator[Batch, None]:
    """Yield the batches of one partition from `begin` up to, not including, `end`; without `end`, continue with new messages.

    Close the generator (`aclose`) if you stop before its end. Raises the errors of `Cluster.reader` and of its `receive`.
    """
    if isinstance(cluster, ReadsRanges):
        async with aclosing(cluster.read(topic, partition, begin, end)) as batches:
            async for batch in batches:
                yield batch
        return
    reader = await cluster.reader(topic, partition, begin, end, max_bytes=RANGE_BYTES)
    try:
        while (received := await reader.receive()) is not None:
            yield received
    finally:
        await reader.close()
