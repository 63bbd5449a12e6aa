"""Names of queues in the public client: `broker:queue`."""

from collections.abc import Sequence

from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.wire.bodies.queue import Queue


def partition_name(queue: Queue) -> str:
    """`broker:queue`."""
    return f"{queue.broker}:{queue.id}"


def find_queue(topic: str, queues: Sequence[Queue], partition: str) -> Queue:
    """The queue of this name. Raises ClusterError (FATAL), which names those that there are."""
    for queue in queues:
        if partition_name(queue) == partition:
            return queue
    known = ", ".join(map(partition_name, queues[:10])) or "none"
    raise ClusterError(f"{topic} has no queue {partition!r} now; there are: {known}", Failure.FATAL)
