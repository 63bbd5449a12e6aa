"""Assignment by the broker, and acknowledging what was popped."""

import base64
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from mqbridge.rocketmq.wire.bodies.queue import Queue, queue_body, queue_of
from mqbridge.rocketmq.wire.lenient import list_of, map_of, number_of, read, text_of

PULL, POP = "PULL", "POP"
"""How an assigned queue is to be read."""
MAX_ACK_BITS = 4096
"""Of one entry: a broker pops 32 messages at a time."""


class AssignmentQuery(NamedTuple):
    """A consumer asks which queues are its own."""

    topic: str
    group: str
    client_id: str
    strategy: str = "AVG"
    model: str = "CLUSTERING"


class Assignment(NamedTuple):
    """A queue, and how it is to be read."""

    queue: Queue
    mode: str = PULL


class MessageRequestMode(NamedTuple):
    """How a group reads a topic from now on."""

    topic: str
    group: str
    mode: str = POP
    share_queues: int = 0


def encode_assignment_query(query: AssignmentQuery) -> bytes:
    """QUERY_ASSIGNMENT."""
    return orjson.dumps(
        {
            "clientId": query.client_id,
            "consumerGroup": query.group,
            "messageModel": query.model,
            "strategyName": query.strategy,
            "topic": query.topic,
        }
    )


def decode_assignment_query(body: bytes) -> AssignmentQuery:
    """QUERY_ASSIGNMENT. Raises RemoteProtocolError."""
    return read(
        "an assignment query",
        body,
        lambda said: AssignmentQuery(
            text_of(said, "topic"),
            text_of(said, "consumerGroup"),
            text_of(said, "clientId"),
            text_of(said, "strategyName", "AVG"),
            text_of(said, "messageModel", "CLUSTERING"),
        ),
    )


def encode_assignments(assignments: Iterable[Assignment]) -> bytes:
    """Answer to QUERY_ASSIGNMENT."""
    return orjson.dumps(
        {"messageQueueAssignments": [{"messageQueue": queue_body(one.queue), "mode": one.mode} for one in assignments]}
    )


def decode_assignments(body: bytes) -> list[Assignment] | None:
    """The queues of a consumer; None when the broker has no result. Raises RemoteProtocolError."""
    return read("the assignments", body, _assignments)


def _assignments(said: dict[str, Any]) -> list[Assignment] | None:
    if said.get("messageQueueAssignments") is None:
        return None
    return [
        Assignment(queue_of(map_of(one, "messageQueue")), text_of(one, "mode", PULL))
        for one in list_of(said, "messageQueueAssignments")
    ]


def encode_message_request_mode(mode: MessageRequestMode) -> bytes:
    """SET_MESSAGE_REQUEST_MODE."""
    return orjson.dumps(
        {"consumerGroup": mode.group, "mode": mode.mode, "popShareQueueNum": mode.share_queues, "topic": mode.topic}
    )


def decode_message_request_mode(body: bytes) -> MessageRequestMode:
    """SET_MESSAGE_REQUEST_MODE. Raises RemoteProtocolError."""
    return read(
        "a message request mode",
        body,
        lambda said: MessageRequestMode(
            text_of(said, "topic"),
            text_of(said, "consumerGroup"),
            text_of(said, "mode", PULL),
            number_of(said, "popShareQueueNum"),
        ),
    )


# --- acknowledging many at once -------------------------------------------------------------------------------------------


class BatchAck(NamedTuple):
    """Messages of one pop of one queue. `retry` is 0, 1 or 2 as in the receipt, `mask` has bit i for the offset `start` + i."""

    group: str
    topic: str
    retry: str
    start: int
    queue: int
    revive_queue: int
    pop_time: int
    invisible_ms: int
    mask: int


def encode_batch_acks(broker: str, acks: Iterable[BatchAck]) -> bytes:
    """BATCH_ACK_MESSAGE. The bits travel as Java's BitSet has them: bytes from the lowest on, without zeros at the end."""
    return orjson.dumps(
        {
            "acks": [
                {
                    "b": base64.b64encode(one.mask.to_bytes((one.mask.bit_length() + 7) // 8, "little")).decode(),
                    "c": one.group,
                    "it": one.invisible_ms,
                    "pt": one.pop_time,
                    "q": one.queue,
                    "r": one.retry,
                    "rq": one.revive_queue,
                    "so": one.start,
                    "t": one.topic,
                }
                for one in acks
            ],
            "brokerName": broker,
        }
    )


def decode_batch_acks(body: bytes) -> tuple[str, list[BatchAck]]:
    """The broker's name, and the messages. Raises RemoteProtocolError."""
    return read(
        "a batch of acknowledgements",
        body,
        lambda said: (text_of(said, "brokerName"), [_batch_ack(one) for one in list_of(said, "acks")]),
    )


def _batch_ack(said: dict[str, Any]) -> BatchAck:
    bits = base64.b64decode(text_of(said, "b"), validate=True)
    if len(bits) * 8 > MAX_ACK_BITS:
        raise ValueError(f"{len(bits) * 8} bits in one acknowledgement, {MAX_ACK_BITS} are allowed")
    return BatchAck(
        text_of(said, "c"),
        text_of(said, "t"),
        text_of(said, "r", "0"),
        number_of(said, "so"),
        number_of(said, "q"),
        number_of(said, "rq"),
        number_of(said, "pt"),
        number_of(said, "it"),
        int.from_bytes(bits, "little"),
    )
