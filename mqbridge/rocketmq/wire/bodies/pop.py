"""Bodies of three requests: assign queues, set how a group reads a topic (PULL or POP), acknowledge popped messages."""

import base64
from dataclasses import dataclass

from mqbridge.rocketmq.wire.bodies.base import Body, Codec, member
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.fastjson import as_text

PULL, POP = "PULL", "POP"
"""Values of `mode`. PULL: one consumer reads a queue. POP: the broker divides the messages of a queue among consumers."""
MAX_ACK_BITS = 4096
"""Maximum number of offsets that one BatchAck may span. A pop returns at most 32 messages, but their offsets may have gaps."""


@dataclass(frozen=True, slots=True)
class AssignmentQuery(Body):
    """QUERY_ASSIGNMENT: a consumer requests the queues that it shall read."""

    topic: str
    group: str = member("consumerGroup")
    client_id: str = member("clientId")
    strategy: str = member("strategyName", "AVG")
    message_model: str = member("messageModel", "CLUSTERING")


@dataclass(frozen=True, slots=True)
class Assignment(Body):
    """A queue, and the mode in which the consumer reads it."""

    queue: Queue = member("messageQueue")
    mode: str = PULL


@dataclass(frozen=True, slots=True)
class Assignments(Body):
    """Response to QUERY_ASSIGNMENT: the queues of a consumer; None if the broker could not assign any."""

    assignments: tuple[Assignment, ...] | None = member("messageQueueAssignments", None)


@dataclass(frozen=True, slots=True)
class MessageRequestMode(Body):
    """SET_MESSAGE_REQUEST_MODE: set the mode in which a group reads a topic.

    In the mode POP, each consumer also pops from the queues of `share_queues` other consumers; 0 means that all
    consumers pop from all queues.
    """

    topic: str
    group: str = member("consumerGroup")
    mode: str = member("mode", POP, absent=PULL)  # brokers read a missing mode as PULL
    share_queues: int = member("popShareQueueNum", 0)


def _write_bits(mask: int) -> str:
    """Encode a bit mask like Java's BitSet, as little-endian bytes without trailing zeros, in base64."""
    return base64.b64encode(mask.to_bytes((mask.bit_length() + 7) // 8, "little")).decode()


def _read_bits(value: object) -> int:
    """Decode a bit mask. Raises ValueError for more than MAX_ACK_BITS."""
    bits = base64.b64decode(as_text(value), validate=True)
    if len(bits) * 8 > MAX_ACK_BITS:
        raise ValueError(f"{len(bits) * 8} bits in one acknowledgement; at most {MAX_ACK_BITS} are allowed")
    return int.from_bytes(bits, "little")


@dataclass(frozen=True, slots=True)
class BatchAck(Body):
    """Acknowledges messages that one pop returned from one queue.

    If bit i of `mask` is set, the message at the offset `start` + i is acknowledged. The other fields are copied from the
    messages' receipts: `retry` is "0" for the topic itself, "1" or "2" for the group's retry topic with a name of the older or
    newer form; `revive_queue` is the queue with the broker's record of this pop; `pop_time` is in ms of the broker's clock.
    """

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
    """BATCH_ACK_MESSAGE: acknowledge messages of one broker."""

    broker: str = member("brokerName")
    acks: tuple[BatchAck, ...] = member("acks")
