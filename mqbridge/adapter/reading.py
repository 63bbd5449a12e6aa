"""Reads ranges of partitions as generators of batches."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from mqbridge.adapter.cluster import Cluster
from mqbridge.message import Batch, Position

RANGE_BYTES = 4 << 20
"""Bytes that `read` reads ahead: its callers read whole ranges, and the way to the servers may be long."""


@runtime_checkable
class ReadsRanges(Protocol):
    """A cluster of an adapter that was written for the contract's second edition, which had no readers."""

    def read(self, topic: str, partition: str, begin: Position, end: Position | None = None) -> AsyncGenerator[Batch, None]:
        """Yield the batches of the range; see the function of this name."""


async def read(
    cluster: Cluster, topic: str, partition: str, begin: Position, end: Position | None = None
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
