"""Headers of POP: the broker, not the clients, distributes the messages of a queue among the consumers of a group.

The commands must be encoded as JSON, because their codes exceed 16 bits. Times are in ms; `born_time` and `pop_time` since the
epoch. `extra_info` is the receipt of a message. `attempt_id` identifies an orderly request that a client sends again, so the
broker does not block it.
"""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header


@dataclass(slots=True)
class PopHeader(Header):
    """POP_MESSAGE.

    queue_id          -1 means any queue
    max_msg_nums      at most 32
    invisible_time    how long the messages are hidden from other consumers until they are acknowledged
    poll_time         how long the broker may hold the request while there is no message
    born_time         the client's time of the request; refused if the broker's clock is later by more than poll_time + 500 ms
    init_mode         for a group without offsets: 0 starts at the minimum offset, 1 at the maximum
    exp_type, exp     type and text of the filter expression
    order             True: the group consumes each queue in order
    bname             name of the broker, which proxies need and brokers ignore
    """

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    bname: str | None = None


@dataclass(slots=True)
class PopResult(Header):
    """Response to POP_MESSAGE.

    revive_qid        the queue of the broker's revive topic that records the messages until they are acknowledged
    rest_num          the number of messages not popped yet
    *_info            texts that `mqbridge.rocketmq.wire.receipts` parses
    """

    pop_time: int
    invisible_time: int
    revive_qid: int
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True)
class AckHeader(Header):
    """ACK_MESSAGE. `offset` is the queue offset of the message."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    bname: str | None = None


@dataclass(slots=True)
class ChangeInvisibleHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME: hide a message for `invisible_time` from now on."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int
    bname: str | None = None


@dataclass(slots=True)
class ChangeInvisibleResult(Header):
    """Response to CHANGE_MESSAGE_INVISIBLETIME: the values that differ in the new receipt of the message."""

    pop_time: int
    invisible_time: int
    revive_qid: int
