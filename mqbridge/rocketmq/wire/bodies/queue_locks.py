"""Locks of queues at a broker: a consumer that reads in order holds the lock of each queue that it reads."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.bodies.base import Body, member
from mqbridge.rocketmq.wire.bodies.queue import Queue


@dataclass(frozen=True, slots=True)
class LockRequest(Body):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: a client, its group, and the queues to lock or unlock.

    With `only_this_broker`, the broker does not forward the request to its replicas.
    """

    client_id: str
    group: str = member("consumerGroup")
    queues: tuple[Queue, ...] = member("mqSet")
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class LockedQueues(Body):
    """Response to LOCK_BATCH_MQ: those of the requested queues that the client holds now, possibly none."""

    queues: tuple[Queue, ...] = member("lockOKMQSet")
