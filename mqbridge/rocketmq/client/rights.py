"""Whether we may do what a route does, asked of brokers without changing anything.

Brokers look at rights before they look at anything else. So they are asked for what they then refuse for another reason, or what
does nothing: a message to a queue that no topic has, locks given back that nobody holds, a search of one millisecond of 1970.
Together the requests ask for the same rights in both versions of access control, which check different requests:

    right                2.0 (from 5.3 on)              1.0 (4.x)
    produce to a topic   SEND_MESSAGE_V2                SEND_MESSAGE_V2, but not SEND_BATCH_MESSAGE
    consume a topic      UNLOCK_BATCH_MQ                QUERY_MESSAGE
    consume as a group   UNLOCK_BATCH_MQ                GET_CONSUMER_LIST_BY_GROUP
    look at a topic      GET_MAX_OFFSET                 (everybody may)
"""

import asyncio
from collections.abc import Mapping

from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.access import AccessRefused
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.route import TopicRoute
from mqbridge.rocketmq.wire.bodies.locks import LockRequest
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from mqbridge.rocketmq.wire.headers.offsets import QueueHeader
from mqbridge.rocketmq.wire.headers.query import QueryHeader
from mqbridge.rocketmq.wire.headers.sending import SendHeader

NO_QUEUE = 0x7FFFFFFF
"""Refused for any topic. With a negative number a broker would choose a queue, and store."""
NOBODY = "mqbridge-rights"
"""A client that holds no locks."""


async def check_may_produce(client: BaseClient, group: str, route: TopicRoute) -> None:
    """Raises AccessRefused (FATAL), which names the missing right; another ClusterError when a broker cannot be asked."""
    header = SendHeader(group, route.topic, NO_QUEUE, born_timestamp=0, default_topic=route.topic)
    await asyncio.gather(*(_ask(client, one, Code.SEND_MESSAGE_V2, header.encode(), b"?") for one in route.masters()))


async def check_may_consume(client: BaseClient, group: str, route: TopicRoute) -> None:
    """Raises as `check_may_produce`."""
    await asyncio.gather(*(_check_consuming(client, group, route.topic, one) for one in route.masters()))


async def _check_consuming(client: BaseClient, group: str, topic: str, address: str) -> None:
    locks = LockRequest(NOBODY, group, (Queue(topic, "", NO_QUEUE),), only_this_broker=True)
    await _ask(client, address, Code.UNLOCK_BATCH_MQ, {}, locks.encode())
    await _ask(client, address, Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group).encode())
    await _ask(client, address, Code.QUERY_MESSAGE, QueryHeader(topic, NOBODY, 1, 0, 1).encode())
    await _ask(client, address, Code.GET_MAX_OFFSET, QueueHeader(topic, 0).encode())


async def _ask(client: BaseClient, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> None:
    try:
        await client.request(address, code, ext, body)
    except AccessRefused:
        raise
    except ServerRefused:
        pass  # the rights were there
