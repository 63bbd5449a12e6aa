"""Headers of POP, with which the broker distributes messages. They need JSON commands: the codes exceed 16 bits."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header


@dataclass(slots=True)
class PopHeader(Header):
    """POP_MESSAGE. Times in ms; queue -1 means any; the broker refuses a `born_time` that differs from its clock by 500 ms."""

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
    """Response to POP_MESSAGE; `wire/receipts.py` parses the three infos."""

    pop_time: int
    invisible_time: int
    revive_qid: int
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@dataclass(slots=True)
class AckHeader(Header):
    """ACK_MESSAGE; `extra_info` is the receipt."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    bname: str | None = None


@dataclass(slots=True)
class ChangeInvisibleHeader(Header):
    """CHANGE_MESSAGE_INVISIBLETIME, ms from now."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    invisible_time: int
    bname: str | None = None


@dataclass(slots=True)
class ChangeInvisibleResult(Header):
    """Response to CHANGE_MESSAGE_INVISIBLETIME: the values of the new receipt."""

    pop_time: int
    invisible_time: int
    revive_qid: int


@dataclass(slots=True)
class NotificationHeader(Header):
    """NOTIFICATION: ask if there is anything to pop."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: int
    born_time: int
    order: bool | None = None
    attempt_id: str | None = None
    bname: str | None = None


@dataclass(slots=True)
class NotificationResult(Header):
    """Response to NOTIFICATION."""

    has_msg: bool
    polling_full: bool | None = None
