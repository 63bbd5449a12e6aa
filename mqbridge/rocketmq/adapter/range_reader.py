"""Reads a range of offsets of one queue without a group, so nothing is created or changed at the Brokers."""

from collections.abc import AsyncGenerator

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Partition, Position
from mqbridge.rocketmq.adapter.lane import join_pulls, make_batch
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.consumer.pull_consumer import join
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue

READ_AHEAD_BYTES = 4 << 20
"""Limit of the bytes of pulls that are buffered before the caller takes their batches."""
WAIT_S = 60.0
"""Timeout of a wait for the next pull. A pull ends the wait at once, and a timeout only starts the next wait."""


async def read_range(
    client: ClusterClient, partition: Partition, queue: Queue, begin: Position, end: Position | None
) -> AsyncGenerator[Batch, None]:
    """Yield the batches of a queue from offset `begin` up to, not including, `end`; without `end`, continue with new messages.

    Raises ClusterError, and GapError if messages of the range were deleted.
    """
    (offset,) = begin
    end_offset = None
    if end is not None:
        end_offset = min(end[0], await client.positions.next(queue))  # do not wait for messages that are not stored yet
        if offset >= end_offset:  # the range is empty
            return
    settings = ConsumerSettings(
        group="",
        subscriptions=(everything(queue.topic),),
        model=MessageModel.ASSIGNED,
        queues=(queue,),
        offsets={queue: offset},
        max_bytes=READ_AHEAD_BYTES,
    )
    reader = await join(client, settings)
    try:
        assigned = reader.held.get(queue)
        if assigned is None:
            raise ClusterError(
                f"queue {partition} cannot be read now: reading could not begin at offset {offset}; the log has the cause",
                Failure.RETRY,
            )
        while end_offset is None or offset < end_offset:
            pulled = await _next_pull(assigned, end_offset)
            if pulled is None:
                return  # compaction has removed the last messages of the range
            pulls = join_pulls(assigned, pulled)  # with the buffered pulls after it
            if end_offset is not None:
                pulls = [pull.until(end_offset) for pull in pulls if pull.first < end_offset]
                if not pulls:
                    return  # compaction has removed all messages between the last pull and the end of the range
            offset = pulls[-1].next
            if (batch := make_batch(partition, pulls)) is not None:  # None: no message of these pulls is in the range
                yield batch
    finally:
        await reader.close()


async def _next_pull(assigned: AssignedQueue, end_offset: int | None) -> PulledRecords | None:
    """Wait for the next pull and return it; None if no message is left before `end_offset`. Raises the queue's error."""
    while (pulled := assigned.take()) is None:
        if end_offset is not None and assigned.position >= end_offset:
            return None
        await assigned.wait_for_change(WAIT_S)
        if assigned.revoked:
            raise ClusterError(f"{assigned} was released while it was read; read it again", Failure.RETRY)
    return pulled
