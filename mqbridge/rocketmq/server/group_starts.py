"""Where a new group begins to read: by what its members ask for, and by what brokers do whatever they ask for."""

import time

from mqbridge.adapter.inbound import Start
from mqbridge.listener.groups import GroupStart
from mqbridge.listener.server import Services
from mqbridge.listener.topics import ListenedTopic
from mqbridge.rocketmq.server.topic_names import RETRY_PREFIX
from mqbridge.rocketmq.wire.bodies.groups import FROM_FIRST, FROM_TIMESTAMP

YOUNG_MESSAGES = 100_000
"""A topic that has lost no message yet, and has at most this many, is read from its begin by a new group: so does a broker, as
long as the first message is in its memory, whatever the client asks for."""
TIMESTAMP_S = 1800.0
"""How far back clients begin by default that ask for messages from a time on: they do not tell the time."""
_FROM_BEGIN = frozenset({FROM_FIRST, "CONSUME_FROM_MIN_OFFSET"})


async def find_start(services: Services, consume_from: str, topic: ListenedTopic) -> GroupStart:
    """Return where a group whose members ask for `consume_from` begins in a topic if it is new there. Raises ClusterError."""
    if topic.name.startswith(RETRY_PREFIX) or consume_from in _FROM_BEGIN or await is_young(services, topic):
        return Start.EARLIEST
    if consume_from == FROM_TIMESTAMP:
        return round((time.time() - TIMESTAMP_S) * 1000)
    return Start.LATEST


async def is_young(services: Services, topic: ListenedTopic) -> bool:
    """Return True if a new group begins at the first message of a topic in any case, see YOUNG_MESSAGES. Raises ClusterError."""
    total = 0
    for index in topic.partitions:
        bounds = await services.partitions.bounds(topic, index)
        if services.numbering.number(bounds.first):
            return False
        total += services.numbering.number(bounds.next)
    return total <= YOUNG_MESSAGES
