"""The bounds of a partition, read with a non-durable reader: the broker stores nothing, and no group moves."""

import asyncio
from dataclasses import replace

from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError
from mqbridge.message import Position
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.wire.ids import EARLIEST

EMPTY_PARTITION: Position = (-1, -1, 0)
"""Both bounds of a partition that never held a message; it sorts before every position."""


async def request_bounds(client: ClusterClient, topic: str, timeout_s: float) -> Bounds:
    """Return the first, the next and the last position of a partition, by its full topic name. Raises ClusterError.

    If the first entry is a chunk, the first position is that of this chunk, which is not joined: its message may be incomplete.
    If the last entry is a chunk, the last position is that of this chunk, which a message has only if it is the last chunk.
    Messages that compaction has removed count as stored, because groups receive them.
    """
    # The first entry may be a chunk of a message that will never be complete.
    subscription = replace(await client.reader_subscription(EARLIEST), joins_chunks=False)
    consumer = await client.consumer(topic, subscription)
    try:
        ledger, entry, index = await consumer.last_message()
        if entry < 0:
            return Bounds(EMPTY_PARTITION, EMPTY_PARTITION)
        after: Position = (ledger, entry + 1, 0)
        if not await consumer.has_more():  # all entries were deleted
            return Bounds(after, after)
        async with asyncio.timeout(timeout_s):
            first = await consumer.receive()
        return Bounds((*first.id, 0), after, last=(ledger, entry, max(index, 0)))
    except TimeoutError as error:
        raise ClusterError(f"the first entry of topic {topic} did not arrive within {timeout_s:g} s") from error
    finally:
        await consumer.close()


def with_batch_index(position: Position) -> Position:
    """Return a position of three components: add the index 0 in the batch if it is missing."""
    ledger, entry, *index = position
    return (ledger, entry, index[0] if index else 0)
