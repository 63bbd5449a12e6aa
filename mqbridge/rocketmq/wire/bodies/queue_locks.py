"""Locks of queues at a broker, which orderly consumers hold while they read."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.bodies.base import Body, member
from mqbridge.rocketmq.wire.bodies.queue import Queue


@dataclass(frozen=True, slots=True)
class LockRequest(Body):
    """LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: a client, its group, and the queues to lock or unlock."""

    client_id: str
    group: str = member("consumerGroup")
    queues: tuple[Queue, ...] = member("mqSet")
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class LockedQueues(Body):
    """Response to LOCK_BATCH_MQ: the queues that the client holds now. A body is sent even for no queues."""

    queues: tuple[Queue, ...] = member("lockOKMQSet")
