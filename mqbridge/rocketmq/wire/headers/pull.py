"""Headers of pulls, the requests with which a client reads messages of one queue."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header

READER_GROUP = "TOOLS_CONSUMER"
"""The group in requests of readers without a group. Every broker has this group, so readers create nothing there."""


class PullFlag:
    """Bits of a pull's `sys_flag`."""

    COMMIT_OFFSET = 1
    """The broker stores `commit_offset` as the committed offset of the group."""
    SUSPEND = 2
    """The broker holds the request while the queue has no new message (long polling)."""
    SUBSCRIPTION = 4
    """The broker uses the filter of this request instead of the one in the group's heartbeat."""
    CLASS_FILTER = 8
    """Obsolete: the filter is a Java class."""
    LITE = 16
    """A pull by a client that assigns queues to itself; its request code is LITE_PULL_MESSAGE."""


@dataclass(slots=True)
class PullHeader(Header):
    """Header of PULL_MESSAGE and LITE_PULL_MESSAGE.

    `sys_flag` consists of the bits of PullFlag. `max_msg_bytes` limits the response; None: only the broker's own limit applies.
    `suspend_timeout_millis` is how long the broker may hold the request; some Go clients write it in ns. `subscription`,
    `sub_version` (ms, see `SubscriptionData.version`) and `expression_type` are the filter. `bname` is the name of the broker,
    which proxies need and brokers ignore.
    """

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
    """Header of the response to a pull. With code 0 (SUCCESS) or 19 to 21 (PULL_...) it always has the first four fields.

    suggest_which_broker_id    the id of the broker (0: the master) to send the next pull to
    next_begin_offset          the offset of the next pull
    min_offset, max_offset     the offset of the queue's first message, and the offset after its last message
    offset_delta               not used by mqbridge, like both `..._sys_flag`
    forbidden_type             with NO_PERMISSION, what forbids it: 1 broker, 2 group, 3 topic, 4 broadcasting, 5 subscription
    """

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None
