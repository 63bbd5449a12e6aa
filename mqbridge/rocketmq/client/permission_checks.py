"""Checks the permissions that a route of the gateway needs at the brokers, without changing anything.

Brokers check permissions before anything else. So the requests used here are chosen to have no effect if they are permitted: a
message to a queue number that no topic has, an unlock of locks that are not held, a search in one millisecond of 1970. The two
versions of RocketMQ's access control check permissions with different requests, so requests for both are sent:

    permission           2.0 (from 5.3 on)              1.0 (4.x)
    produce to a topic   SEND_MESSAGE_V2                SEND_MESSAGE_V2 (brokers do not check SEND_BATCH_MESSAGE)
    consume a topic      UNLOCK_BATCH_MQ                QUERY_MESSAGE
    consume as a group   UNLOCK_BATCH_MQ                GET_CONSUMER_LIST_BY_GROUP
    query a topic        GET_MAX_OFFSET                 (always allowed)
"""

import asyncio
from collections.abc import Mapping

from mqbridge.errors import ServerRefused
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockRequest
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.groups import GroupHeader
from mqbridge.rocketmq.wire.headers.offsets import QueueHeader
from mqbridge.rocketmq.wire.headers.query import QueryHeader
from mqbridge.rocketmq.wire.headers.send import SendHeader

NO_QUEUE = 0x7FFFFFFF
"""A queue id that no topic has. With a negative id, a broker would choose a queue and store the message."""
NO_CLIENT = "mqbridge-rights"
"""A client id that holds no locks; also the message key to search for."""


async def check_may_produce(client: BaseClient, group: str, route: TopicRoute) -> None:
    """Check at every master that we may send to the topic.

    Raises AccessRefused (FATAL) with the missing permission, another ClusterError if a broker is unreachable.
    """
    # A broker creates a missing topic from `default_topic`; the missing topic itself as `default_topic` prevents that.
    header = SendHeader(group, route.topic, NO_QUEUE, born_timestamp=0, default_topic=route.topic)
    await asyncio.gather(
        *(_try(client, address, Code.SEND_MESSAGE_V2, header.encode(), body=b"?") for address in route.masters())
    )


async def check_may_consume(client: BaseClient, group: str, route: TopicRoute) -> None:
    """Check at every master that we may consume the topic as this group. Raises the same errors as `check_may_produce`."""
    await asyncio.gather(*(_check_consume_at(client, group, route.topic, address) for address in route.masters()))


async def _check_consume_at(client: BaseClient, group: str, topic: str, address: str) -> None:
    locks = LockRequest(NO_CLIENT, group, (Queue(topic, broker="", id=NO_QUEUE),), only_this_broker=True)
    await _try(client, address, Code.UNLOCK_BATCH_MQ, ext={}, body=locks.encode())
    await _try(client, address, Code.GET_CONSUMER_LIST_BY_GROUP, GroupHeader(group).encode())
    query = QueryHeader(topic, NO_CLIENT, max_num=1, begin_timestamp=0, end_timestamp=1)
    await _try(client, address, Code.QUERY_MESSAGE, query.encode())
    await _try(client, address, Code.GET_MAX_OFFSET, QueueHeader(topic, queue_id=0).encode())


async def _try(client: BaseClient, address: str, code: int, ext: Mapping[str, str], body: bytes = b"") -> None:
    """Send a request; ignore refusals other than AccessRefused, because the broker checks permissions first."""
    try:
        await client.request(address, code, ext, body)
    except AccessRefused:
        raise
    except ServerRefused:
        pass  # refused for another reason, so the permission is there
