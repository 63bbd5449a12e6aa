"""Reading a range of one queue as no group's member: by a reader of the client's own, which leaves nothing at the Brokers."""

from collections.abc import AsyncGenerator

from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Batch, Partition, Position
from mqbridge.rocketmq.adapter.lane import gather, make_batch
from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.consumer import join
from mqbridge.rocketmq.client.pulled import Pulled
from mqbridge.rocketmq.client.spec import GroupSpec, Model
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.client.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue

READ_AHEAD_BYTES = 4 << 20
LOOK_S = 60.0
"""A wait for news of the queue, which are told at once; nothing depends on this time."""


async def read_range(
    client: RocketmqClient, partition: Partition, queue: Queue, begin: Position, end: Position | None
) -> AsyncGenerator[Batch, None]:
    """The batches of a queue from one offset up to another, or for ever. Raises ClusterError, GapError."""
    (at,) = begin
    until = None
    if end is not None:
        until = min(end[0], await client.positions.next(queue))  # what is not stored yet is not waited for
        if at >= until:
            return
    spec = GroupSpec(
        "", (everything(queue.topic),), Model.ASSIGNED, queues=(queue,), offsets={queue: at}, max_bytes=READ_AHEAD_BYTES
    )
    reader = await join(client, spec)
    try:
        stream = reader.held.get(queue)
        if stream is None:
            raise ClusterError(f"{partition} cannot be read now", Failure.RETRY)
        while until is None or at < until:
            pulled = stream.take() or await _next(stream, until)
            if pulled is None:
                return  # the rest of the range is holes of a compacted topic
            pulls = gather(stream, pulled)
            if until is not None:
                pulls = [one.until(until) for one in pulls if one.first < until]
            at = pulls[-1].next
            if (batch := make_batch(partition, pulls)) is not None:
                yield batch
    finally:
        await reader.close()


async def _next(stream: QueueStream, until: int | None) -> Pulled | None:
    """What comes next; None when there is nothing before `until`. Raises what ends the queue."""
    while (pulled := stream.take()) is None:
        if until is not None and stream.position >= until:
            return None
        await stream.changed(LOOK_S)
        if stream.revoked:
            raise ClusterError(f"{stream} ended while it was read", Failure.RETRY)
    return pulled
