"""Queries and commits of offsets, at the queue's broker. The messages of a queue have consecutive numbers as offsets.

For a queue that does not exist, a broker returns offset 0 instead of an error. So callers must take queues from the route.
"""

from mqbridge.errors import ClusterError, Failure, ServerRefused
from mqbridge.rocketmq.client.admin.compat_v4 import find_offset_at, is_old, topics_with_offsets
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.route import queue_label
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.headers.base import Header
from mqbridge.rocketmq.wire.headers.offsets import (
    OffsetResult,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    TimestampResult,
    UpdateOffsetHeader,
)

OFFSET_RESPONSES = frozenset({Status.SUCCESS, Status.QUERY_NOT_FOUND})
"""Codes of the response to QUERY_CONSUMER_OFFSET. QUERY_NOT_FOUND: the group has no committed offset in this queue."""


class Positions:
    """Offsets of the queues of one cluster.

    Each method raises ClusterError: REFRESH if the queue's broker has no master now. A later call then requests the route again.
    """

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    async def first(self, queue: Queue) -> int:
        """Return the offset of the oldest message; the result of `next` if the queue is empty."""
        return await self._offset(queue, Code.GET_MIN_OFFSET, QueueHeader(queue.topic, queue.id))

    async def next(self, queue: Queue) -> int:
        """Return the offset that the next stored message will get."""
        return await self._offset(queue, Code.GET_MAX_OFFSET, QueueHeader(queue.topic, queue.id))

    async def earliest_time(self, queue: Queue) -> int | None:
        """Return the time when the oldest message was stored, ms since the epoch; None for an empty queue."""
        ext = QueueHeader(queue.topic, queue.id).encode()
        response = await self._client.request(await self.master(queue), Code.GET_EARLIEST_MSG_STORETIME, ext)
        time = TimestampResult.decode(response.ext).timestamp
        return time if time >= 0 else None

    async def at(self, queue: Queue, timestamp: int, *, upper: bool = False) -> int:
        """Return the offset of the first message stored at `timestamp` (ms since the epoch) or later.

        Without such a message, return the result of `next`. With `upper`, return the offset of the last message stored
        at `timestamp` or earlier; of the oldest message if all are later.
        """
        header = SearchOffsetHeader(queue.topic, queue.id, timestamp, boundary_type="UPPER" if upper else "LOWER")
        address = await self.master(queue)
        response = await self._client.request(address, Code.SEARCH_OFFSET_BY_TIMESTAMP, header.encode())
        if not is_old(response):
            return OffsetResult.decode(response.ext).offset
        # The result of a 4.x broker may be inexact: search among the messages instead.
        bounds = await self.first(queue), await self.next(queue)
        return await find_offset_at(self._client, address, queue, timestamp, *bounds, upper=upper)

    async def committed(self, queue: Queue, group: str, *, exact: bool = True) -> int | None:
        """Return the group's committed offset; None if there is none.

        A 4.x broker may return 0 although there is none. With `exact`, a 0 of such a broker is checked by another request;
        otherwise it is returned.
        """
        header = QueryOffsetHeader(group, queue.topic, queue.id, set_zero_if_not_found=False)
        address = await self.master(queue)
        response = await self._client.request(address, Code.QUERY_CONSUMER_OFFSET, header.encode(), accept=OFFSET_RESPONSES)
        if response.code == Status.QUERY_NOT_FOUND:
            return None
        offset = OffsetResult.decode(response.ext).offset
        may_be_none = exact and not offset and is_old(response)
        if may_be_none and queue.topic not in await topics_with_offsets(self._client, address, group):
            return None
        return offset

    async def commit(self, queue: Queue, group: str, offset: int) -> None:
        """Commit `offset`, which may be lower than the present one. Raises ClusterError (FATAL) if the group does not exist."""
        header = UpdateOffsetHeader(group, queue.topic, queue.id, offset)
        await self._client.request(await self.master(queue), Code.UPDATE_CONSUMER_OFFSET, header.encode())

    async def _offset(self, queue: Queue, code: int, header: Header) -> int:
        response = await self._client.request(await self.master(queue), code, header.encode())
        return OffsetResult.decode(response.ext).offset

    async def master(self, queue: Queue) -> str:
        """Return the address of the queue's master. Raises ClusterError: FATAL for an unknown topic, REFRESH without a master."""
        route = await self._client.routes.get_or_last_known(queue.topic)
        if route is None:
            raise ServerRefused(f"no name server knows topic {queue.topic!r}", Status.TOPIC_NOT_EXIST, Failure.FATAL)
        address = route.master(queue.broker)
        if address is None:
            self._client.routes.invalidate(queue.topic)
            raise ClusterError(
                f"the route contains no master for queue {queue_label(queue)} now; the next call requests the route again",
                Failure.REFRESH,
            )
        return address
