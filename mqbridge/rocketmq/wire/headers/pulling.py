"""Headers of pulls."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header


class PullFlag:
    """Bits of a pull's `sys_flag`."""

    COMMIT_OFFSET = 1
    """`commit_offset` is to be stored."""
    SUSPEND = 2
    """Hold the request while there is nothing to read."""
    SUBSCRIPTION = 4
    """The filter of this request counts, not the one of the group's heartbeat."""
    CLASS_FILTER = 8
    LITE = 16


@dataclass(slots=True)
class PullHeader(Header):
    """PULL_MESSAGE and LITE_PULL_MESSAGE. Times in ms; some Go clients write `suspend_timeout_millis` in ns."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: int | None = None
    bname: str | None = None


@dataclass(slots=True)
class PullResult(Header):
    """Answer to a pull with 0, 19, 20 and 21; the four numbers are there in each."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None
