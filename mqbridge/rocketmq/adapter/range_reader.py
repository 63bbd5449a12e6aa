"""Reads a range of one queue without a group: the reader leaves no trace at the Brokers."""

from collections.abc import AsyncGenerator

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Partition, Position
from mqbridge.rocketmq.adapter.lane import gather, make_batch
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.pull_consumer import join
from mqbridge.rocketmq.client.pulled_records import PulledRecords
from mqbridge.rocketmq.client.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue

READ_AHEAD_BYTES = 4 << 20
WAIT_S = 60.0
"""Timeout of a wait for a change of the queue; a change ends the wait at once, so the value affects nothing."""


async def read_range(
    client: ClusterClient, partition: Partition, queue: Queue, begin: Position, end: Position | None
) -> AsyncGenerator[Batch, None]:
    """Yield the batches of a queue from one offset up to another; without `end`, forever. Raises ClusterError, GapError."""
    (offset,) = begin
    until = None
    if end is not None:
        until = min(end[0], await client.positions.next(queue))  # stop at the current end of the queue
        if offset >= until:
            return
    spec = ConsumerSettings(
        "",
        (everything(queue.topic),),
        MessageModel.ASSIGNED,
        queues=(queue,),
        offsets={queue: offset},
        max_bytes=READ_AHEAD_BYTES,
    )
    reader = await join(client, spec)
    try:
        assigned = reader.held.get(queue)
        if assigned is None:
            raise ClusterError(f"{partition} cannot be read now: the reader could not take the queue", Failure.RETRY)
        while until is None or offset < until:
            pulled = assigned.take() or await _next(assigned, until)
            if pulled is None:
                return  # a compacted topic has no messages in the rest of the range
            pulls = gather(assigned, pulled)
            if until is not None:
                pulls = [pull.until(until) for pull in pulls if pull.first < until]
                if not pulls:
                    return  # as above: the pull starts behind the range
            offset = pulls[-1].next
            if (batch := make_batch(partition, pulls)) is not None:
                yield batch
    finally:
        await reader.close()


async def _next(assigned: AssignedQueue, until: int | None) -> PulledRecords | None:
    """Return the next pull; None if no message is left before `until`. Raises the error that ends the queue."""
    while (pulled := assigned.take()) is None:
        if until is not None and assigned.position >= until:
            return None
        await assigned.changed(WAIT_S)
        if assigned.revoked:
            raise ClusterError(f"{assigned} was closed while it was read", Failure.RETRY)
    return pulled
