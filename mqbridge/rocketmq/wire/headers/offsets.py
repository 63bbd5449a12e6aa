"""Headers about the offsets of a queue, and about the offsets that groups committed in it.

`bname` is the name of the broker, which proxies need and brokers ignore.
"""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header


@dataclass(slots=True)
class QueueHeader(Header):
    """A queue, for GET_MAX_OFFSET, GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME.

    Only GET_MAX_OFFSET uses `committed`: False also counts stored messages that consumers cannot read yet; None means True.
    """

    topic: str
    queue_id: int
    committed: bool | None = None
    bname: str | None = None


@dataclass(slots=True)
class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP.

    The response has the offset of a message by its store time. `boundary_type` LOWER (or None): the first message stored at
    `timestamp` (ms) or later; UPPER: the last message stored at `timestamp` or earlier.
    """

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None
    bname: str | None = None


@dataclass(slots=True)
class QueryOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET.

    For a group without a committed offset, the response is an error (QUERY_NOT_FOUND); but if the queue still has its first
    message in memory, the response is the offset 0, unless `set_zero_if_not_found` is False.
    """

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


@dataclass(slots=True)
class UpdateOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET: commit the offset of the next message that the group will consume."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    bname: str | None = None


@dataclass(slots=True)
class OffsetResult(Header):
    """A response with one offset: the one that a query, a search, GET_MAX_OFFSET or GET_MIN_OFFSET asked for."""

    offset: int


@dataclass(slots=True)
class TimestampResult(Header):
    """Response to GET_EARLIEST_MSG_STORETIME: the store time of the first message of the queue, in ms."""

    timestamp: int
