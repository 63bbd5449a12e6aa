"""Headers of pulls."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header


class PullFlag:
    """Bits of a pull's `sys_flag`."""

    COMMIT_OFFSET = 1
    """Store `commit_offset`."""
    SUSPEND = 2
    """Hold the request while the queue has no new message (long polling)."""
    SUBSCRIPTION = 4
    """Use the filter of this request instead of the one from the group's heartbeat."""
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
    """Response to a pull with code 0, 19, 20 or 21; the first four fields are always present."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None
