"""Assignment by the broker, and acknowledgement of popped messages."""

import base64
from dataclasses import dataclass

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, member
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.fastjson import as_text

PULL, POP = "PULL", "POP"
"""Modes of reading an assigned queue."""
MAX_ACK_BITS = 4096
"""Limit of one entry; a broker pops 32 messages at a time."""


@dataclass(frozen=True, slots=True)
class AssignmentQuery(Body):
    """QUERY_ASSIGNMENT: a consumer requests its queues."""

    topic: str
    group: str = member("consumerGroup")
    client_id: str = member("clientId")
    strategy: str = member("strategyName", "AVG")
    model: str = member("messageModel", "CLUSTERING")


@dataclass(frozen=True, slots=True)
class Assignment(Body):
    """A queue, and the mode of reading it."""

    queue: Queue = member("messageQueue")
    mode: str = PULL


@dataclass(frozen=True, slots=True)
class Assignments(Body):
    """Response to QUERY_ASSIGNMENT: the queues of a consumer; None if the broker has no result."""

    assignments: tuple[Assignment, ...] | None = member("messageQueueAssignments", None)


@dataclass(frozen=True, slots=True)
class MessageRequestMode(Body):
    """SET_MESSAGE_REQUEST_MODE: the mode in which a group reads a topic from now on."""

    topic: str
    group: str = member("consumerGroup")
    mode: str = member("mode", POP, absent=PULL)
    share_queues: int = member("popShareQueueNum", 0)


def _write_bits(mask: int) -> str:
    """Encode like Java's BitSet: little-endian bytes without trailing zeros."""
    return base64.b64encode(mask.to_bytes((mask.bit_length() + 7) // 8, "little")).decode()


def _read_bits(value: object) -> int:
    bits = base64.b64decode(as_text(value), validate=True)
    if len(bits) * 8 > MAX_ACK_BITS:
        raise ValueError(f"{len(bits) * 8} bits in one acknowledgement, at most {MAX_ACK_BITS} are allowed")
    return int.from_bytes(bits, "little")


@dataclass(frozen=True, slots=True)
class BatchAck(Body):
    """Messages of one pop of one queue. `retry` is 0, 1 or 2 as in the receipt; bit i of `mask` is the offset `start` + i."""

    group: str = member("c")
    topic: str = member("t")
    retry: str = member("r", absent="0")
    start: int = member("so")
    queue: int = member("q")
    revive_queue: int = member("rq")
    pop_time: int = member("pt")
    invisible_ms: int = member("it")
    mask: int = member("b", codec=Codec(_write_bits, _read_bits, ""))


@dataclass(frozen=True, slots=True)
class BatchAcks(Body):
    """BATCH_ACK_MESSAGE, for one broker."""

    broker: str = member("brokerName")
    acks: tuple[BatchAck, ...] = member("acks")
