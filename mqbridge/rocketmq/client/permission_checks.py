"""Checks the permissions that a route needs at the brokers, without changing anything.

Brokers check permissions first. So these requests either fail later for another reason, or have no effect: a message to a queue
that no topic has, an unlock of locks that are not held, a search of one millisecond of 1970. Together they need the same
permissions in both versions of access control, which check different requests:

    permission           2.0 (from 5.3 on)              1.0 (4.x)
    produce to a topic   SEND_MESSAGE_V2                SEND_MESSAGE_V2, but not SEND_BATCH_MESSAGE
    consume a topic      UNLOCK_BATCH_MQ                QUERY_MESSAGE
    consume as a group   UNLOCK_BATCH_MQ                GET_CONSUMER_LIST_BY_GROUP
    query a topic        GET_MAX_OFFSET                 (always allowed)
"""

import asyncio
from collections.abc import Mapping

from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.access_errors import AccessRefused
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.route import TopicRoute
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockRequest
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from mqbridge.rocketmq.wire.headers.offsets import QueueHeader
from mqbridge.rocketmq.wire.headers.query import QueryHeader
from mqbridge.rocketmq.wire.headers.send import SendHeader

NO_QUEUE = 0x7FFFFFFF
"""Invalid for every topic. With a negative number a broker would choose a queue and store the message."""
NOBODY = "mqbridge-rights"
"""A client that holds no locks."""


async def check_may_produce(client: BaseClient, group: str, route: TopicRoute) -> None:
    """Raises AccessRefused (FATAL), which names the missing permission; another ClusterError if a broker is unreachable."""
    header = SendHeader(group, route.topic, NO_QUEUE, born_timestamp=0, default_topic=route.topic)
    await asyncio.gather(*(_try(client, one, Code.SEND_MESSAGE_V2, header.encode(), b"?") for one in route.masters()))


async def check_may_consume(client: BaseClient, group: str, route: TopicRoute) -> None:
    """Raises as `check_may_produce`."""
    await asyncio.gather(*(_check_consuming(client, group, route.topic, one) for one in route.masters()))


async def _check_consuming(client: BaseClient, group: str, topic: str, address: str) -> None:
    locks = LockRequest(NOBODY, group, (Queue(topic, "", NO_QUEUE),), only_this_broker=True)
    await _try(client, address, Code.UNLOCK_BATCH_MQ, {}, locks.encode())
    await _try(client, address, Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group).encode())
    await _try(client, address, Code.QUERY_MESSAGE, QueryHeader(topic, NOBODY, 1, 0, 1).encode())
    await _try(client, address, Code.GET_MAX_OFFSET, QueueHeader(topic, 0).encode())


async def _try(client: BaseClient, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> None:
    try:
        await client.request(address, code, ext, body)
    except AccessRefused:
        raise
    except ServerRefused:
        pass  # the permission was granted
