"""Looks up single messages: by key, by unique key, or by offset id.

Brokers index messages by the hash of a key, shortly after storing them. Other keys with the same hash are filtered out here.
"""

import asyncio

from mqbridge.errors import ClusterError, Failure, RemoteProtocolError, ServerRefused
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.wire import properties as props
from mqbridge.rocketmq.wire.codes import Code, Status, refused
from mqbridge.rocketmq.wire.headers.query import QueryHeader, ViewHeader
from mqbridge.rocketmq.wire.ids import format_host, parse_offset_id
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record, decode_records

MAX_FOUND = 32
"""Default limit of messages per broker."""
FOREVER = (1 << 63) - 1
VIEW_RESPONSES = frozenset({Status.SUCCESS, Status.SYSTEM_ERROR})
NO_MESSAGE = "can not find message"
"""Part of the remark of a SYSTEM_ERROR if no message is stored at an offset."""
QUERY_RESPONSES = frozenset({Status.SUCCESS, Status.QUERY_NOT_FOUND})


class Query:
    """Look-ups of messages in one cluster. Each call raises ClusterError, and RemoteProtocolError for an invalid response."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    async def by_key(self, topic: str, key: str, *, begin: int = 0, end: int = FOREVER, most: int = MAX_FOUND) -> list[Record]:
        """Return messages with this key, stored from `begin` to `end` (ms), at most `most` of each broker, oldest first."""
        found = await self._search(QueryHeader(topic, key, most, begin, end))
        return [record for record in found if key in _property(record, Name.KEYS).split(" ")]

    async def by_unique_key(self, topic: str, unique_key: str, *, most: int = MAX_FOUND) -> list[Record]:
        """Return messages with this UNIQ_KEY: copies of one message, or all messages of a 5.x Java producer's batch."""
        found = await self._search(QueryHeader(topic, unique_key, most, 0, FOREVER, unique_key=True))
        return [record for record in found if _property(record, Name.UNIQ_KEY) == unique_key]

    async def by_offset_id(self, message_id: str, topic: str | None = None) -> Record | None:
        """Return the message with this offset id; None if it was deleted. Raises RemoteProtocolError for an invalid id."""
        host, offset = parse_offset_id(message_id)
        ext = ViewHeader(offset, topic).encode()
        address = format_host(host)
        response = await self._client.request(address, Code.VIEW_MESSAGE_BY_ID, ext, accept=VIEW_RESPONSES)
        if response.code == Status.SYSTEM_ERROR:
            if NO_MESSAGE not in (response.remark or ""):
                raise refused(f"the message {message_id} at {address}", response.code, response.remark)
            return None
        records = decode_records(response.body)
        if len(records) != 1 or records[0].physical_offset != offset:
            raise RemoteProtocolError(f"{address} returned other messages than {message_id}: {records!r}"[:500])
        return records[0]

    async def _search(self, header: QueryHeader) -> list[Record]:
        route = await self._client.routes.get(header.topic)
        if route is None:
            raise ServerRefused(f"no name server knows topic {header.topic!r}", Status.TOPIC_NOT_EXIST, Failure.FATAL)
        masters = route.masters()
        if not masters:
            raise ClusterError(f"no broker of topic {header.topic} has a master now", Failure.REFRESH)
        found = await asyncio.gather(*(self._query(address, header) for address in masters))
        return sorted((record for records in found for record in records), key=lambda record: record.store_timestamp)

    async def _query(self, address: str, header: QueryHeader) -> list[Record]:
        response = await self._client.request(address, Code.QUERY_MESSAGE, header.encode(), accept=QUERY_RESPONSES)
        return decode_records(response.body) if response.code == Status.SUCCESS else []


def _property(record: Record, name: str) -> str:
    return "" if record.defect else dict(props.decode(record.properties)).get(name, "")
