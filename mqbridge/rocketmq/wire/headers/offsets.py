"""Headers about the offsets of a queue, and of a group in it."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header


@dataclass(slots=True)
class QueueHeader(Header):
    """GET_MAX_OFFSET, GET_MIN_OFFSET and GET_EARLIEST_MSG_STORETIME: only a queue."""

    topic: str
    queue_id: int
    committed: bool | None = None
    bname: str | None = None


@dataclass(slots=True)
class SearchOffsetHeader(Header):
    """SEARCH_OFFSET_BY_TIMESTAMP.

    LOWER: the first message stored at `timestamp` (ms) or later; UPPER: the last message stored until then.
    """

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None
    bname: str | None = None


@dataclass(slots=True)
class QueryOffsetHeader(Header):
    """QUERY_CONSUMER_OFFSET. Unless `set_zero_if_not_found` is False, a group without a commit gets 0 for a young queue."""

    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None
    bname: str | None = None


@dataclass(slots=True)
class UpdateOffsetHeader(Header):
    """UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int
    bname: str | None = None


@dataclass(slots=True)
class OffsetResult(Header):
    """A response with one offset."""

    offset: int


@dataclass(slots=True)
class TimestampResult(Header):
    """Response to GET_EARLIEST_MSG_STORETIME, ms."""

    timestamp: int
