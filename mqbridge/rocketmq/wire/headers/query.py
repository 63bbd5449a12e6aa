"""Headers of requests that look up single messages."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header, named


@dataclass(slots=True)
class QueryHeader(Header):
    """QUERY_MESSAGE: find messages by their UNIQ_KEY if `unique_key` is True, otherwise by an index key (KEYS).

    `begin_timestamp` and `end_timestamp` are store times, in ms since the epoch.
    """

    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    unique_key: bool | None = named("_UNIQUE_KEY_QUERY", None)


@dataclass(slots=True)
class QueryResult(Header):
    """Response to QUERY_MESSAGE; the body consists of records.

    The fields are the store time (ms) and the physical offset of the message that the broker indexed last.
    """

    index_last_update_timestamp: int
    index_last_update_phyoffset: int


@dataclass(slots=True)
class ViewHeader(Header):
    """VIEW_MESSAGE_BY_ID; `offset` is the physical offset. Brokers do not need `topic`.

    `bname` is the name of the broker, which proxies need and brokers ignore.
    """

    offset: int
    topic: str | None = None
    bname: str | None = None
