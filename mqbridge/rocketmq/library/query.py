"""Looks up single messages: by key, by unique key, or by offset id.

Brokers index messages by the hash of each key, shortly after storing them. A query may therefore return messages with other keys
of the same hash; the client drops these, but they count towards the limit `most`.
"""

import asyncio

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, ServerRefused
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.codes import Code, Status, refusal_error
from mqbridge.rocketmq.wire.headers.query import QueryHeader, ViewHeader
from mqbridge.rocketmq.wire.ids import format_host, parse_offset_id
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record, decode_records

DEFAULT_MAX_MESSAGES = 32
"""Default of `most`, the limit of messages per broker."""
MAX_TIME_MS = (1 << 63) - 1
"""Default of `end`: the latest store time that a query can name, so no limit."""
VIEW_RESPONSES = frozenset({Status.SUCCESS, Status.SYSTEM_ERROR})
"""Codes that a look-up by offset id accepts; SYSTEM_ERROR may mean that the message does not exist, see NO_MESSAGE."""
NO_MESSAGE = "can not find message"
"""Part of the remark of the SYSTEM_ERROR with which brokers report that no message is stored at an offset."""
QUERY_RESPONSES = frozenset({Status.SUCCESS, Status.QUERY_NOT_FOUND})
"""Codes that a query accepts; QUERY_NOT_FOUND means no messages."""


class Query:
    """Look-ups of messages in one cluster. Each call raises ClusterError, and RemoteProtocolError for an invalid response."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    async def by_key(
        self, topic: str, key: str, *, begin: int = 0, end: int = MAX_TIME_MS, most: int = DEFAULT_MAX_MESSAGES
    ) -> list[Record]:
        """Return messages with this key, oldest first; at most `most` per broker.

        Only messages stored from `begin` to `end` (ms since the epoch) are returned; the defaults set no limit.
        """
        records = await self._search(QueryHeader(topic, key, most, begin, end))
        return [record for record in records if key in _property(record, Name.KEYS).split(" ")]

    async def by_unique_key(self, topic: str, unique_key: str, *, most: int = DEFAULT_MAX_MESSAGES) -> list[Record]:
        """Return messages with this UNIQ_KEY, oldest first: one message and its copies, or a batch of a 5.x Java producer.

        Such a producer gives all messages of a batch the same UNIQ_KEY.
        """
        records = await self._search(QueryHeader(topic, unique_key, most, 0, MAX_TIME_MS, unique_key=True))
        return [record for record in records if _property(record, Name.UNIQ_KEY) == unique_key]

    async def by_offset_id(self, message_id: str, topic: str | None = None) -> Record | None:
        """Return the message with this offset id, which names the broker's address and the message's offset in its commit log.

        Returns None if no message is stored there (any more). `topic` is only sent along: brokers do not need it to find the
        message. Raises RemoteProtocolError for an invalid id.
        """
        host, offset = parse_offset_id(message_id)
        ext = ViewHeader(offset, topic).encode()
        address = format_host(host)
        response = await self._client.request(address, Code.VIEW_MESSAGE_BY_ID, ext, accept=VIEW_RESPONSES)
        if response.code == Status.SYSTEM_ERROR:
            if NO_MESSAGE not in (response.remark or ""):
                raise refusal_error(f"a look-up of message {message_id} at {address}", response.code, response.remark)
            return None
        records = decode_records(response.body)
        if len(records) != 1 or records[0].physical_offset != offset:
            raise RemoteProtocolError(
                f"broker {address} did not return the requested message {message_id}, but {records!r}"[:500]
            )
        return records[0]

    async def _search(self, header: QueryHeader) -> list[Record]:
        """Query the master of each broker that has the topic; return all records, oldest first."""
        route = await self._client.routes.get(header.topic)
        if route is None:
            raise ServerRefused(f"no name server knows topic {header.topic!r}", Status.TOPIC_NOT_EXIST, Failure.FATAL)
        masters = route.masters()
        if not masters:
            raise ClusterError(f"no broker of topic {header.topic} has a master now; retry later", Failure.REFRESH)
        responses = await asyncio.gather(*(self._query(address, header) for address in masters))
        return sorted((record for records in responses for record in records), key=lambda record: record.store_timestamp)

    async def _query(self, address: str, header: QueryHeader) -> list[Record]:
        """Query one broker."""
        response = await self._client.request(address, Code.QUERY_MESSAGE, header.encode(), accept=QUERY_RESPONSES)
        return decode_records(response.body) if response.code == Status.SUCCESS else []


def _property(record: Record, name: str) -> str:
    """Return a property of a record; "" if the record has no such property, or is damaged."""
    return "" if record.defect else dict(props.decode(record.properties)).get(name, "")
