"""Reads chunked messages again whose first chunks lie before the entry at which a reader began.

A chunked message is at the position of its last chunk. So the range that contains this position has the whole message, wherever
it begins, and a message whose last chunk does not exist is in no range: it may still become complete.
"""

import asyncio
from dataclasses import replace

from mqbridge.errors import ClusterError
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.consumer.entry_consumer import EntryConsumer
from mqbridge.pulsar.wire.chunk_joiner import ChunkJoiner, identity_of
from mqbridge.pulsar.wire.chunks import describes_chunk
from mqbridge.pulsar.wire.entry import Entry
from mqbridge.pulsar.wire.ids import EARLIEST


async def complete_message(client: ClusterClient, topic: str, entry: Entry, timeout_s: float) -> Entry | None:
    """Read a chunked message again with a reader that starts early enough to receive its first chunks too.

    The message begins at `nearest_start`, or earlier, perhaps in an earlier ledger, if chunks of other messages lie between
    its own. Returns an entry with a defect, and with all chunks that exist, if some are missing. Returns None if the chunks
    of the given entry are repetitions: the message was complete before, in an earlier range. Raises ClusterError.
    """
    ledger, first = entry.first_chunk or entry.id
    nearest_start = (ledger, first - entry.chunks_before)
    for start in dict.fromkeys((nearest_start, (ledger, 0), EARLIEST)):
        if start[1] < 0 and start != EARLIEST:
            continue  # the ledger has too few entries before the given one
        subscription = replace(await client.reader_subscription(start), joins_chunks=False)
        consumer = await client.consumer(topic, subscription)
        try:
            candidate = await _join_up_to(consumer, entry, timeout_s)
        finally:
            await consumer.close()
        if candidate is None or not candidate.chunks_before:
            return candidate
        entry = candidate
    return entry


async def _join_up_to(consumer: EntryConsumer, message: Entry, timeout_s: float) -> Entry | None:
    """Join the chunks of this message that the consumer receives, which joins none; None if the message ended before.

    Other messages do not count against the limits. Each entry must arrive within `timeout_s`, because it exists. Raises
    ClusterError.
    """
    joiner, identity = ChunkJoiner(consumer.subscription.chunk_limits, begins_inside=True), identity_of(message.chunks[0][0])
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                chunk = await consumer.receive()
        except TimeoutError as error:
            raise ClusterError(f"the next entry of topic {consumer.topic} did not arrive within {timeout_s:g} s") from error
        if chunk.id > message.id:  # its ledger was deleted meanwhile
            return message
        if not describes_chunk(chunk.metadata) or identity_of(chunk.metadata) != identity:
            continue
        chunk.defect = None  # it has one because the consumer does not join it
        results = joiner.add(chunk, now=0.0)
        if chunk.id == message.id:
            joined = results[-1].entry
            if joined is not None:
                joined.first_chunk = results[-1].chunk_ids[0]
            return joined


def lacks_last_chunk(entry: Entry) -> bool:
    """Return True for a chunked message that the consumer has given up before its last chunk."""
    if entry.defect is None or not entry.chunks:
        return False
    last, _ = entry.chunks[-1]
    return last.chunk_id + 1 < last.num_chunks_from_msg
