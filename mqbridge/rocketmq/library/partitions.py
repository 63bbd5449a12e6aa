"""Partition names of the public client. A partition is a queue, named `broker:queue`, where `queue` is its number."""

from collections.abc import Sequence

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.wire.bodies.queue import Queue


def partition_name(queue: Queue) -> str:
    """Return the partition name of a queue."""
    return f"{queue.broker}:{queue.id}"


def find_queue(topic: str, queues: Sequence[Queue], partition: str) -> Queue:
    """Return the queue with this partition name. Raises ClusterError (FATAL), which lists up to ten existing names."""
    for queue in queues:
        if partition_name(queue) == partition:
            return queue
    names = ", ".join(map(partition_name, queues[:10])) or "none"
    more = f" and {len(queues) - 10} more" if len(queues) > 10 else ""
    raise ClusterError(f"topic {topic} has no queue {partition!r} now; its queues are: {names}{more}", Failure.FATAL)
