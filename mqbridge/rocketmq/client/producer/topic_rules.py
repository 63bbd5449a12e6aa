"""Rules by which brokers accept the messages of a topic: whether they need KEYS, and how large they may be.

A topic that is compacted (cleanup.policy=COMPACTION) needs KEYS. Brokers check KEYS of a single message, but not those of the
messages in a batch: they acknowledge a batch without KEYS and drop its messages. So a producer has to know the rule before it
sends a batch. A topic keeps its policy until it is deleted.
"""

import asyncio
import logging

from mqbridge.errors import ClusterError, ServerRefused
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.route import TopicRoute
from mqbridge.rocketmq.client.producer.send_request import MAX_SAFE_DIGITS
from mqbridge.rocketmq.wire.bodies.configs import TopicConfig
from mqbridge.rocketmq.wire.broker_settings import decode_settings
from mqbridge.rocketmq.wire.codes import Code
from mqbridge.rocketmq.wire.headers.admin import TopicHeader
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.rocketmq.wire.properties import MAX_BYTES

log = logging.getLogger(__name__)

NO_KEY_REMARK = "Required message key is missing"
"""The remark with which a broker refuses a message without KEYS."""
OVERSIZED_PROPERTIES = f"mqbridge\x01{'x' * (MAX_BYTES + 1)}\x02"
"""Properties that no broker stores, because their length is a signed 16-bit number."""


async def requires_keys(client: BaseClient, group: str, route: TopicRoute) -> bool:
    """Return True if a master of the topic stores messages only with KEYS; `group` is the producer group.

    Masters that do not answer are left out, because all masters of a topic have the same policy. Raises the ClusterError of one
    if none answers.
    """
    queries = [_requires_keys_at(client, group, route, address) for address in route.masters()]
    results = await asyncio.gather(*queries, return_exceptions=True)
    answers = [result for result in results if isinstance(result, bool)]
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not answers or not isinstance(error, ClusterError):
            raise error
        log.info("topic %s: a broker did not tell the topic's cleanup policy, using that of the others: %s", route.topic, error)
    return any(answers)


async def _requires_keys_at(client: BaseClient, group: str, route: TopicRoute, address: str) -> bool:
    """Query the topic's policy, which needs the permission Get; without it, find out by a message that cannot be stored.

    A broker that does not know the request is older than compacted topics.
    """
    try:
        response = await client.request(address, Code.GET_TOPIC_CONFIG, TopicHeader(route.topic).encode())
    except AccessRefused:
        return await _refuses_without_keys(client, group, route, address)
    except ServerRefused:
        return False
    return TopicConfig.decode(response.body).is_compacted


async def _refuses_without_keys(client: BaseClient, group: str, route: TopicRoute, address: str) -> bool:
    """Send a message that no broker stores; return True if the broker refuses it because it has no KEYS.

    Brokers check KEYS before they check the length of the properties.
    """
    queue_id = next((queue.id for queue in route.write_queues() if route.master(queue.broker) == address), 0)
    header = SendHeader(
        group, route.topic, queue_id, born_timestamp=1, properties=OVERSIZED_PROPERTIES, default_topic=route.topic
    )
    try:
        await client.request(address, Code.SEND_MESSAGE_V2, header.encode(), b"?")
    except AccessRefused:
        raise
    except ServerRefused as error:
        return NO_KEY_REMARK in str(error)
    return False


async def max_message_bytes(client: BaseClient, route: TopicRoute) -> int | None:
    """Return the smallest `maxMessageSize` of the topic's masters; None if none of them tells it.

    It limits a message and a whole batch. Reading it may need the permission to administer the cluster; it also changes while
    brokers run. So a batch above it is possible, and is divided when a broker refuses it.
    """
    results = await asyncio.gather(*(_max_message_bytes_at(client, address) for address in route.masters()))
    return min((size for size in results if size is not None), default=None)


async def _max_message_bytes_at(client: BaseClient, address: str) -> int | None:
    try:
        settings = decode_settings((await client.request(address, Code.GET_BROKER_CONFIG)).body)
    except ClusterError as error:
        log.debug("broker %s did not tell its maxMessageSize: %s", address, error)
        return None
    size = settings.get("maxMessageSize", "")
    return int(size) if size.isascii() and size.isdecimal() and len(size) <= MAX_SAFE_DIGITS else None
